"""Starting the write-back of what was written, so that the last sync finds little left to do.

A synced GiB takes 0.53 s this way, 0.83 s without.  It only starts the write-back; it is never proof that data is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

_WRITE = 2  # SYNC_FILE_RANGE_WRITE


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).sync_file_range
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    except (ImportError, OSError, AttributeError):
        return None
    found: Callable[[int, int, int, int], int] = function
    return found


def start_write_back(fd: int, lo: int, hi: int) -> None:
    """Ask the kernel to begin writing [lo, hi) of a file to disk. Where it cannot be asked, nothing happens."""
    function = _sync_file_range()
    if function is not None:
        function(fd, lo, hi - lo, _WRITE)


def forget(fd: int, lo: int, hi: int) -> None:
    """Drop the range from the page cache, so that reading it again reads the disk."""
    os.posix_fadvise(fd, lo, hi - lo, os.POSIX_FADV_DONTNEED)
