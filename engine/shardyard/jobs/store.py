"""The jobs there are: making, finding, starting, following and stopping them, from any process on any login node."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardyard.errors import JobError, NoRoomError, UsageError
from shardyard.jobs import events, launch, slurm
from shardyard.jobs.events import Event
from shardyard.jobs.folder import START_GRACE_S, JobFolder, Spec, State, write_json
from shardyard.text import printable

FIRST_PAUSE_S = 0.03
"""Between looks at a job that has just said something; a small merge takes less than a second."""
_ID = re.compile(r"\d{8}-\d{6}-\d{3}", re.ASCII)


class Job(JobFolder):
    """One job: its folder, and what can be done with it."""

    def state(self) -> State:
        """How it is, from its files (and, under Slurm, from what Slurm said last)."""
        outcome = self.outcome()
        if outcome is not None:
            return State(outcome["state"])
        if self.spec.slurm is not None:
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
            return slurm.describe(self)
        owner = self.owner()
        return "" if owner is None or owner.here else f"on {printable(owner.host)}"

    @property
    def go_on(self) -> str:
        """The command that goes on from where it stopped."""
        return f"shardyard jobs resume {self.id}"

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
            launch.pause(self, pause)

    def start(self) -> None:
        """Start its worker (or hand it to Slurm). One that runs already is refused."""
        attempt = self.begin_attempt()
        if self.spec.slurm is not None:
            slurm.submit(self, attempt)
        else:
            launch.spawn(self)

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
            slurm.cancel(self)
            return True
        if self.owner() is None or state is State.LOST:
            self.end(State.CANCELLED, {"error": "Cancelled", "message": "Cancelled."})
        return True

    def remove(self) -> None:
        """Delete the job folder; the job must have ended."""
        if not self.state().ended:
            raise UsageError(f"Job {self.id} has not ended; cancel it first: shardyard jobs cancel {self.id}")
        shutil.rmtree(self.folder)


class BrokenJob(Job):
    """A job folder whose job.json is lost: what it was to do is not known, so it is only shown and removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = Spec("unknown", ())
        self.created = float(calendar.timegm(time.strptime(folder.name[:15], "%Y%m%d-%H%M%S")))

    @property
    def title(self) -> str:
        return "broken: job.json is missing or damaged"

    def outcome(self) -> dict[str, Any] | None:
        outcome, owner = super().outcome(), self.owner()
        if outcome is None and owner is not None and owner.alive(self.heartbeat()):
            return None
        return outcome or {
            "state": State.FAILED.value,
            "time": self.created,
            "error": "JobError",
            "message": f"What job {self.id} was to do is not known: its job.json is missing or damaged. Run the command again.",
        }

    @property
    def go_on(self) -> str:
        return "shardyard jobs clean"

    def resume(self) -> None:
        raise JobError(f"Job {self.id} cannot be resumed: its job.json is missing or damaged. Run the command again.")


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
    """All jobs, the newest first, broken ones too. A folder that is none of ours is passed over."""
    try:
        names = sorted(os.listdir(root()), reverse=True)
    except OSError:
        return []
    return [job for name in names if (job := _job(root() / name)) is not None]


def _job(folder: Path) -> Job | None:
    try:
        return Job(folder)
    except JobError:
        pass
    if not _ID.fullmatch(folder.name) or not folder.is_dir():
        return None
    with contextlib.suppress(ValueError):
        job = BrokenJob(folder)
        # Whoever makes a job makes its folder first: a fresh one without job.json is not broken.
        return job if time.time() - job.created > START_GRACE_S else None
    return None


def refresh(jobs: Sequence[Job]) -> None:
    """Ask Slurm how its jobs among these are; cheap to call often, for it asks ever more seldom while nothing changes."""
    if any(job.spec.slurm is not None for job in jobs):
        slurm.refresh(jobs)


def find(name: str) -> Job:
    """The job with this ID, or with the only ID that starts or ends so."""
    if not name:
        raise UsageError("No job's ID was given; see: shardyard jobs list")
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
