"""Opening and reading files so that nothing can hang, be tricked or run out of handles.

Every read of a checkpoint goes through `FileHandles`: only regular files are opened (a FIFO or device would block), handles
are kept in an LRU of at most half the process's limit, reads are `pread`s of what was asked, never a map of a whole file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import IO

from shardyard.errors import COPY_AGAIN, DamagedError, NoRoomError, ShardyardError, UsageError
from shardyard.text import printable


def raise_open_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns how many handles may be kept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass
    return 4096 if soft == resource.RLIM_INFINITY else max(8, min(4096, soft // 2))


class FileHandles:
    """Read-only handles by path, least recently used closed first.  Safe to use from several threads."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most if most is not None else raise_open_file_limit()
        self._open: OrderedDict[str, _Handle] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes_read = 0
        """Bytes read through these handles so far."""
        self.spool = Spool()

    def size(self, path: str) -> int:
        """Size of the regular file in bytes."""
        with self._borrow(path) as handle:
            return os.fstat(handle.fd).st_size

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Exactly `nbytes` bytes at `offset`.

        Raises:
            DamagedError: the file ends before that, or cannot be read.
        """
        if nbytes <= 0:
            return b""
        parts = []
        try:
            with self._borrow(path) as handle:
                while nbytes > 0:
                    block = os.pread(handle.fd, nbytes, offset)
                    if not block:
                        raise DamagedError(
                            f"{printable(os.path.basename(path))} ends {nbytes} bytes too early.",
                            code="truncated",
                            path=path,
                            remedy=COPY_AGAIN,
                        )
                    self.bytes_read += len(block)
                    offset += len(block)
                    nbytes -= len(block)
                    parts.append(block)
        except OSError as error:
            raise _cannot_read(path, error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; errors as `read`."""
        try:
            with self._borrow(path) as handle:
                done = 0
                while done < len(buffer):
                    n = os.preadv(handle.fd, [buffer[done:]], offset + done)
                    if n == 0:
                        raise DamagedError(
                            f"{printable(os.path.basename(path))} ends {len(buffer) - done} bytes too early.",
                            code="truncated",
                            path=path,
                            remedy=COPY_AGAIN,
                        )
                    done += n
                self.bytes_read += done
        except OSError as error:
            raise _cannot_read(path, error) from error

    def close(self) -> None:
        """Close all handles."""
        self.spool.close()
        with self._lock:
            handles, self._open = list(self._open.values()), OrderedDict()
            for handle in handles:
                handle.retire()

    def __del__(self) -> None:
        # Whoever opens a checkpoint without handles of its own never closes them: ten thousand opens ran out of descriptors.
        if hasattr(self, "spool"):
            self.close()

    def __enter__(self) -> FileHandles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _borrow(self, path: str) -> _Handle:
        with self._lock:
            handle = self._open.get(path)
            if handle is None:
                handle = self._open[path] = _Handle(self._descriptor(path), self._lock)
                while len(self._open) > self._most:
                    self._open.popitem(last=False)[1].retire()
            else:
                self._open.move_to_end(path)
            handle.users += 1
            return handle

    def _descriptor(self, path: str) -> int:
        """Open a file; where the process has no descriptor left, handles that nobody reads through are given back."""
        try:
            return open_regular(path)
        except NoRoomError:
            idle = next((p for p, h in self._open.items() if h.users == 0), None)
            if idle is None:
                raise
            self._open.pop(idle).retire()
        return self._descriptor(path)


class Spool:
    """Decoded copies of compressed data, each made when it is first wanted, in one unnamed file that no crash leaves behind."""

    def __init__(self) -> None:
        self.folder: str | None = None
        """Where the file is made; None: the usual place for temporary files."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._end = 0
        self._places: dict[object, tuple[threading.Lock, list[int]]] = {}

    def read_into(self, key: object, offset: int, buffer: memoryview, decode: Callable[[], Iterator[bytes]], nbytes: int) -> None:
        """Fill `buffer` from the decoded bytes of `key`, which are `nbytes` in all."""
        with self._lock:
            lock, place = self._places.setdefault(key, (threading.Lock(), []))
        with lock:
            if not place:
                place.append(self._store(decode, nbytes))
        file = self._open()
        done = 0
        while done < len(buffer):
            done += os.preadv(file.fileno(), [buffer[done:]], place[0] + offset + done)

    def _store(self, decode: Callable[[], Iterator[bytes]], nbytes: int) -> int:
        file = self._open()
        with self._lock:
            start, self._end = self._end, self._end + nbytes
        at = start
        for block in decode():
            if at + len(block) > start + nbytes:
                break
            view = memoryview(block)
            while view:
                n = os.pwrite(file.fileno(), view, at)
                at, view = at + n, view[n:]
        if at != start + nbytes:
            raise DamagedError(f"A compressed record does not unpack to the {nbytes} bytes that it should.")
        return start

    def _open(self) -> IO[bytes]:
        with self._lock:
            if self._file is None:
                import tempfile

                self._file = tempfile.TemporaryFile(dir=self.folder, prefix="shardyard-")  # noqa: SIM115 - closed by `close`
            return self._file

    def close(self) -> None:
        """Forget all copies."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file, self._end, self._places = None, 0, {}


class _Handle:
    """A descriptor that is closed once it was retired and nobody reads through it."""

    __slots__ = ("_lock", "fd", "retired", "users")

    def __init__(self, fd: int, lock: threading.Lock) -> None:
        self.fd = fd
        self.users = 0
        self.retired = False
        self._lock = lock

    def retire(self) -> None:
        self.retired = True
        if self.users == 0:
            os.close(self.fd)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.users -= 1
            if self.retired and self.users == 0:
                os.close(self.fd)


def open_regular(path: str, *, follow: bool = True) -> int:
    """Open a regular file for reading without ever blocking; `follow=False` where the name came out of a file."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise _cannot_read(path, error) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise DamagedError(f"{printable(os.path.basename(path))} is {what}.", code="wrong-type", path=path)
    return fd


def _cannot_read(path: str, error: OSError) -> ShardyardError:
    name = printable(os.path.basename(path)) or printable(path)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return NoRoomError(
            f"{name} cannot be opened: this process may open no more files.", path=path, remedy="Raise the limit (ulimit -n)."
        )
    if error.errno == errno.ENOMEM:
        return NoRoomError(
            f"{name} cannot be read: no memory is left.", path=path, remedy="Use fewer --workers, or a larger node."
        )
    if error.errno == errno.ENOENT:
        return UsageError(f"There is no file {name}.", path=path)
    if error.errno == errno.ELOOP:
        return DamagedError(f"{name} is a symbolic link that is not followed here.", code="wrong-type", path=path)
    if error.errno in (errno.EACCES, errno.EPERM):
        text, remedy = f"{name} cannot be read: permission denied.", "Change its mode (chmod u+r), or ask its owner."
        return DamagedError(text, code="unsupported", path=path, remedy=remedy)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return DamagedError(f"{name} cannot be read: {reason}.", code="corrupt", path=path)


HEAD_BYTES, TAIL_BYTES = 4096, 16384


def fingerprint(handles: FileHandles, path: str) -> dict[str, str | int]:
    """What tells a changed file: its size and a hash of both ends, where headers, zip directories and their CRCs are.

    Times are no part of it: a copy of a checkpoint is the same checkpoint.
    """
    nbytes = handles.size(path)
    head = handles.read(path, 0, min(HEAD_BYTES, nbytes))
    tail_bytes = min(TAIL_BYTES, nbytes - len(head))
    tail = handles.read(path, nbytes - tail_bytes, tail_bytes)
    return {"bytes": nbytes, "sha256": hashlib.sha256(head + tail).hexdigest()}
