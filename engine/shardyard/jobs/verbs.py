"""What a job can do: each verb takes the job and a context, and returns the result. Operations are imported when they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardyard.errors import OutputExistsError, UsageError
from shardyard.jobs.folder import JobFolder, Spec
from shardyard.operations.context import Context

if TYPE_CHECKING:
    from shardyard.operations.merge.plan import Plan

Verb = Callable[[JobFolder, Context], Mapping[str, Any]]


def plan(verb: str, sources: Sequence[str], out: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the verb would do, as `--dry-run` shows it. No tensor data is read.

    Raises:
        ShardyardError: it is refused, and why.
    """
    spec = Spec(verb, tuple(sources), out, options)
    if verb in ("merge", "export"):
        return _plan(spec, resuming=False).to_json()
    if verb == "shrink":
        from shardyard.operations.shrink.planning import plan_shrink

        return plan_shrink(list(sources), out, **options).to_json()
    raise UsageError(f"{verb} has no plan: it writes nothing.")


def _plan(spec: Spec, *, resuming: bool) -> Plan:
    from shardyard.operations.export.plan import plan_export
    from shardyard.operations.merge.options import MergeOptions
    from shardyard.operations.merge.planning import plan_merge

    make = plan_export if spec.verb == "export" else plan_merge
    return make(list(spec.sources), _out(spec), MergeOptions.parse(spec.options), resuming=resuming)


def _out(spec: Spec) -> str:
    if spec.out is None:
        raise UsageError(f"{spec.verb} needs an output.")
    return spec.out


def _plan_or_go_on(job: JobFolder) -> tuple[Plan, bool]:
    """The plan, and whether an earlier try of this job was killed after it had put the output in place."""
    from shardyard.operations.merge import staging

    try:
        return _plan(job.spec, resuming=False), False
    except OutputExistsError:
        made = _plan(job.spec, resuming=True)
        if staging.already_published(made) or staging.published_since(made, job.created, job.folder):
            return made, True
        raise


def merge(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """Merge or export; as one of several tasks only its share, which `merge_publish` then puts in place."""
    from shardyard.operations.merge import run as operation

    made, there = _plan_or_go_on(job)
    if context.tasks == 1 and not there:
        return operation.merge(made, context)
    context.plan(made.to_json())
    if not there:
        operation.merge_task(made, context)
    return _publish(made, context, there=there) if context.tasks == 1 else {}


def merge_publish(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """Put in place what several tasks wrote."""
    made, there = _plan_or_go_on(job)
    return _publish(made, context, there=there)


def _publish(made: Plan, context: Context, *, there: bool) -> Mapping[str, Any]:
    from shardyard.operations.merge import publish

    return publish.published(made) if there else publish.publish(made, context)


def shrink(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """Drop stored bytes that no tensor uses."""
    from shardyard.operations.shrink import planning as shrink_planning
    from shardyard.operations.shrink import run as shrink_run

    sources, out, options = list(job.spec.sources), job.spec.out, job.spec.options
    try:
        plan = shrink_planning.plan_shrink(sources, out, **options)
    except OutputExistsError:
        plan = shrink_planning.plan_shrink(sources, out, **options, resuming=True)
        if not shrink_run.made_since(plan, job.created, job.folder):
            raise
        return shrink_run.made(plan)
    return shrink_run.shrink(plan, context)


def compare(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """Are these the same weights? The rows, which may be many, are in the job folder; the result has the rest."""
    from shardyard.operations.compare.run import ROWS, CompareOptions, compare_paths

    if len(job.spec.sources) != 2:
        raise UsageError("compare takes two checkpoints.")
    a, b = job.spec.sources
    result = compare_paths(a, b, CompareOptions.from_json(job.spec.options), context)
    return {**{key: value for key, value in result.items() if key != "tensors"}, "rows": ROWS}


def stats(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """Exact statistics of tensors. The rows, which may be many, are in the job folder."""
    from shardyard.operations.statistics.run import ROWS, StatsOptions, stats_path

    result = stats_path(_only(job), StatsOptions.from_json(job.spec.options), context)
    return {"path": result["path"], "part": result["part"], "tensors": len(result["tensors"]), "rows": ROWS}


def scan(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """NaN, inf, all-zero and constant tensors, and equal copies."""
    from shardyard.discover import open_checkpoint
    from shardyard.formats.candidate import OpenOptions
    from shardyard.operations.inspect import scan as operation

    options = OpenOptions(tag=job.spec.options.get("tag"), cancelled=context.cancelled)
    return operation.scan(open_checkpoint(list(job.spec.sources), options), context).to_json()


def _only(job: JobFolder) -> str:
    if len(job.spec.sources) != 1:
        raise UsageError(f"{job.spec.verb} takes one checkpoint.")
    return job.spec.sources[0]


def inspect(job: JobFolder, context: Context) -> Mapping[str, Any]:
    """What is here; `inspect-deep` also reads the data."""
    from shardyard.operations.inspect.report import report

    options = job.spec.options
    deep = job.spec.verb == "inspect-deep"
    found = report(
        list(job.spec.sources),
        tensors=bool(options.get("tensors")),
        hashes=bool(options.get("hash")),
        deep=deep,
        tag=options.get("tag"),
        context=context,
    )
    return dict(found)


VERBS: dict[str, Verb] = {
    "merge": merge,
    "merge-publish": merge_publish,
    "export": merge,
    "export-publish": merge_publish,
    "shrink": shrink,
    "compare": compare,
    "stats": stats,
    "scan": scan,
    "inspect-deep": inspect,
}
