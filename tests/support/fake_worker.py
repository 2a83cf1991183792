"""A worker whose verbs are made for tests: `count` makes so many steps and waits a while in each."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardyard.errors import IncompleteError, JobError
from shardyard.findings import Finding, Severity
from shardyard.jobs import worker
from shardyard.jobs.store import Job
from shardyard.operations.context import Context, Progress

COMMAND = (sys.executable, str(Path(__file__).resolve()))


def count(job: Job, context: Context) -> Mapping[str, Any]:
    """Make `steps` steps of 100 bytes, waiting `wait` seconds in each; steps that an earlier try made are not made again."""
    steps, wait = int(job.spec.options.get("steps", 5)), float(job.spec.options.get("wait", 0.0))
    ledger = Path(str(job.spec.out) + ".ledger")
    made = len(ledger.read_text().splitlines()) if ledger.exists() else 0
    context.plan({"steps": steps})
    for step in range(made, steps):
        context.check()
        time.sleep(wait)
        with ledger.open("a") as file:
            file.write(f"{step}\n")
        context.progress(Progress((step + 1) * 100, steps * 100, step * 100, step * 50, f"step {step}"))
    return {"steps": steps, "made_now": steps - made, "pid": os.getpid()}


def chatter(job: Job, context: Context) -> Mapping[str, Any]:
    """Report as fast as possible for a while, then say nothing for a while."""
    until = time.monotonic() + float(job.spec.options["talk"])
    calls = 0
    while time.monotonic() < until:
        calls += 1
        context.progress(Progress(calls, 10**9, 0, 0, "talk"))
    time.sleep(float(job.spec.options["silence"]))
    return {"calls": calls}


def fail(job: Job, context: Context) -> Mapping[str, Any]:
    """Fail in the way asked for."""
    context.finding(Finding("bloat", Severity.WARNING, "Half of it is unused.", nbytes=5))
    context.message("About to fail.")
    how = job.spec.options["how"]
    if how == "ours":
        raise IncompleteError("Rank 3 is missing.", code="missing-rank", path="x.pt", tensors=("a", "b"))
    if how == "full":
        raise OSError(errno.ENOSPC, "No space left on device", "/some/where")
    if how == "quota":
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "/some/where")
    if how == "memory":
        raise MemoryError
    if how == "spin":
        while True:
            context.check()
    raise ZeroDivisionError


def modules(job: Job, context: Context) -> Mapping[str, Any]:
    """Which heavy modules a worker has before its operation asked for any."""
    return {"heavy": sorted({"numpy", "torch", "textual", "rich"} & set(sys.modules))}


def share(job: Job, context: Context) -> Mapping[str, Any]:
    """Steps as `count`, shared out among the tasks; each keeps a ledger of its own."""
    steps, wait = int(job.spec.options["steps"]), float(job.spec.options["wait"])
    mine = range(context.task, steps, context.tasks)
    context.plan({"steps": steps})
    for number, step in enumerate(mine):
        if step in _shared(job):
            continue
        context.check()
        time.sleep(wait)
        with open(f"{job.spec.out}.ledger.{context.task}", "a") as file:
            file.write(f"{step} {os.environ.get('SLURMD_NODENAME')}\n")
        context.progress(Progress((number + 1) * 100, len(mine) * 100, 0, 0, f"step {step}"))
    if context.tasks == 1:
        return share_publish(job, context)
    return {}


def share_publish(job: Job, context: Context) -> Mapping[str, Any]:
    """Done when the union of the ledgers is every step."""
    done = _shared(job)
    missing = int(job.spec.options["steps"]) - len(done)
    if missing:
        raise JobError(f"{missing} steps are missing.")
    return {"steps": len(done), "nodes": sorted(set(done.values()))}


def _shared(job: Job) -> dict[int, str]:
    out = Path(str(job.spec.out))
    lines = [line for file in out.parent.glob(f"{out.name}.ledger.*") for line in file.read_text().splitlines()]
    return {int(line.split()[0]): line.split()[1] for line in lines}


VERBS = {"count": count, "chatter": chatter, "fail": fail, "modules": modules, "share": share, "share-publish": share_publish}

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], VERBS))
