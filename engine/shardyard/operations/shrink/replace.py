"""Putting a new file in the place of an old one so that at every moment one of the two is there, whole.

The new file is written beside the old one, synced, read back and proved before it takes the name.  A file that changed since the
plan was made is left alone, and so is one with further names: they would keep the old bytes, and nothing would be given back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from shardyard.errors import JobError, NoRoomError
from shardyard.limits import disk
from shardyard.operations.write_back import forget
from shardyard.text import printable

TEMPORARY = ".shardyard-partial"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells that a file is still the one that was looked at."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: str) -> Fingerprint:
        info = os.stat(path)
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def write_beside(path: str, write: Callable[[int], None], prove: Callable[[str], None]) -> None:
    """Write a new file at `path`, whole, synced and proved; on any error it is gone again."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise JobError(f"Another process is writing {printable(path)}.", path=path) from None
        os.ftruncate(fd, 0)
        try:
            write(fd)
            os.fsync(fd)
            with suppress(OSError):
                forget(fd, 0, 0)
            prove(path)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(path)
            full = disk.no_room(error, os.path.dirname(path)) if isinstance(error, OSError) else None
            if full is not None:
                raise full from error
            raise
    finally:
        os.close(fd)


def replace(path: str, known: Fingerprint, write: Callable[[int], None], prove: Callable[[str], None]) -> str:
    """Replace a file; returns why it was left alone, empty if it was replaced.

    Raises:
        NoRoomError: its folder cannot be written to, or is full.
        JobError: the new file is not what it should be.
    """
    real = os.path.realpath(path)
    why = reason_to_leave(real, known)
    if why:
        return why
    folder, name = os.path.split(real)
    temporary = os.path.join(folder, name + TEMPORARY)
    try:
        write_beside(temporary, write, prove)
    except PermissionError as error:
        raise NoRoomError(f"{printable(folder)} cannot be written to: {os.strerror(error.errno or 0)}.", path=folder) from error
    try:
        _take_over(temporary, real)
        why = reason_to_leave(real, known)
        if why:
            return why
        os.rename(temporary, real)
        temporary = ""
        sync_folder(folder)
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
    return ""


def reason_to_leave(real: str, known: Fingerprint) -> str:
    """Why a file must not be replaced; empty if it may be."""
    try:
        info = os.stat(real)
    except OSError:
        return "it is no longer there"
    if Fingerprint.of(real) != known:
        return "it changed meanwhile"
    if not stat.S_ISREG(info.st_mode):
        return "it is not a regular file"
    if info.st_nlink > 1:
        return f"it has {info.st_nlink} names (hard links), and the others would keep the old bytes"
    return ""


def _take_over(new: str, old: str) -> None:
    """Mode, owner, times and extended attributes of the old file, as far as that is allowed."""
    info = os.stat(old)
    if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(OSError):
            os.chown(new, info.st_uid, info.st_gid)
    with suppress(OSError):
        for name in os.listxattr(old):
            with suppress(OSError):
                os.setxattr(new, name, os.getxattr(old, name))
    # The mode comes after the owner: changing the owner clears the set-user-ID bits.
    os.chmod(new, stat.S_IMODE(info.st_mode))
    os.utime(new, ns=(info.st_atime_ns, info.st_mtime_ns))
    fd = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: str) -> None:
    """Make a rename in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
