"""Jobs that a Slurm cluster runs: the same job folder and the same events, written by one worker a task.

`sbatch` starts the tasks, `squeue` is asked once for all jobs and ever more seldom while nothing changes, `scancel` stops.  A job
that Slurm no longer knows has ended; its own folder then tells how.  `slurm.json` keeps what Slurm said last.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardyard.errors import JobError, ShardyardError, UsageError
from shardyard.jobs import launch
from shardyard.jobs.events import error_event
from shardyard.jobs.folder import JobFolder, State, read_json, write_json
from shardyard.jobs.verbs import VERBS
from shardyard.text import printable

FIRST_GAP_S, LONGEST_GAP_S = 2.0, 60.0
ASKING_S = 10.0
"""A controller that does not answer must not hold up whoever looks at the list."""
GONE = "GONE"
"""Our word for a job that Slurm has forgotten."""

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_AT_WORK = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_OUT_OF_REACH = re.compile(
    r"contact slurm controller|connect|timed out|does not answer|standby|temporarily unable|authentication|munge|"
    r"configuration (?:file|source)|communication|zero bytes|shutdown",
    re.IGNORECASE,
)
"""What sbatch says where no controller answers, or where this machine cannot talk to it."""
_NAMES = {"tasks": "ntasks", "cpus": "cpus-per-task"}
_OURS = {
    "output",
    "error",
    "open-mode",
    "chdir",
    "parsable",
    "job-name",
    "wrap",
    "array",
    "wait",
    "export",
    "no-requeue",
    "requeue",
}


def available() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def submit(job: JobFolder, attempt: int) -> None:
    """Hand the job to Slurm; the job folder gets the script and the number."""
    try:
        options = _options(job.spec.slurm or {})
        if job.spec.tasks > 1 and job.spec.verb in VERBS and f"{job.spec.verb}-publish" not in VERBS:
            raise UsageError(f"{job.spec.verb} is work for one task; leave tasks= out.")
        if not available():
            raise UsageError("There is no sbatch on this machine: --slurm works where Slurm jobs can be submitted.")
        script = job.folder / "slurm.sh"
        script.write_text(_script(job))
        command = ["sbatch", "--parsable", f"--job-name=shardyard-{job.spec.verb}", "--output=log.txt", "--open-mode=append"]
        done = _run([*command, "--requeue", f"--chdir={job.folder}", *options, str(script)])
        if done.returncode != 0:
            raise _refusal(job, _last_line(done.stderr).rstrip("."))
    except ShardyardError as error:
        job.end(State.FAILED, error_event(error))
        raise
    number = done.stdout.strip().split(";")[0]
    write_json(job.folder / "slurm.json", {"id": number, "attempt": attempt, "state": "PENDING", "seen": time.time()})
    _clock.reset()


def _refusal(job: JobFolder, said: str) -> ShardyardError:
    """Slurm's own no is for the settings; that it cannot be asked is nobody's wrong use."""
    if _OUT_OF_REACH.search(said):
        return JobError(
            f"Slurm cannot be asked now ({said}); submit the job later with: shardyard jobs resume {job.id}, "
            "or run it here without --slurm."
        )
    return UsageError(f"Slurm refused the job ({said}); change --slurm's settings, or run it here without --slurm.")


def _options(settings: Mapping[str, str]) -> list[str]:
    """`tasks=4` as `--ntasks=4`: any long option of sbatch, except those that the job folder depends on."""
    options = []
    for key, value in settings.items():
        name = _NAMES.get(key, key.replace("_", "-"))
        if not re.fullmatch(r"[a-z][a-z-]*", name) or name in _OURS:
            raise UsageError(
                f"--slurm cannot take {printable(key)}; it takes partition, time, mem, nodes, tasks, cpus, account, …"
            )
        if key in ("tasks", "nodes", "cpus") and not re.fullmatch(r"[1-9]\d*", value):
            raise UsageError(f"--slurm {key}= takes a number of at least 1, not {printable(value)}.")
        options.append(f"--{name}" if value in ("yes", "true") else f"--{name}={value}")
    return options


def _script(job: JobFolder) -> str:
    """The batch script. Several tasks end before the publisher starts, whatever became of them: it judges by their ledgers."""
    worker = shlex.join([*launch.WORKER, str(job.folder)])
    wanted = ("PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    lines = ["#!/bin/sh"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.environment().items() if name in wanted]
    lines.append(f"cd {shlex.quote(str(job.folder))} || exit 6")
    if job.spec.tasks == 1:
        lines.append(f"exec {worker}")
    else:
        # srun does not take the number of cores from the job by itself.
        cpus = (job.spec.slurm or {}).get("cpus")
        srun = "srun --kill-on-bad-exit=0" + (f" --cpus-per-task={cpus}" if cpus else "")
        lines += [f"{srun} {worker}", f"exec {worker} --publish"]
    return "\n".join(lines) + "\n"


def state(job: JobFolder) -> State:
    """How the job is, from what Slurm said last and from signs of life since."""
    data = read_json(job.folder / "slurm.json")
    if data is None:
        return State.QUEUED
    said = str(data.get("state"))
    if said in _WAITING:
        beats = [beat for task in range(job.spec.tasks) if (beat := job.heartbeat(task)) is not None]
        return State.RUNNING if beats and max(beats) > float(data.get("seen", 0.0)) else State.QUEUED
    if said in _AT_WORK:
        return State.RUNNING
    return State.CANCELLED if said == "CANCELLED" or job.cancel_asked else State.LOST


def details(job: JobFolder) -> dict[str, Any]:
    """What Slurm said last: `id`, `state`, `reason`, `node`, `start`, `seen`; empty before it was submitted."""
    return read_json(job.folder / "slurm.json") or {}


def describe(job: JobFolder) -> str:
    """One line: the number, Slurm's own state, why it waits or where it runs."""
    data = details(job)
    if not data:
        return "not submitted"
    if data["state"] == GONE:
        return f"Slurm job {data['id']}: no longer known to Slurm"
    why = f" ({data['reason']})" if data.get("reason") not in (None, "", "None") else ""
    where = f" on {data['node']}" if data.get("node") else ""
    return printable(f"Slurm job {data['id']}: {data['state'].lower()}{why}{where}")


class _Clock:
    """When to ask again: at once after a change, then after 2, 4, 8 … 60 seconds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._gap = FIRST_GAP_S
        self._next = float("-inf")

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def asked(self, changed: bool) -> None:
        self._gap = FIRST_GAP_S if changed else min(LONGEST_GAP_S, self._gap * 2)
        self._next = time.monotonic() + self._gap


_clock = _Clock()


def refresh(jobs: Iterable[JobFolder], *, now: bool = False) -> None:
    """Ask Slurm about all of these jobs that have not ended, in one call, unless it was asked a moment ago."""
    waiting = {}
    for job in jobs:
        data = details(job) if job.spec.slurm is not None else {}
        if data and job.outcome() is None and data["state"] in _WAITING | _AT_WORK:
            waiting[str(data["id"])] = (job, data)
    if not waiting or not (now or _clock.due()):
        return
    answers = _ask(list(waiting))
    changed = False
    for number, (job, data) in waiting.items():
        answer = answers.get(number) if answers is not None else None
        if answer is not None:
            changed = changed or any(answer.get(key) != data.get(key) for key in ("state", "reason", "node"))
            # Another process may have resumed it meanwhile: only what is said of the same submission is kept.
            if details(job).get("id") == data["id"]:
                write_json(job.folder / "slurm.json", {**data, **answer, "seen": time.time()})
    _clock.asked(changed)


def _ask(numbers: Sequence[str]) -> dict[str, dict[str, str]] | None:
    """What Slurm says of each job; None when it does not answer."""
    done = _run(["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", "--format=%i|%T|%r|%N|%S"], ASKING_S)
    if done.returncode != 0:
        return None
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        fields = line.split("|")
        if len(fields) == 5:
            found[fields[0]] = dict(zip(("state", "reason", "node", "start"), fields[1:], strict=True))
    missing = [number for number in numbers if number not in found]
    if missing:
        found.update({number: {"state": GONE, "reason": "", "node": ""} for number in missing})
        found.update(_accounted(missing))
    return found


def _accounted(numbers: Sequence[str]) -> dict[str, dict[str, str]]:
    """The same from the accounting, where the site has one."""
    question = ["--noheader", "--parsable2", "--allocations", f"--jobs={','.join(numbers)}", "--format=JobID,State,NodeList"]
    done = _run(["sacct", *question], ASKING_S)
    rows = [line.split("|") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return {row[0]: {"state": row[1].split()[0], "reason": "", "node": row[2]} for row in rows if len(row) == 3 and row[1]}


def cancel(job: JobFolder) -> None:
    """`scancel`; a job that had not started is cancelled at once."""
    data = details(job)
    before = state(job)
    if data:
        done = _run(["scancel", str(data["id"])])
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise JobError(f"Slurm did not cancel job {data['id']}: {_last_line(done.stderr)}")
    if before is not State.RUNNING:
        job.end(State.CANCELLED, {"error": "Cancelled", "message": "Cancelled."})
    _clock.reset()


def _run(command: Sequence[str], patience_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    # Within a Slurm job, its own variables would be taken for settings of the new one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in ("SLURM_CONF", "SLURM_CLUSTERS")}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} does not answer ({type(error).__name__})")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(re.sub(r"^\w+: (error: )?", "", lines[-1]) if lines else "it gave no reason")
