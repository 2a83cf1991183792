"""What the operating system refuses, as errors of ours: which file, why, and what to do."""

from __future__ import annotations

import errno
import os

from shardyard.errors import JobError, NoRoomError, ShardyardError, UsageError
from shardyard.limits import disk
from shardyard.text import printable


def refusal(error: OSError, path: str | os.PathLike[str] | None = None) -> ShardyardError:
    """The error as one sentence; `path` is what it is about where the error does not say."""
    where = error.filename if isinstance(error.filename, (str, os.PathLike)) else path
    reason = printable(os.strerror(error.errno) if error.errno else str(error))
    if where is None:
        kind = NoRoomError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else JobError
        return kind(f"The output stream cannot be written: {reason}.")
    full = disk.no_room(error, where)
    if full is not None:
        return full
    place = os.fspath(where)
    shown = printable(place)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return NoRoomError(f"{shown} cannot be opened: this process may open no more files; raise ulimit -n.", path=place)
    if error.errno == errno.ENOMEM:
        return NoRoomError(f"{shown} cannot be opened: no memory is left; use a node (or --slurm mem=…) with more.", path=place)
    if error.errno == errno.ENAMETOOLONG:
        return UsageError(f"{printable(os.path.basename(shown), 60)} is too long a name for the file system.", path=place)
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(f"{shown} cannot be reached: permission denied; change its mode, or choose another place.", path=place)
    if error.errno == errno.EROFS:
        return NoRoomError(f"{shown} is on a file system that is read-only; choose another place.", path=place)
    return JobError(f"{shown} cannot be used: {reason}.", path=place)
