"""What the verbs that write share: their options, starting the job, and showing it until it ends.

The work always runs in a process of its own, so that it outlives this one: Ctrl-C cancels it, a dropped line does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardyard.cli.arguments import count, path
from shardyard.cli.exits import ExitCode
from shardyard.errors import UsageError

if TYPE_CHECKING:
    from shardyard.jobs.store import Job

DTYPES = ("keep", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16")


def add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `merge` and `export` (CONTRACT section 1)."""
    parser.add_argument("sources", nargs="+", type=path, metavar="SRC", help="a checkpoint; several are the folders of one")
    parser.add_argument(
        "-o", "--output", required=True, type=path, metavar="OUT", help="a folder, or a .safetensors, .bin, .pt or .pth"
    )
    what = parser.add_argument_group("what")
    what.add_argument("--tag", metavar="T", help="a step such as global_step10; default: what `latest` says")
    what.add_argument("--part", metavar="P", help="a component: model, ema, masters, optimizer, …; default: the model")
    what.add_argument("--select", action="append", default=[], metavar="GLOB", help="only these tensors; repeatable")
    what.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="not these tensors; repeatable")
    what.add_argument("--trainable-only", action="store_true", help="leave frozen weights out")
    what.add_argument("--allow-incomplete", action="store_true", help="write what can be rebuilt and list what cannot")
    how = parser.add_argument_group("how")
    how.add_argument("--dtype", choices=DTYPES, help="default: keep as stored; export: what config.json names")
    how.add_argument("--keep-dtype", action="append", metavar="GLOB", help="tensors that are not cast; repeatable")
    how.add_argument("--allow-overflow", action="store_true", help="let finite values become infinite in a cast")
    how.add_argument("--format", choices=("safetensors", "torch"), help="default: safetensors, or what OUT's ending says")
    how.add_argument("--max-shard-size", metavar="SIZE", help="such as 5GB (the default), 500MB; none for one file")
    how.add_argument("--tied", choices=("auto", "once", "both"), default="auto", help="how often tied weights are written")
    how.add_argument("--strip-prefix", action="append", metavar="PREFIX", help="auto (default), none, or a prefix; repeatable")
    how.add_argument("--lora", choices=("keep", "split", "fold"), help="default: keep; export: split")
    how.add_argument("--like", type=path, metavar="DIR", help="a base model: names and shapes are checked against it")
    how.add_argument("--overwrite", action="store_true", help="replace an OUT that this program wrote")
    how.add_argument(
        "--verify", choices=("sample", "full", "none"), default="sample", help="how much is checked (default: sample)"
    )
    add_job_arguments(parser)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every verb that runs as a job."""
    run_as = parser.add_argument_group("run")
    run_as.add_argument("--workers", type=count, metavar="N", help="threads; default: from the cores this process may use")
    run_as.add_argument("--dry-run", action="store_true", help="the plan only; no tensor data is read")
    run_as.add_argument("--detach", action="store_true", help="leave it running in the background")
    run_as.add_argument(
        "--slurm", nargs="?", const="", metavar="KEY=VALUE,…", help="run as a Slurm job: partition, time, mem, nodes, …"
    )
    run_as.add_argument("--json", action="store_true", help="events, then a result, one JSON object a line")


def merge_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as a job keeps them: only what was asked for."""
    found = {
        name: getattr(args, name)
        for name in (
            "tag", "part", "select", "exclude", "trainable_only", "allow_incomplete", "dtype", "keep_dtype", "allow_overflow",
            "format", "max_shard_size", "tied", "strip_prefix", "lora", "overwrite", "verify", "workers",
        )
    }  # fmt: skip
    found["like"] = None if args.like is None else str(args.like.absolute())
    return {name: value for name, value in found.items() if value not in (None, [], False)}


def slurm_settings(text: str | None) -> dict[str, str] | None:
    """`partition=cpu,time=1:00:00` as a dict; None where Slurm was not asked for."""
    if text is None:
        return None
    settings = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--slurm takes KEY=VALUE pairs such as partition=cpu,time=1:00:00, not {item!r}.")
        settings[key.strip()] = value.strip()
    return settings


def run(verb: str, args: argparse.Namespace, options: Mapping[str, Any], *, out: Path | None = None) -> int:
    """Plan only, or start the job and show it until it ends (or leave it, with `--detach`)."""
    out = out if out is not None else args.output
    if args.dry_run:
        return dry_run(verb, args.sources, out, options, as_json=args.json)
    from shardyard.jobs import store
    from shardyard.jobs.folder import Spec

    sources = tuple(str(s) for s in args.sources)
    spec = Spec(verb, sources, None if out is None else str(out), options, slurm_settings(args.slurm))
    job = store.create(spec)
    job.start()
    if args.detach:
        print(json.dumps({"event": "result", "job": job.id}) if args.json else f"Job {job.id} runs in the background.")
        return ExitCode.DONE
    return follow(job, as_json=args.json)


def dry_run(verb: str, sources: list[Path], out: Path | None, options: Mapping[str, Any], *, as_json: bool) -> int:
    """Make the plan and print it."""
    from shardyard.jobs import verbs

    plan = verbs.plan(verb, [str(s) for s in sources], None if out is None else str(out), options)
    if as_json:
        print(json.dumps({"event": "plan", **plan}))
        print(json.dumps({"event": "result", "dry_run": True}))
    else:
        from shardyard.cli.panel import plan_lines

        print("\n".join(plan_lines(plan)))
    return ExitCode.DONE


def follow(job: Job, *, as_json: bool, cancel_on_interrupt: bool = True, offset: dict[str, int] | None = None) -> int:
    """Show a job until it ends, from `offset` on; Ctrl-C cancels it, or only looks away. Returns the exit code its end means."""
    from shardyard.cli import panel
    from shardyard.cli.exits import code_of, report
    from shardyard.jobs import events

    show: Callable[[Mapping[str, Any]], None] = _print_json if as_json else panel.Panel(sys.stderr).show
    code = ExitCode.FAILED
    seen = {} if offset is None else offset
    try:
        for event in job.follow(seen):
            show(event)
    except KeyboardInterrupt:
        if not cancel_on_interrupt:
            print(f"\nThe job goes on; look again with: shardyard jobs follow {job.id}", file=sys.stderr)
            return ExitCode.CANCELLED
        job.cancel()
        for event in job.follow(seen):
            show(event)
    outcome = job.outcome()
    if not as_json:
        panel.finish(sys.stderr)
    state = job.state().value
    if state == "done":
        if not as_json and outcome is not None:
            result: Mapping[str, Any] = next((e for e in reversed(job.events()[0]) if e["event"] == "result"), {})
            print("\n".join(panel.result_lines(result)))
        return ExitCode.DONE
    if outcome is None and state != "cancelled":
        print(f"Job {job.id} was lost: its process is gone. Go on with: {job.go_on}", file=sys.stderr)
        return code
    error = events.error_of(outcome or {"error": "Cancelled", "message": "Cancelled."})
    report(error)
    return code_of(error)


def _print_json(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)
