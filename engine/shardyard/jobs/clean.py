"""What jobs left behind: staging folders of outputs that were never published, and folders of jobs that did not end well.

Listing deletes nothing.  A staging folder that a job still writes, or that something changed a moment ago, is no leftover.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardyard.jobs import store
from shardyard.jobs.folder import State
from shardyard.jobs.store import BrokenJob, Job
from shardyard.operations.place import Place

STAGING = ".shardyard-partial"
IN_USE_S = 120.0
"""A staging folder without a job that changed within this time may belong to a job of another machine."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that may be removed."""

    path: Path
    kind: str
    """`staging` (an output that was not finished) or `job` (the folder of a job that did not end well)."""
    nbytes: int
    """Bytes that it takes on the disk."""
    job: Job | None
    """The job it belongs to, where one is known."""
    why: str

    def remove(self) -> None:
        """Delete it."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()


def leftovers(folders: Iterable[Path] = (), *, done: bool = False) -> list[Leftover]:
    """All of them: of known jobs, beside their outputs, and in `folders`. `done`: also folders of jobs that ended well."""
    jobs = store.jobs()
    store.refresh(jobs)
    states = {job.id: job.state() for job in jobs}
    busy = {staging_of(job) for job in jobs if not states[job.id].ended}
    owners: dict[Path, Job] = {}
    for job in jobs:
        place = staging_of(job)
        if place is not None:
            owners.setdefault(place, job)
    found = []
    places = {p.parent for p in owners} | {Path(f).absolute() for f in folders}
    # A shrink in place has a file of that name beside each source while it works on it.
    places |= {
        Path(s) if os.path.isdir(s) else Path(s).parent for j in jobs if j.spec.options.get("in_place") for s in j.spec.sources
    }
    for path in sorted(set(_staging_in(places)) - {p for p in busy if p is not None}):
        owner = owners.get(path)
        size, newest = _measure(path)
        if owner is not None or time.time() - newest > IN_USE_S:
            why = f"job {owner.id} is {states[owner.id].value}" if owner is not None else "no job of yours knows it"
            found.append(Leftover(path, "staging", size, owner, why))
    for job in jobs:
        state = states[job.id]
        broken = isinstance(job, BrokenJob)
        if state.ended and (done or broken or state is not State.DONE):
            why = f"job {job.id} is {job.title if broken else state.value}"
            found.append(Leftover(job.folder, "job", _measure(job.folder)[0], job, why))
    return found


def staging_of(job: Job) -> Path | None:
    """Where the job's output grows before it is published; None for one that writes nothing, or in place."""
    return None if job.spec.out is None else Place.of(job.spec.out).staging


def _staging_in(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield from (folder / e.name for e in entries if e.name.endswith(STAGING) and not e.is_symlink())


def _measure(path: Path) -> tuple[int, float]:
    """(bytes on the disk, newest change) of everything below; staged files have holes, so their sizes would mislead."""
    size, newest = 0, 0.0
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            try:
                status = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            size += status.st_blocks * 512
            newest = max(newest, status.st_mtime)
    return size, newest
