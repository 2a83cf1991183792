"""Progress of a shrink, and the one way in which it moves bytes: read a block, write it, note its checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.context import Context, Progress
from shardyard.operations.write_back import start_write_back, write_at

BLOCK = gather.BLOCK
_WRITE_BACK = 64 << 20


class Meter:
    """Counts bytes for whoever watches, and stops when asked to."""

    def __init__(self, context: Context, total: int) -> None:
        self.context = context
        self.total = total
        self.item = ""
        self.done = 0
        self.read = 0
        self.written = 0

    def step(self, *, read: int = 0, written: int = 0, done: int = 0) -> None:
        """Count bytes.

        Raises:
            Cancelled: somebody asked to stop.
        """
        self.read += read
        self.written += written
        self.done += done
        self.context.check()
        self.context.progress(Progress(min(self.done, self.total), self.total, self.read, self.written, self.item))


class Output:
    """A new file, written from front to back."""

    def __init__(self, fd: int, meter: Meter) -> None:
        self.fd = fd
        self.meter = meter
        self.position = 0
        self._started = 0

    def write(self, data: bytes | memoryview) -> None:
        write_at(self.fd, memoryview(data), self.position)
        self.position += len(data)
        if self.position - self._started >= _WRITE_BACK:
            start_write_back(self.fd, self._started, self.position)
            self._started = self.position

    def copy(self, blocks: Iterator[tuple[int, memoryview]]) -> int:
        """Write blocks as they come; returns their CRC-32."""
        crc = 0
        for _, block in blocks:
            self.write(block)
            crc = zlib.crc32(block, crc)
            self.meter.step(read=len(block), written=len(block), done=len(block))
        return crc


def equal_ranges(
    handles: FileHandles, a: tuple[str, int], b: tuple[str, int], nbytes: int, meter: Meter, *, counted: bool = True
) -> bool:
    """Whether `nbytes` bytes at (path, offset) a and b are the same."""
    size = min(BLOCK, nbytes)
    left, right = memoryview(bytearray(size)), memoryview(bytearray(size))
    for at in range(0, nbytes, BLOCK):
        n = min(BLOCK, nbytes - at)
        handles.read_into(a[0], a[1] + at, left[:n])
        handles.read_into(b[0], b[1] + at, right[:n])
        if left[:n] != right[:n]:
            return False
        meter.step(read=2 * n, done=n if counted else 0)
    return True
