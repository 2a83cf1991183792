"""Room at a destination: links resolved, the file system that will really take the bytes, and its quota."""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from shardyard.errors import NoRoomError
from shardyard.limits import quota
from shardyard.limits.quota import Quota
from shardyard.text import printable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a place is on."""

    folder: Path
    """The nearest existing folder, links resolved."""
    mount: str
    kind: str
    """The kernel's name: `ext4`, `lustre`, `nfs4`, `tmpfs`, …"""
    device: str
    free: int
    """Bytes that an ordinary user may still write, quota apart."""
    total: int
    files_free: int | None
    """Files that may still be made; None where the file system does not count them."""
    quota: Quota | None

    @property
    def room(self) -> int:
        """Bytes that can be written: free space or quota, whichever is less."""
        return self.free if self.quota is None else min(self.free, self.quota.left)

    @property
    def in_memory(self) -> bool:
        """Whether its files take memory."""
        return self.kind in ("tmpfs", "ramfs")

    @property
    def shared(self) -> bool:
        """Whether other machines may see it too."""
        return self.kind.startswith(
            ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "wekafs", "panfs", "pvfs")
        )


def existing(path: str | os.PathLike[str]) -> Path:
    """The nearest folder that exists on the way to `path`, all links resolved."""
    place = Path(os.path.realpath(path))
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place


def of(path: str | os.PathLike[str], *, with_quota: bool = True) -> Disk:
    """What room there is where `path` lies or would be made."""
    folder = existing(path)
    try:
        space = os.statvfs(folder)
    except OSError as error:
        raise NoRoomError(f"{printable(str(folder))} does not answer ({error.strerror}).", path=str(folder)) from error
    mount, kind, device = _mount(folder)
    return Disk(
        folder=folder,
        mount=mount,
        kind=kind,
        device=device,
        free=space.f_bavail * space.f_frsize,
        total=space.f_blocks * space.f_frsize,
        files_free=space.f_favail if space.f_files else None,
        quota=quota.of(folder, kind, device, mount) if with_quota else None,
    )


def _mount(folder: Path) -> tuple[str, str, str]:
    """(mount point, kind, device) of the file system; the last mount over a place is the one in use."""
    best = ("/", "unknown", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return best
    for line in lines:
        before, _, after = line.partition(" - ")
        at = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = str(folder) == at or str(folder).startswith(at.rstrip("/") + "/")
        if inside and len(at) >= len(best[0]):
            kind, device = after.split()[:2]
            best = (at, kind, device)
    return best


class Meter:
    """Room at one destination for progress events: cheap enough to be asked often, since the answer is kept a while."""

    DISK_EVERY_S = 2.0
    QUOTA_EVERY_S = 60.0

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._disk: Disk | None = None
        self._quota: Quota | None = None
        self._at = self._quota_at = float("-inf")

    def read(self) -> dict[str, int | None]:
        """`{"free": bytes}`, and `quota` where there is one; None where the place does not answer."""
        now = time.monotonic()
        if self._disk is None or now - self._at > self.DISK_EVERY_S:
            fresh = self._disk is None or self._disk.kind == "btrfs" or now - self._quota_at > self.QUOTA_EVERY_S
            try:
                disk = of(self._path, with_quota=fresh)
            except NoRoomError:
                return {"free": None}
            if fresh:
                self._quota_at = now
                self._quota = disk.quota
            self._disk, self._at = disk, now
        reading: dict[str, int | None] = {"free": self._disk.free}
        if self._quota is not None:
            reading["quota"] = self._quota.left
        return reading


def no_room(error: OSError, path: str | os.PathLike[str], short: int | None = None) -> NoRoomError | None:
    """ENOSPC, EDQUOT or EFBIG as one sentence; None for any other error. `short`: bytes that were still to be written."""
    if error.errno not in _FULL:
        return None
    import humanize

    place = printable(os.fspath(path))
    missing = "" if short is None else f" with {humanize.naturalsize(short)} still to be written"
    if error.errno == errno.EDQUOT:
        return NoRoomError(f"The quota at {place} is used up{missing}; free some of it, then resume.", path=os.fspath(path))
    if error.errno == errno.EFBIG:
        return NoRoomError(
            f"{place} would become larger than the file system or the process's limit (ulimit -f) allows; choose smaller shards.",
            path=os.fspath(path),
        )
    return NoRoomError(f"The disk at {place} is full{missing}; free some room, then resume.", path=os.fspath(path))
