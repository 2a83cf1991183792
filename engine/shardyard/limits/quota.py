"""What a quota still allows at a place: btrfs groups from sysfs, everything else from the site's own `quota` or `lfs quota`.

The free space that a file system reports does not know of quotas, and a write beyond one fails as if the disk were full.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; empty when it failed."""

_BTRFS_INO_LOOKUP = 0xD0009412
_BTRFS_FS_INFO = 0x8400941F
_BTRFS_FIRST_OBJECT = 256


@dataclass(frozen=True, slots=True)
class Quota:
    """The tightest quota at a place, in bytes."""

    limit: int
    used: int
    source: str
    """Who says so: `btrfs quota group`, `user quota`, `group quota`, `project quota`."""

    @property
    def left(self) -> int:
        """What may still be written."""
        return max(0, self.limit - self.used)


def run(command: Sequence[str]) -> str:
    """Run a site's command; a server that does not answer must not hold us up."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def of(folder: Path, kind: str, device: str, mount: str, run: Run = run, root: Path = Path("/")) -> Quota | None:
    """The tightest quota for files in `folder`, on such a file system, device and mount point; None where none is known."""
    if kind == "btrfs":
        found = _btrfs(folder, root)
    elif kind == "lustre":
        found = list(_lustre(folder, mount, run))
    elif kind in ("tmpfs", "ramfs", "overlay", "squashfs", "proc"):
        return None
    else:
        found = list(_quota(device, mount, run))
    return min(found, key=lambda quota: quota.left, default=None)


def _btrfs(folder: Path, root: Path) -> list[Quota]:
    place = _subvolume(folder)
    if place is None:
        return []
    group = root / "sys/fs/btrfs" / place[0] / "qgroups" / f"0_{place[1]}"
    try:
        value = {
            name: int((group / name).read_text())
            for name in ("limit_flags", "max_referenced", "referenced", "max_exclusive", "exclusive")
        }
    except (OSError, ValueError):
        return []
    pairs = ((1, "referenced"), (2, "exclusive"))
    return [Quota(value[f"max_{kind}"], value[kind], "btrfs quota group") for flag, kind in pairs if value["limit_flags"] & flag]


def _subvolume(folder: Path) -> tuple[str, int] | None:
    """(file system id, subvolume id), by the two questions that need no rights."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        lookup = bytearray(struct.pack("=QQ4080x", 0, _BTRFS_FIRST_OBJECT))
        info = bytearray(1024)
        fcntl.ioctl(fd, _BTRFS_INO_LOOKUP, lookup)
        fcntl.ioctl(fd, _BTRFS_FS_INFO, info)
    except OSError:
        return None
    finally:
        os.close(fd)
    return str(uuid.UUID(bytes=bytes(info[16:32]))), int(struct.unpack_from("=Q", lookup)[0])


def _quota(device: str, mount: str, run: Run) -> Iterator[Quota]:
    """`quota -w -p`: a line a file system: name, kilobytes used, soft, hard. The soft limit counts: its grace may be over."""
    for option, source in (("-u", "user quota"), ("-g", "group quota")):
        for line in run(("quota", "-w", "-p", option)).splitlines():
            fields = line.split()
            if len(fields) >= 4 and fields[0] in (device, mount):
                yield from _row(fields[1:4], source)


def _lustre(folder: Path, mount: str, run: Run) -> Iterator[Quota]:
    questions = [("-u", str(os.getuid()), "user quota"), ("-g", str(os.getgid()), "group quota")]
    project = run(("lfs", "project", "-d", str(folder))).split()
    if project and project[0].isdigit() and project[0] != "0":
        questions.append(("-p", project[0], "project quota"))
    for option, who, source in questions:
        fields = run(("lfs", "quota", "-q", option, who, mount)).split()
        if len(fields) >= 4:
            yield from _row(fields[1:4], source)


def _row(fields: Sequence[str], source: str) -> Iterator[Quota]:
    numbers = [field.rstrip("*") for field in fields]
    if all(number.isdigit() for number in numbers):
        used, soft, hard = (int(number) << 10 for number in numbers)
        limits = [limit for limit in (soft, hard) if limit]
        if limits:
            yield Quota(min(limits), used, source)
