"""Memory, CPU and process limits of one process: one pure function over /proc and /sys.

What counts is what ends a process: its anonymous memory, and the working set (usage less the file pages that the kernel would
give back) of the control group with the smallest limit on the path up to the root.  Page cache alone never looks like danger,
and the machine's memory never hides a smaller limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Version 1 groups without a limit say a number near 2^63."""


@dataclass(frozen=True, slots=True)
class Group:
    """One memory control group on the path from the process up to the root."""

    path: str
    limit: int | None
    usage: int
    inactive_file: int

    @property
    def working_set(self) -> int:
        """What cannot simply be given back."""
        return max(0, self.usage - self.inactive_file)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    anon: int
    """Anonymous memory of the process itself."""
    working_set: int | None
    """Of the group with the smallest limit, or of the process's own group where none has a limit."""
    limit: int | None
    """The smallest limit on the path."""
    available: int | None
    """What may still be taken before the machine, a group or a ulimit says no."""

    def to_json(self) -> dict[str, int | None]:
        """As events carry it."""
        return {"anon": self.anon, "working_set": self.working_set, "limit": self.limit, "available": self.available}


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at a process."""

    memory: Memory
    groups: tuple[Group, ...]
    """The process's own group first."""
    machine_available: int | None
    ulimits: Mapping[str, int | None]
    """Soft limits by the kernel's names (`cpu time` in seconds, `address space` in bytes, `processes`, …); None: unlimited."""
    address_space: int
    """Bytes of address space that the process has taken."""
    cpu_s: float
    """CPU seconds it has used."""
    cores: float | None
    """Cores that the control group's quota allows; None: no quota."""

    @property
    def cpu_left_s(self) -> float | None:
        """CPU seconds until the kernel ends it; None: no limit."""
        limit = self.ulimits.get("cpu time")
        return None if limit is None else max(0.0, limit - self.cpu_s)

    @property
    def address_space_left(self) -> int | None:
        """Bytes of address space that it may still take; None: no limit."""
        limit = self.ulimits.get("address space")
        return None if limit is None else max(0, limit - self.address_space)


def read(pid: int | str = "self", root: Path = Path("/")) -> Readings:
    """Look at a process. `root` holds `proc` and `sys`; whatever is missing there is taken as not limited."""
    process = root / "proc" / str(pid)
    status = _status(process / "status")
    ulimits = _ulimits(process / "limits")
    groups = tuple(_memory_groups(root, process))
    machine = _machine_available(root / "proc" / "meminfo")
    size = status.get("VmSize", 0)
    room = [machine, *(g.limit - g.working_set for g in groups if g.limit is not None)]
    room += [None if limit is None else limit - size for limit in (ulimits.get("address space"),)]
    room += [None if limit is None else limit - status.get("VmData", 0) for limit in (ulimits.get("data size"),)]
    known = [max(0, r) for r in room if r is not None]
    tightest = min((g for g in groups if g.limit is not None), key=lambda g: g.limit or 0, default=groups[0] if groups else None)
    memory = Memory(
        anon=status.get("RssAnon", status.get("VmRSS", 0)),
        working_set=tightest.working_set if tightest else None,
        limit=tightest.limit if tightest else None,
        available=min(known, default=None),
    )
    return Readings(memory, groups, machine, ulimits, size, _cpu_seconds(process / "stat"), _cores(root, process))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _status(path: Path) -> dict[str, int]:
    """Sizes in bytes by name."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdigit()}


def _ulimits(path: Path) -> dict[str, int | None]:
    """Soft limits: a line is `Max cpu time   60   unlimited   seconds`, its columns at fixed places."""
    limits: dict[str, int | None] = {}
    for line in _text(path).splitlines():
        if line.startswith("Max ") and len(line) > 26:
            soft = line[26:].split()[0]
            limits[line[4:26].strip()] = int(soft) if soft.isdigit() else None
    return limits


def _machine_available(path: Path) -> int | None:
    sizes = _status(path)
    return sizes.get("MemAvailable", sizes.get("MemFree"))


def _cpu_seconds(path: Path) -> float:
    fields = _text(path).rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks if len(fields) > 12 else 0.0


def _memory_groups(root: Path, process: Path) -> Iterator[Group]:
    for folder in _levels(root, process, "memory"):
        current = _number(folder / "memory.current")
        if current is not None:
            limits = [n for n in (_number(folder / "memory.max"), _number(folder / "memory.high")) if n is not None]
            yield Group(str(folder), min(limits, default=None), current, _statistic(folder, "inactive_file"))
            continue
        usage, limit = _number(folder / "memory.usage_in_bytes"), _number(folder / "memory.limit_in_bytes")
        if usage is not None:
            bounded = limit if limit is not None and limit < _NO_LIMIT else None
            yield Group(str(folder), bounded, usage, _statistic(folder, "total_inactive_file"))


def _statistic(folder: Path, name: str) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _cores(root: Path, process: Path) -> float | None:
    """The smallest CPU quota on the path, in cores."""
    quotas = []
    for folder in _levels(root, process, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _levels(root: Path, process: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's groups that may hold this controller, its own first, up to the mount."""
    for ids, controllers, path in (line.split(":", 2) for line in _text(process / "cgroup").splitlines() if line.count(":") >= 2):
        unified = ids == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for mounted, at in _mounts(root, process, None if unified else controller):
            inside = (
                path if mounted == "/" else path[len(mounted) :] if (path + "/").startswith(mounted.rstrip("/") + "/") else "/"
            )
            parts = [part for part in inside.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                folder = at.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


def _mounts(root: Path, process: Path, controller: str | None) -> Iterator[tuple[str, Path]]:
    """Where the hierarchy is mounted: (the group that is its root there, the folder). A container may see a part only."""
    for line in _text(process / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount, kind = before.split(), after.split()
        if len(mount) < 5 or len(kind) < 3:
            continue
        fits = kind[0] == "cgroup2" if controller is None else kind[0] == "cgroup" and controller in kind[2].split(",")
        if fits:
            yield mount[3], root / mount[4].lstrip("/")
            return


def usable_cores(readings: Readings) -> int:
    """Cores that this process may use: its affinity mask, and the control group's quota."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return mask if readings.cores is None else max(1, min(mask, math.ceil(readings.cores)))
