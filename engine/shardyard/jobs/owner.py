"""Who runs a job, and whether that process still lives, asked from the same machine or from another one.

A process id alone proves nothing (ids are used again, containers count their own), so the kernel's start time, the boot and
the process namespace go with it.  From another machine only the heartbeat can tell.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

HEARTBEAT_EVERY_S = 2.0
LOST_AFTER_S = 60.0
"""A heartbeat older than this is that of a dead process; NFS clients may see a file up to a minute late."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process on some machine."""

    host: str
    pid: int
    started: int
    """The kernel's start time of the process, in ticks since its boot."""
    boot: str
    """The boot and the process namespace in which `pid` and `started` mean something."""

    @classmethod
    def of(cls, pid: int) -> Owner | None:
        """The owner that process `pid` of this machine is; None when there is none."""
        started = _start_time(pid)
        return None if started is None else cls(socket.gethostname(), pid, started, _boot())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Owner | None:
        """Read back what `to_json` gave."""
        try:
            return cls(str(data["host"]), int(data["pid"]), int(data["started"]), str(data["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """As stored in owner.json."""
        return asdict(self)

    @property
    def here(self) -> bool:
        """Whether its process id means something to this process."""
        return self.host == socket.gethostname() and self.boot == _boot()

    def alive(self, heartbeat: float | None) -> bool:
        """Whether it still runs. On another machine: whether its last heartbeat is fresh."""
        if self.here:
            return _start_time(self.pid) == self.started
        return heartbeat is not None and time.time() - heartbeat < LOST_AFTER_S


def _start_time(pid: int) -> int | None:
    """The process's start time; None for one that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"
