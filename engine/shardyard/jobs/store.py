"""Jobs as folders: everything there is to know about a job is in files, so any process on any login node can ask and act.

A job folder (mode 0700) holds `job.json` (what to do and where), `plan.json`, `events*.jsonl`, `log.txt`, `owner.json` and
`heartbeat` (who runs it), `cancel` (present once somebody asked), `outcome.json` (how it ended) and `attempt.N` (one empty
file a start: whoever makes it may start the worker).  A reader never takes a lock; whole files change only by rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from shardyard.errors import JobError, NoRoomError, UsageError
from shardyard.jobs import events
from shardyard.jobs.events import Event, Offset
from shardyard.jobs.owner import Owner
from shardyard.text import printable

FIRST_PAUSE_S = 0.03
"""Between looks at a job that has just said something; a small merge takes less than a second."""
START_GRACE_S = 5.0
"""How long a try that was begun may go without an owner before another try may begin."""


class State(str, Enum):
    """How a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its process is gone and left no word; `resume` goes on from the last finished unit."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come unless it is resumed."""
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a job is to do."""

    verb: str
    sources: tuple[str, ...]
    out: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    slurm: Mapping[str, str] | None = None
    """Where it runs: None for a process of its own on this machine, else what to ask of Slurm (`partition`, `time`, …)."""

    @property
    def tasks(self) -> int:
        """How many processes share the work."""
        return int((self.slurm or {}).get("tasks", 1))

    def to_json(self) -> dict[str, Any]:
        """The part of job.json that says what to do."""
        return {
            "verb": self.verb,
            "sources": list(self.sources),
            "out": self.out,
            "options": dict(self.options),
            "slurm": None if self.slurm is None else dict(self.slurm),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Read back what `to_json` gave."""
        return cls(
            verb=str(data["verb"]),
            sources=tuple(str(s) for s in data["sources"]),
            out=data.get("out"),
            options=data.get("options") or {},
            slurm=data.get("slurm"),
        )


class Job:
    """One job folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        data = read_json(folder / "job.json")
        if data is None:
            raise JobError(f"{printable(str(folder))} is no job folder: job.json is missing or unreadable.", path=str(folder))
        self.spec = Spec.from_json(data)
        self.created = float(data.get("created", 0.0))

    @property
    def id(self) -> str:
        """Its name; names sort by time."""
        return self.folder.name

    @property
    def title(self) -> str:
        """One line that tells it from others."""
        sources = ", ".join(printable(os.path.basename(s.rstrip("/")) or s) for s in self.spec.sources)
        return f"{self.spec.verb} {sources}" + (
            f" -> {printable(os.path.basename(self.spec.out.rstrip('/')))}" if self.spec.out else ""
        )

    def state(self) -> State:
        """How it is, from its files (and, under Slurm, from what Slurm said last)."""
        outcome = self.outcome()
        if outcome is not None:
            return State(outcome["state"])
        if self.spec.slurm is not None:
            from shardyard.jobs import slurm

            return slurm.state(self)
        owner = self.owner()
        if owner is None:
            return State.QUEUED
        if owner.alive(self.heartbeat()):
            return State.RUNNING
        return State.CANCELLED if self.cancel_asked else State.LOST

    def where(self) -> str:
        """Where it runs or waits, in a few words, when that is not this machine; else empty."""
        if self.spec.slurm is not None:
            from shardyard.jobs import slurm

            return slurm.describe(self)
        owner = self.owner()
        return "" if owner is None or owner.here else f"on {printable(owner.host)}"

    def outcome(self) -> dict[str, Any] | None:
        """How it ended: `{"state", "time", …}` with the error's payload where it failed; None before it ended."""
        outcome = read_json(self.folder / "outcome.json")
        return outcome if outcome is not None and outcome.get("state") in ("done", "failed", "cancelled") else None

    def owner(self, task: int = 0) -> Owner | None:
        """The process that runs it."""
        data = read_json(self.folder / task_name("owner.json", task))
        return None if data is None else Owner.from_json(data)

    def own(self, owner: Owner, task: int = 0) -> None:
        """Record who runs it."""
        write_json(self.folder / task_name("owner.json", task), owner.to_json())

    def heartbeat(self, task: int = 0) -> float | None:
        """When it last said that it lives."""
        try:
            return float((self.folder / task_name("heartbeat", task)).read_text())
        except (OSError, ValueError):
            return None

    def plan(self) -> dict[str, Any] | None:
        """The plan, once it was made."""
        return read_json(self.folder / "plan.json")

    def events(self, offset: Offset | None = None) -> tuple[list[Event], dict[str, int]]:
        """Events after `offset` (None: all) and the offset to go on from."""
        return events.read(self.folder, offset)

    def last_progress(self) -> Event | None:
        """The newest progress of the whole job."""
        combined = events.Combined()
        found = [e for e in combined.take(self.events()[0]) if e["event"] == "progress"]
        return found[-1] if found else None

    def follow(self, offset: dict[str, int] | None = None, every_s: float = 0.3) -> Iterator[Event]:
        """Events as they come, several tasks' progress made one, until the job has ended.

        `offset` says where to begin, and is kept up to date in place: another `follow` with it goes on from there.
        """
        combined = events.Combined()
        offset = {} if offset is None else offset
        pause = FIRST_PAUSE_S
        while True:
            refresh([self])
            # Asked before reading: whatever was written before it ended is then read for certain.
            ended = self.state().ended
            new, after = self.events(offset)
            offset.update(after)
            yield from combined.take(new)
            if ended:
                return
            pause = FIRST_PAUSE_S if new else min(every_s, pause * 1.5)
            time.sleep(pause)

    def start(self) -> None:
        """Start its worker (or hand it to Slurm). One that runs already is refused."""
        from shardyard.jobs import launch

        launch.start(self)

    def resume(self) -> None:
        """Start it again: it goes on from the last finished unit."""
        state = self.state()
        if state is State.DONE:
            raise UsageError(f"Job {self.id} is done; there is nothing to resume.")
        if state is State.RUNNING or (state is State.QUEUED and self.spec.slurm is not None):
            raise UsageError(f"Job {self.id} is {state.value} already; follow it with: shardyard jobs follow {self.id}")
        self.start()

    def cancel(self) -> bool:
        """Ask it to stop at the next unit; returns False when it had ended already.

        A file asks, never a signal: it works from every machine, and cannot hit a worker that has not set its handlers yet.
        """
        state = self.state()
        if state.ended and state is not State.LOST:
            return False
        (self.folder / "cancel").touch(0o600)
        if self.spec.slurm is not None:
            from shardyard.jobs import slurm

            slurm.cancel(self)
            return True
        if self.owner() is None or state is State.LOST:
            self.end(State.CANCELLED, {"error": "Cancelled", "message": "Cancelled."})
        return True

    @property
    def cancel_asked(self) -> bool:
        """Whether somebody asked it to stop."""
        return os.path.lexists(self.folder / "cancel")

    def end(self, state: State, payload: Mapping[str, Any] | None = None) -> None:
        """Record how it ended."""
        write_json(self.folder / "outcome.json", {**(payload or {}), "state": state.value, "time": time.time()})

    def end_task(self, task: int, state: State, payload: Mapping[str, Any]) -> None:
        """Record how one of several tasks ended; the publisher then says how the job did."""
        write_json(self.folder / f"ended.{task}.json", {**payload, "state": state.value, "time": time.time()})

    def ended_tasks(self) -> list[dict[str, Any]]:
        """How those tasks ended that left a word."""
        found = (read_json(self.folder / f"ended.{task}.json") for task in range(self.spec.tasks))
        return [ended for ended in found if ended is not None]

    def begin_attempt(self) -> int:
        """Take the right to start it, forgetting how the last try ended; returns which try this is.

        Raises:
            JobError: another process took it in this very moment.
        """
        latest = max((int(n[8:]) for n in os.listdir(self.folder) if n.startswith("attempt.") and n[8:].isdigit()), default=0)
        attempt = latest + 1
        if latest and self.owner() is None and self.outcome() is None and time.time() - self._started(latest) < START_GRACE_S:
            raise JobError(f"Job {self.id} is being started by another process.")
        try:
            os.close(os.open(self.folder / f"attempt.{attempt}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise JobError(f"Job {self.id} is being started by another process.") from None
        for name in os.listdir(self.folder):
            if name.partition(".")[0] in ("outcome", "ended", "cancel", "owner", "heartbeat", "slurm"):
                (self.folder / name).unlink(missing_ok=True)
        return attempt

    def _started(self, attempt: int) -> float:
        try:
            return (self.folder / f"attempt.{attempt}").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def remove(self) -> None:
        """Delete the job folder; the job must have ended."""
        if not self.state().ended:
            raise UsageError(f"Job {self.id} has not ended; cancel it first: shardyard jobs cancel {self.id}")
        shutil.rmtree(self.folder)


def root() -> Path:
    """The folder that holds the job folders."""
    own = os.environ.get("SHARDYARD_STATE")
    if own:
        return Path(own).absolute() / "jobs"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "shardyard" / "jobs"


def create(spec: Spec) -> Job:
    """A new job that waits to be started. Paths in `spec` become absolute: the worker has another current folder."""
    spec = Spec(
        spec.verb,
        tuple(os.path.abspath(s) for s in spec.sources),
        None if spec.out is None else os.path.abspath(spec.out),
        spec.options,
        spec.slurm,
    )
    now = time.time()
    try:
        folder = _new_folder(now)
        write_json(folder / "job.json", {"schema": 1, "id": folder.name, "created": now, **spec.to_json()})
    except OSError as error:
        raise NoRoomError(
            f"The job folder cannot be written in {printable(str(root()))} ({error.strerror}); "
            "set SHARDYARD_STATE to a folder that can.",
            path=str(root()),
        ) from error
    return Job(folder)


def _new_folder(now: float) -> Path:
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        folder = root() / (time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now * 1000) % 1000:03d}")
        try:
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            now += 0.001


def jobs() -> list[Job]:
    """All jobs, the newest first. A folder that is none of ours is passed over."""
    try:
        names = sorted(os.listdir(root()), reverse=True)
    except OSError:
        return []
    found = []
    for name in names:
        with contextlib.suppress(JobError, KeyError, TypeError):
            found.append(Job(root() / name))
    return found


def refresh(jobs: Sequence[Job]) -> None:
    """Ask Slurm how its jobs among these are; cheap to call often, for it asks ever more seldom while nothing changes."""
    if any(job.spec.slurm is not None for job in jobs):
        from shardyard.jobs import slurm

        slurm.refresh(jobs)


def find(name: str) -> Job:
    """The job with this ID, or with the only ID that starts or ends so."""
    every = jobs()
    matches = [job for job in every if job.id == name] or [
        job for job in every if job.id.startswith(name) or job.id.endswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise UsageError(f"There is no job {printable(name)}; see: shardyard jobs list")
    raise UsageError(f"{len(matches)} jobs match {printable(name)}: {_some([j.id for j in matches])}. Give more of the ID.")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def task_name(name: str, task: int) -> str:
    """A file of one task: that of task 0 has the plain name, so a job with one task has plain names only."""
    if not task:
        return name
    stem, dot, extension = name.partition(".")
    return f"{stem}.{task}{dot}{extension}"


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is none that can be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace the file in one step: a reader sees the old or the new content, never a part."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(data, file, ensure_ascii=True, indent=1)
    os.replace(fresh, path)
