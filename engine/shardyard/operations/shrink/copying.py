"""The one way in which a shrink moves bytes: a few threads read blocks, write them where they belong and note their checksums,
and later read both files again to compare them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shardyard.checkpoint import Tensor
from shardyard.errors import JobError
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.crc import combine
from shardyard.operations.parallel import spread
from shardyard.operations.shrink.meter import Meter
from shardyard.operations.write_back import STEP, WriteBehind, write_at
from shardyard.text import printable

BLOCK = gather.BLOCK
END = 64 << 10
"""Bytes of each end of a range where only those are compared."""


class Output:
    """A new file of a known size, whose parts may be written in any order."""

    def __init__(self, fd: int, nbytes: int, meter: Meter) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.meter = meter
        self.written = 0
        self._write_behind = WriteBehind(meter.total)

    def put(self, at: int, data: bytes) -> int:
        """Write a few bytes; returns their CRC-32."""
        write_at(self.fd, memoryview(data), at)
        self.written += len(data)
        return zlib.crc32(data)

    def stream(self, at: int, blocks: Iterable[bytes]) -> int:
        """Write blocks that can only be had one after the other; returns their CRC-32."""
        crc = 0
        for block in blocks:
            write_at(self.fd, memoryview(block), at)
            crc = zlib.crc32(block, crc)
            at += len(block)
            self.written += len(block)
            self.meter.step(read=len(block), written=len(block), done=len(block))
        return crc

    def copy(self, tensors: Sequence[tuple[Tensor, int]], handles: FileHandles) -> list[int]:
        """Write each tensor's bytes at its place; returns their CRC-32s."""
        parts: dict[tuple[int, int], tuple[int, int]] = {}

        def do(part: _Part) -> None:
            tensor, at = tensors[part.number]
            crc = self._copy_part(tensor, at, part, handles)
            parts[part.number, part.lo] = (crc, part.hi - part.lo)

        spread(_parts([tensor for tensor, _ in tensors], self.meter.workers), do, self.meter.workers)
        crcs = [0] * len(tensors)
        for (number, _), (crc, nbytes) in sorted(parts.items()):
            crcs[number] = combine(crcs[number], crc, nbytes)
            self.written += nbytes
        return crcs

    def check_whole(self, path: str) -> None:
        """Raise a `JobError` that names `path` unless as many bytes were written as the file has."""
        if self.written != self.nbytes:
            raise JobError(f"{printable(os.path.basename(path))} came out with another size than planned.", path=path)

    def _copy_part(self, tensor: Tensor, at: int, part: _Part, handles: FileHandles) -> int:
        crc = 0
        buffer = memoryview(bytearray(min(part.block, part.hi - part.lo)))
        for lo in range(part.lo, part.hi, part.block):
            block = buffer[: min(part.block, part.hi - lo)]
            gather.read_range(tensor, lo, lo + len(block), block, handles)
            write_at(self.fd, block, at + lo)
            crc = zlib.crc32(block, crc)
            self.meter.step(read=len(block), written=len(block), done=len(block))
        self._write_behind.wrote(self.fd, at + part.lo, at + part.hi)
        return crc


@dataclass(frozen=True, slots=True)
class _Part:
    """What one thread does of one tensor at a time."""

    number: int
    lo: int
    hi: int
    block: int


def _parts(tensors: Sequence[Tensor], workers: int) -> Iterator[_Part]:
    """The tensors cut into parts of `STEP` bytes, or one block where strides ask for larger blocks."""
    for number, tensor in enumerate(tensors):
        block = gather.block_size(tensor, 0, tensor.nbytes, most=gather.MOST_BLOCK // workers)
        size = max(STEP, block)
        for lo in range(0, tensor.nbytes, size):
            yield _Part(number, lo, min(tensor.nbytes, lo + size), block)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file."""

    path: str
    offset: int
    nbytes: int


def equal_ranges(handles: FileHandles, a: Range, b: Range, meter: Meter, *, counted: bool = True) -> bool:
    """Whether two ranges, of one length, hold the same bytes."""
    if a.nbytes != b.nbytes:
        return False
    left, right = bytearray(0), bytearray(0)
    for at in range(0, a.nbytes, BLOCK):
        n = min(BLOCK, a.nbytes - at)
        if n != len(left):
            left, right = bytearray(n), bytearray(n)
        handles.read_into(a.path, a.offset + at, memoryview(left))
        handles.read_into(b.path, b.offset + at, memoryview(right))
        # Not of memoryviews: those are compared element by element, a hundred times as slowly.
        if left != right:
            return False
        meter.step(read=2 * n, done=n if counted else 0)
    return True


Check = tuple[str, Callable[[], bool]]
"""A name, and what tells whether that which has it is the same in both files."""


def differs(name: str) -> Check:
    """What is known to be another in the new file."""
    return name, lambda: False


def range_checks(
    name: str, handles: FileHandles, a: Range, b: Range, meter: Meter, *, ends_only: bool = False
) -> Iterator[Check]:
    """Checks that two ranges are equal, part by part, or only their ends."""
    if a.nbytes != b.nbytes:
        yield differs(name)
        return
    size = END if ends_only else STEP
    for lo in (0, max(0, a.nbytes - END)) if ends_only else range(0, a.nbytes, STEP):
        n = min(size, a.nbytes - lo)
        parts = Range(a.path, a.offset + lo, n), Range(b.path, b.offset + lo, n)
        yield name, partial(equal_ranges, handles, *parts, meter, counted=not ends_only)


def first_difference(checks: Iterable[Check], workers: int) -> str | None:
    """Make many checks in a few threads; returns the name of one that fails, None if none does."""
    differing: list[str] = []

    def do(check: Check) -> None:
        name, same = check
        if not differing and not same():
            differing.append(name)

    spread(checks, do, workers)
    return differing[0] if differing else None


__all__ = ["Check", "Output", "Range", "differs", "equal_ranges", "first_difference", "range_checks"]
