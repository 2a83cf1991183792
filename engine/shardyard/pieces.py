"""Pieces: strided copies out of stored bytes into a tensor's row-major bytes.

A `Record` is a run of stored bytes, a `Piece` says which of its words go where.  Everything is exact integer arithmetic on
offsets and strides; no byte is read here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Flag

from shardyard.errors import DamagedError
from shardyard.files import FileHandles


@dataclass(slots=True, eq=False)
class Record:
    """A run of `nbytes` stored bytes: a zip record, a safetensors data section, a legacy storage, a whole file."""

    path: str
    """Absolute path of the file that holds it."""
    nbytes: int
    start: int
    """Offset in the file of the first byte, as far as the headers tell; `locate` is the truth."""
    name: str = ""
    """Its name inside the file, such as `archive/data/0`."""
    crc32: int | None = None
    """The stored CRC-32 of all its bytes, where the container has one."""

    def locate(self, handles: FileHandles) -> int:
        """Offset of the first byte in `path`, proven; formats that defer a header check override this."""
        return self.start


@dataclass(slots=True, eq=False)
class InlineRecord(Record):
    """Bytes that were inside a pickle or header and are in memory already (numpy arrays, scalars)."""

    data: bytes = b""


@dataclass(slots=True, eq=False)
class EncodedRecord(Record):
    """Compressed bytes: they have no place on disk until a transfer has decoded them into its staging folder.

    `nbytes` counts decoded bytes.  After `spooled` is set, `path` and `start` point at the decoded copy.
    """

    spooled: bool = False

    def decode(self, handles: FileHandles) -> Iterator[bytes]:
        """The decoded bytes, in order, in blocks of at most 1 MiB."""
        raise NotImplementedError

    def locate(self, handles: FileHandles) -> int:
        if not self.spooled:
            raise DamagedError(f"{self.name or self.path} is compressed and was not decoded yet.", path=self.path)
        return self.start


class Ops(Flag):
    """Value changes between stored and wanted bytes."""

    NONE = 0
    SWAP = 1
    """Reverse the bytes of each word (half elements for complex numbers)."""
    CONJ = 2
    NEG = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A strided copy out of one record into the tensor's row-major bytes.

    Shape counts words; every offset and stride is in bytes.  Target strides fall from left to right and target words never
    overlap; source strides may be anything, 0 included.
    """

    record: Record
    word: int
    """Bytes a word: the element size where it is 1, 2, 4, 8 or 16, else 1."""
    shape: tuple[int, ...]
    source_offset: int
    """Of the first word, in the record."""
    source_strides: tuple[int, ...]
    target_offset: int
    """Of the first word, in the tensor's bytes."""
    target_strides: tuple[int, ...]
    ops: Ops = Ops.NONE

    @property
    def nbytes(self) -> int:
        """Bytes it writes."""
        return self.word * math.prod(self.shape)

    @property
    def run(self) -> bool:
        """Whether it is one plain contiguous copy without ops: the fast path."""
        return len(self.shape) == 1 and self.source_strides[0] == self.target_strides[0] == self.word and not self.ops

    @property
    def source_span(self) -> tuple[int, int]:
        """First and one past the last byte it reads, in the record."""
        lo = hi = self.source_offset
        for n, stride in zip(self.shape, self.source_strides, strict=True):
            reach = (n - 1) * stride
            lo, hi = (lo + reach, hi) if reach < 0 else (lo, hi + reach)
        return lo, hi + self.word

    @property
    def target_end(self) -> int:
        """One past the last byte it writes."""
        return self.target_offset + sum((n - 1) * s for n, s in zip(self.shape, self.target_strides, strict=True)) + self.word


def contiguous_run(record: Record, source: int, target: int, nbytes: int, word: int = 1, ops: Ops = Ops.NONE) -> Piece:
    """A plain copy of `nbytes` bytes."""
    return Piece(record, word, (nbytes // word,), source, (word,), target, (word,), ops)


def row_major(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a packed row-major array."""
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def box(
    record: Record,
    word: int,
    shape: Sequence[int],
    source_offset: int,
    source_strides: Sequence[int],
    target_offset: int,
    target_strides: Sequence[int],
    ops: Ops = Ops.NONE,
) -> Piece | None:
    """A piece with needless dimensions folded away (size 1, or joined in memory on both sides); None if it is empty."""
    if 0 in shape:
        return None
    dims: list[tuple[int, int, int]] = []
    for n, s, t in zip(shape, source_strides, target_strides, strict=True):
        if n == 1:
            continue
        if dims and dims[-1][1] == s * n and dims[-1][2] == t * n:
            dims[-1] = (dims[-1][0] * n, s, t)
        else:
            dims.append((n, s, t))
    if not dims:
        dims = [(1, word, word)]
    sizes, sources, targets = zip(*dims, strict=True)
    return Piece(record, word, sizes, source_offset, sources, target_offset, targets, ops)


def clip(piece: Piece, lo: int, hi: int) -> Iterator[Piece]:
    """The parts of a piece whose target bytes lie in [lo, hi); both must be multiples of its word from the target offset.

    A box is cut into at most two parts a dimension and one middle: its target words are in row-major order.
    """
    if piece.target_offset >= lo and piece.target_end <= hi:
        yield piece
        return
    if piece.target_end <= lo or piece.target_offset >= hi:
        return
    n, target = piece.shape[0], piece.target_strides[0]
    inner = rows(piece, 0, 1)
    span = inner.target_end - inner.target_offset
    base = piece.target_offset
    first_whole = max(0, -(-(lo - base) // target))
    end_whole = min(n, (hi - base - span) // target + 1)
    if len(piece.shape) == 1:
        if first_whole < end_whole:
            yield rows(piece, first_whole, end_whole)
        return
    if first_whole > 0 and first_whole - 1 < n:
        yield from clip(without_first(rows(piece, first_whole - 1, first_whole)), lo, hi)
    if first_whole < end_whole:
        yield rows(piece, first_whole, end_whole)
    tail = max(end_whole, first_whole)
    if tail < n and base + tail * target < hi:
        yield from clip(without_first(rows(piece, tail, tail + 1)), lo, hi)


def rows(piece: Piece, a: int, b: int) -> Piece:
    """Rows a to b of a piece's first dimension."""
    return Piece(
        piece.record,
        piece.word,
        (b - a, *piece.shape[1:]),
        piece.source_offset + a * piece.source_strides[0],
        piece.source_strides,
        piece.target_offset + a * piece.target_strides[0],
        piece.target_strides,
        piece.ops,
    )


def without_first(piece: Piece) -> Piece:
    """The same piece without its first dimension, which must have size 1."""
    return Piece(
        piece.record,
        piece.word,
        piece.shape[1:],
        piece.source_offset,
        piece.source_strides[1:],
        piece.target_offset,
        piece.target_strides[1:],
        piece.ops,
    )
