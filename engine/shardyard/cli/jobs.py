"""`shardyard jobs`: list, show, follow, cancel, resume and clean background jobs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardyard.cli.arguments import path
from shardyard.cli.exits import ExitCode
from shardyard.cli.panel import duration, progress_line, size
from shardyard.text import printable

if TYPE_CHECKING:
    from shardyard.jobs.store import Job


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("jobs", help="list, show, follow, cancel, resume and clean background jobs")
    what = parser.add_subparsers(dest="action", metavar="ACTION")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="JSON on stdout")
    one = argparse.ArgumentParser(add_help=False, parents=[as_json])
    one.add_argument("id", metavar="ID", help="a job's ID, or enough of its start or end")
    what.add_parser("list", parents=[as_json], help="all jobs, the newest first (the default)")
    what.add_parser("show", parents=[one], help="everything about one job")
    what.add_parser("follow", parents=[one], help="its progress until it ends; Ctrl-C only stops looking")
    what.add_parser("cancel", parents=[one], help="stop it at its next unit of work; finished units are kept")
    resume = what.add_parser("resume", parents=[one], help="start it again: it does only what is missing")
    resume.add_argument("--detach", action="store_true", help="leave it running in the background")
    clean = what.add_parser("clean", parents=[as_json], help="list what dead jobs left behind, and remove it")
    clean.add_argument("folders", nargs="*", type=path, metavar="DIR", help="look for unfinished outputs here too")
    clean.add_argument("--yes", action="store_true", help="remove without asking")
    clean.add_argument("--done", action="store_true", help="the records of jobs that are done, too")
    parser.set_defaults(json=False)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from shardyard.jobs import store

    action = args.action or "list"
    if action == "list":
        return _list(args)
    if action == "clean":
        return _clean(args)
    job = store.find(args.id)
    store.refresh([job])
    actions = {"show": _show, "follow": _follow, "cancel": _cancel, "resume": _resume}
    return actions[action](job, args)


def _list(args: argparse.Namespace) -> int:
    from shardyard.jobs import store

    jobs = store.jobs()
    store.refresh(jobs)
    if args.json:
        print(json.dumps({"schema": 1, "jobs": [summary(job) for job in jobs]}))
        return ExitCode.DONE
    if not jobs:
        print("No jobs.")
    for job in jobs:
        state = job.state()
        progress = job.last_progress() if not state.ended else None
        share = f"{progress['done'] / progress['total']:4.0%}" if progress and progress.get("total") else "    "
        where = job.where()
        print(f"{job.id}  {state.value:<9} {share}  {job.title}" + (f"  [{where}]" if where else ""))
    return ExitCode.DONE


def summary(job: Job) -> dict[str, Any]:
    """A job as JSON."""
    owner = job.owner()
    found: dict[str, Any] = {
        "id": job.id,
        "state": job.state().value,
        "created": job.created,
        "folder": str(job.folder),
        **job.spec.to_json(),
        "host": None if owner is None else owner.host,
        "pid": None if owner is None else owner.pid,
        "heartbeat": job.heartbeat(),
        "outcome": job.outcome(),
        "progress": job.last_progress(),
    }
    if job.spec.slurm is not None:
        from shardyard.jobs import slurm

        found["slurm_job"] = slurm.details(job)
    return found


def _show(job: Job, args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({"schema": 1, **summary(job), "plan": job.plan()}))
        return ExitCode.DONE
    for label, text in _facts(job):
        print(f"{label:<10}{text}")
    return ExitCode.DONE


def _facts(job: Job) -> list[tuple[str, str]]:
    state, owner, beat = job.state(), job.owner(), job.heartbeat()
    facts = [("job", job.id), ("state", state.value), ("what", job.spec.verb)]
    facts += [("from", printable(source)) for source in job.spec.sources]
    if job.spec.out is not None:
        facts.append(("to", printable(job.spec.out)))
    facts += [("option", printable(f"{name} = {value}")) for name, value in job.spec.options.items()]
    facts.append(("created", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.created))))
    if owner is not None:
        facts.append(("runs on" if not state.ended else "ran on", f"{printable(owner.host)}, process {owner.pid}"))
    if beat is not None and not state.ended:
        facts.append(("heartbeat", f"{duration(time.time() - beat)} ago"))
    if job.spec.slurm is not None:
        facts.append(("slurm", job.where()))
    progress = job.last_progress()
    if progress is not None:
        facts.append(("progress", progress_line(progress)))
        facts.append(("disk", f"{size((progress.get('disk') or {}).get('free'))} free"))
    return [*facts, *_end_facts(job, job.outcome()), ("folder", printable(str(job.folder)))]


def _end_facts(job: Job, outcome: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    facts = []
    if outcome is not None and outcome.get("message"):
        facts.append(("ended", printable(str(outcome["message"]))))
    state = job.state().value
    if state == "lost":
        facts.append(("ended", "its process is gone: killed, out of memory, or the machine was restarted"))
    if state in ("lost", "failed", "cancelled"):
        facts.append(("go on", job.go_on))
    return facts


def _follow(job: Job, args: argparse.Namespace) -> int:
    from shardyard.cli import operation

    return operation.follow(job, as_json=args.json, cancel_on_interrupt=False)


def _cancel(job: Job, args: argparse.Namespace) -> int:
    asked = job.cancel()
    if args.json:
        print(json.dumps({"schema": 1, "id": job.id, "asked": asked, "state": job.state().value}))
    elif not asked:
        print(f"Job {job.id} had ended already ({job.state().value}).")
    elif job.state().value == "cancelled":
        print(f"Job {job.id} is cancelled.")
    else:
        print(f"Job {job.id} was asked to stop; it ends at its next unit of work.")
    return ExitCode.DONE


def _resume(job: Job, args: argparse.Namespace) -> int:
    from shardyard.cli import operation

    _, offset = job.events()
    job.resume()
    if args.detach:
        print(json.dumps({"event": "result", "job": job.id}) if args.json else f"Job {job.id} runs in the background.")
        return ExitCode.DONE
    return operation.follow(job, as_json=args.json, offset=offset)


def _clean(args: argparse.Namespace) -> int:
    from shardyard.jobs import clean

    found = clean.leftovers(args.folders, done=args.done)
    if not args.json:
        for item in found:
            print(f"{size(item.nbytes):>10}  {printable(str(item.path))}  ({item.why})")
    remove = args.yes or (bool(found) and not args.json and _consent(sum(item.nbytes for item in found)))
    for item in found if remove else ():
        item.remove()
    if args.json:
        rows = [{"path": str(i.path), "kind": i.kind, "bytes": i.nbytes, "job": i.job and i.job.id, "why": i.why} for i in found]
        print(json.dumps({"schema": 1, "leftovers": rows, "removed": remove}))
    elif not found:
        print("Nothing is left over.")
    elif remove:
        print(f"Removed {len(found)}.")
    else:
        print("Nothing was removed; add --yes to remove all of these.")
    return ExitCode.DONE


def _consent(nbytes: int) -> bool:
    """Ask a person; nobody at the terminal means no."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        answer = input(f"Remove all of these ({size(nbytes)})? Jobs among them cannot be resumed then. [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
