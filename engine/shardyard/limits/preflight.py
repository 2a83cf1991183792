"""Refusals that belong before the first data byte: no room on the disk, in the quota, in memory, in the CPU time allowed.

Half an hour of work that ends in "no space left" helps nobody.  Each refusal is one sentence with the bytes or minutes short.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from shardyard.errors import NoRoomError
from shardyard.findings import Finding, Severity
from shardyard.limits import disk, manners, readings
from shardyard.limits.disk import Disk
from shardyard.limits.readings import Readings
from shardyard.text import printable

CPU_S_PER_BYTE = 1.0 / (1 << 30)
"""CPU seconds a byte read or written, at least: copying and its checksum take about half a second a GiB, casts one."""
SPARE_BYTES = 1 << 20
"""File system metadata and our own small files."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an operation will take."""

    out: str | os.PathLike[str]
    write_bytes: int
    """Bytes that it will put at `out`."""
    read_bytes: int = 0
    memory_bytes: int = 0
    """Anonymous memory on top of what the process has."""
    files: int = 1
    there_bytes: int = 0
    """Of `write_bytes`, those that an earlier try left on the disk."""
    verb: str = "This"

    @property
    def missing_bytes(self) -> int:
        """Bytes that still need room."""
        return max(0, self.write_bytes - self.there_bytes) + SPARE_BYTES

    @property
    def cpu_s(self) -> float:
        """CPU seconds, about."""
        return (self.read_bytes + self.write_bytes) * CPU_S_PER_BYTE


def check(need: Need, *, reading: Readings | None = None, place: Disk | None = None) -> list[Finding]:
    """Refuse what cannot end well; returns what is merely tight.

    Raises:
        NoRoomError: the disk, the quota, memory or the CPU time does not suffice.
    """
    place = place or disk.of(need.out)
    reading = reading or readings.read()
    _disk(need, place)
    _memory(need, reading, place)
    _cpu_time(need, reading)
    return _tight(need, place)


def _disk(need: Need, place: Disk) -> None:
    where, missing = printable(str(place.folder)), need.missing_bytes
    if place.quota is not None and missing > place.quota.left and place.quota.left <= place.free:
        raise NoRoomError(
            f"{need.verb} needs {_size(missing)} in {where}, where the {place.quota.source} leaves {_size(place.quota.left)} "
            f"({_size(missing - place.quota.left)} short); free some of it or choose another output.",
            path=str(place.folder),
        )
    if missing > place.free:
        raise NoRoomError(
            f"{need.verb} needs {_size(missing)} in {where}, where {_size(place.free)} are free "
            f"({_size(missing - place.free)} short); free some room or choose another output.",
            path=str(place.folder),
        )
    if place.files_free is not None and place.files_free < need.files + 4 and not need.there_bytes:
        raise NoRoomError(
            f"{need.verb} makes {need.files} files in {where}, where the file system has room for {place.files_free} more; "
            "delete some files or choose another output.",
            path=str(place.folder),
        )


def _memory(need: Need, reading: Readings, place: Disk) -> None:
    available = reading.memory.available
    # Files on a tmpfs are memory: they count like the process's own.
    wanted = need.memory_bytes + (need.missing_bytes if place.in_memory else 0)
    if available is None or wanted <= available:
        return
    limit = reading.memory.limit
    why = f", of a limit of {_size(limit)}" if limit is not None else ""
    raise NoRoomError(
        f"{need.verb} needs {_size(wanted)} of memory and {_size(available)} are available here{why}; "
        f"use fewer workers{_or_slurm(', or a compute node: --slurm mem=…')}."
    )


def _cpu_time(need: Need, reading: Readings) -> None:
    left = reading.cpu_left_s
    if left is not None and need.cpu_s > left:
        raise NoRoomError(
            f"{need.verb} takes about {_duration(need.cpu_s)} of CPU time, and this machine ends a process "
            f"after {_duration(left)} more (ulimit -t); run it in a batch job{_or_slurm(': --slurm')}."
        )


def _tight(need: Need, place: Disk) -> list[Finding]:
    """Room enough, but hardly any left afterwards."""
    left = place.room - need.missing_bytes
    if left >= place.total // 50 or need.missing_bytes < place.room // 10:
        return []
    return [
        Finding(
            "disk-tight",
            Severity.WARNING,
            f"{_size(left)} will be left in {printable(str(place.folder))} afterwards.",
            "Choose another output if others need that room.",
            nbytes=left,
        )
    ]


def _or_slurm(words: str) -> str:
    return words if not manners.in_batch_job() and shutil.which("sbatch") is not None else ""


def _size(nbytes: int) -> str:
    import humanize

    return str(humanize.naturalsize(nbytes, binary=True, format="%.1f")).replace("Bytes", "bytes")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
