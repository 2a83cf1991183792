"""Writing large files: in calls that the page cache likes, with the write-back started early, so that the last sync is short.

A synced GiB takes 0.53 s this way, 0.83 s without.  It only starts the write-back; it is never proof that data is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

CALL = 128 << 10
"""Bytes of one call. The kernel takes runs of memory as long as the call; where free memory is in pieces, or must be got from a
hypervisor, calls of 512 KiB and more take two to four times the processor time."""
_WRITE = 2  # SYNC_FILE_RANGE_WRITE


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done : done + CALL], offset + done)


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
