"""Merging: a plan is carried out by one process, or by several tasks and a publisher; each can be killed and gone on with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shardyard.checkpoint import Checkpoint
from shardyard.errors import CheckpointError
from shardyard.operations.context import Context
from shardyard.operations.merge import ledger as ledgers
from shardyard.operations.merge import staging
from shardyard.operations.merge.estimate import workers
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.plan import Plan
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.merge.publish import publish
from shardyard.operations.merge.transfer import Transfer


def merge(plan: Plan, context: Context | None = None) -> dict[str, Any]:
    """Carry out a whole plan and publish the output; what an earlier run of the same plan has done is not done again.

    Raises:
        ShardyardError: nothing has appeared under the final name; what was finished is kept for the next run, unless the
            sources themselves are at fault.
    """
    context = context or Context()
    context.plan(plan.to_json())
    if not staging.already_published(plan):
        try:
            merge_task(plan, context)
            return publish(plan, context)
        except CheckpointError:
            # No later run could use what was written.
            staging.remove(plan.place.staging)
            raise
    return publish(plan, context)


def merge_task(plan: Plan, context: Context | None = None) -> None:
    """Do this task's share of the work units (`context.task` of `context.tasks`), those that no ledger has."""
    context = context or Context()
    staging.prepare(plan)
    done = ledgers.read(plan.place.staging, plan.hash)
    share = share_of(plan, context.task, context.tasks)
    numbers = [n for n in share if n not in done.units]
    already = sum(plan.unit(n).hi - plan.unit(n).lo for n in share if n in done.units)
    if not numbers:
        return
    ledger = ledgers.Ledger(plan.place.staging, context.task, plan.hash)
    transfer = Transfer(plan, context, ledger, done.sources)
    try:
        transfer.run(numbers, workers(plan.options.workers, len(numbers)), already)
    finally:
        transfer.close()
        ledger.close()


def share_of(plan: Plan, task: int, tasks: int) -> list[int]:
    """A task's work units: neighbours, so that each source byte is read by one task, and about as many bytes as others have."""
    lo, hi = (plan.nbytes * k / tasks for k in (task, task + 1))
    share = []
    position = 0
    for number in range(plan.units):
        if lo <= position < hi:
            share.append(number)
        unit = plan.unit(number)
        position += unit.hi - unit.lo
    return share


def resume(
    sources: Sequence[str | os.PathLike[str]] | Checkpoint,
    out: str | os.PathLike[str],
    options: MergeOptions | None = None,
    context: Context | None = None,
) -> dict[str, Any]:
    """Go on with a merge that was interrupted, or publish one whose units are all done.

    Raises:
        OutputExistsError: the unfinished merge has other settings, or its sources have changed.
    """
    return merge(plan_merge(sources, out, options, resuming=True), context)


__all__ = ["merge", "merge_task", "publish", "resume", "share_of"]
