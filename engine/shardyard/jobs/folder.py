"""A job's folder: everything there is to know about a job is in files, so any process on any login node can ask.

It holds (mode 0700) `job.json` (what to do and where), `plan.json`, `events*.jsonl`, `log.txt`, `owner.json` and `heartbeat`
(who runs it), `cancel` (present once somebody asked), `outcome.json` (how it ended) and `attempt.N` (one empty file a start:
whoever makes it may start the worker).  A reader never takes a lock; whole files change only by rename.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

from shardyard.errors import JobError
from shardyard.jobs import events
from shardyard.jobs.events import Event, Offset
from shardyard.jobs.owner import Owner
from shardyard.text import printable

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
        """Read back what `to_json` gave; a ValueError where the data is something else."""
        verb, sources, out = data.get("verb"), data.get("sources"), data.get("out")
        options, slurm = data.get("options") or {}, data.get("slurm")
        sound = isinstance(verb, str) and isinstance(sources, list) and isinstance(out, (str, NoneType))
        if not (sound and isinstance(options, dict) and isinstance(slurm, (dict, NoneType))):
            raise ValueError("not what a job is to do")
        return cls(str(verb), tuple(str(s) for s in sources or ()), out, options, slurm)


class JobFolder:
    """What the files of one job say, and what its worker adds to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            data = read_json(folder / "job.json") or {}
            self.spec = Spec.from_json(data)
            self.created = float(data.get("created", 0.0))
        except (TypeError, ValueError):
            text = f"{printable(str(folder))} is no job folder: job.json is missing or unreadable."
            raise JobError(text, path=str(folder)) from None

    @property
    def id(self) -> str:
        """Its name; names sort by time."""
        return self.folder.name

    @property
    def title(self) -> str:
        """One line that tells it from others."""
        sources = ", ".join(printable(os.path.basename(s.rstrip("/")) or s) for s in self.spec.sources)
        verb = "inspect --deep" if self.spec.verb == "inspect-deep" else self.spec.verb
        return f"{verb} {sources}" + (f" -> {printable(os.path.basename(self.spec.out.rstrip('/')))}" if self.spec.out else "")

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
        # One that Slurm has taken is started, though no node may have run it yet.
        begun = self.owner() is not None or self.outcome() is not None or (self.folder / "slurm.json").exists()
        if latest and not begun and time.time() - self._started(latest) < START_GRACE_S:
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
