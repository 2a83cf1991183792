"""Layouts: where a tensor's bytes are, as a rule rather than a list.

A layout answers for any range of a tensor's row-major little-endian bytes with the pieces that touch it, found by arithmetic:
a 671B model on 1,024 ranks has 10^8 of them, and nothing walks them all.  Each layout also proves that it writes every byte
exactly once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shardyard.errors import DamagedError
from shardyard.overlap import any_meet
from shardyard.pieces import Ops, Piece, Record, box, contiguous_run, row_major


class Layout(Protocol):
    """Where a tensor's bytes are."""

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        """The pieces that touch the tensor's bytes [lo, hi), found by arithmetic; they may reach beyond: see `clip`."""
        ...

    def records(self) -> Iterator[Record]:
        """Each record it reads from, once."""
        ...

    def prove(self, nbytes: int) -> None:
        """Raise DamagedError unless each of the tensor's `nbytes` bytes is written by exactly one piece."""
        ...


@dataclass(slots=True)
class OneRun:
    """The whole tensor is one contiguous run."""

    record: Record
    offset: int
    nbytes: int
    word: int = 1
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        if lo < hi and lo < self.nbytes:
            yield contiguous_run(self.record, self.offset, 0, self.nbytes, self.word, self.ops)

    def records(self) -> Iterator[Record]:
        yield self.record

    def prove(self, nbytes: int) -> None:
        _need(self.nbytes == nbytes, self.record, f"{self.nbytes} bytes stored, {nbytes} expected")
        _need(self.offset >= 0 and self.offset + nbytes <= self.record.nbytes, self.record, "the tensor leaves its record")


@dataclass(slots=True)
class Runs:
    """Contiguous runs one after another: a ZeRO-1/2 parameter that crosses rank borders, a concatenation of row shards."""

    parts: list[tuple[int, Record, int]]
    """(first target byte, record, offset in the record) in rising target order; each run ends where the next begins."""
    nbytes: int
    word: int = 1
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        i = max(0, bisect_right(self.parts, lo, key=lambda p: p[0]) - 1)
        while i < len(self.parts):
            target, record, offset = self.parts[i]
            if target >= min(hi, self.nbytes):
                return
            end = self.parts[i + 1][0] if i + 1 < len(self.parts) else self.nbytes
            if end > target:
                yield contiguous_run(record, offset, target, end - target, self.word, self.ops)
            i += 1

    def records(self) -> Iterator[Record]:
        yield from {id(p[1]): p[1] for p in self.parts}.values()

    def prove(self, nbytes: int) -> None:
        expected = 0
        for i, (target, record, offset) in enumerate(self.parts):
            end = self.parts[i + 1][0] if i + 1 < len(self.parts) else self.nbytes
            _need(target == expected and end >= target, record, "its runs leave a hole or overlap")
            _need(offset >= 0 and offset + end - target <= record.nbytes, record, "a run leaves its record")
            expected = end
        if expected != nbytes:
            path = self.parts[0][1].path if self.parts else None
            raise DamagedError(f"{expected} of {nbytes} bytes are stored.", path=path)


@dataclass(slots=True)
class EvenRuns:
    """Equal runs, one a rank, the last ones padded: how ZeRO-3 cuts each parameter.  Costs no memory a rank."""

    ranks: Sequence[Record]
    """One record a rank, in rank order; shared between all tensors of a group."""
    offset: int
    """Of the run in each rank's record."""
    per: int
    """Bytes a rank holds, padding included."""
    nbytes: int
    word: int = 1

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        hi = min(hi, self.nbytes)
        if lo >= hi:
            return
        for rank in range(lo // self.per, -(-hi // self.per)):
            target = rank * self.per
            yield contiguous_run(self.ranks[rank], self.offset, target, min(self.per, self.nbytes - target), self.word)

    def records(self) -> Iterator[Record]:
        yield from self.ranks[: -(-self.nbytes // self.per)] if self.per else ()

    def prove(self, nbytes: int) -> None:
        if self.nbytes != nbytes or self.per * len(self.ranks) < nbytes:
            path = self.ranks[0].path if self.ranks else None
            raise DamagedError(f"{self.per} bytes on {len(self.ranks)} ranks cannot hold {nbytes}.", path=path)
        if nbytes:
            _need(self.offset >= 0, self.ranks[0], "a run begins before its record")
        if self.offset + self.per > _smallest(self.ranks):
            for record in self.records():
                _need(self.offset + self.per <= record.nbytes, record, "a run leaves its record")


_measured: tuple[Sequence[Record], int] = ((), 0)


def _smallest(ranks: Sequence[Record]) -> int:
    """Bytes of the smallest record; the last answer is kept, since all tensors of a group share one sequence."""
    global _measured
    if _measured[0] is not ranks:
        _measured = (ranks, min((record.nbytes for record in ranks), default=0))
    return _measured[1]


@dataclass(slots=True)
class Strided:
    """The whole tensor is one strided view of a record: transposed, sliced, expanded, byte-swapped, conjugated."""

    record: Record
    offset: int
    shape: tuple[int, ...]
    """In words."""
    strides: tuple[int, ...]
    """In bytes of the record."""
    word: int
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        piece = box(self.record, self.word, self.shape, self.offset, self.strides, 0, row_major(self.shape, self.word), self.ops)
        if piece is not None and lo < hi:
            yield piece

    def records(self) -> Iterator[Record]:
        yield self.record

    def prove(self, nbytes: int) -> None:
        _need(self.word * math.prod(self.shape) == nbytes, self.record, "shape and size disagree")
        for piece in self.pieces(0, nbytes):
            lo, hi = piece.source_span
            _need(lo >= 0 and hi <= self.record.nbytes, self.record, "the view leaves its storage")


@dataclass(slots=True)
class Boxes:
    """Rectangular blocks of an n-dimensional tensor, in any number of records: DCP chunks, tensor-parallel shards."""

    blocks: list[Piece]
    """In rising order of `target_offset`."""
    nbytes: int
    _ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The running maximum of ends: where it is below `lo`, no earlier block can reach the range.
        top = 0
        for piece in self.blocks:
            top = max(top, piece.target_end)
            self._ends.append(top)

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        for i in range(bisect_right(self._ends, lo), len(self.blocks)):
            piece = self.blocks[i]
            if piece.target_offset >= hi:
                return
            if piece.target_end > lo:
                yield piece

    def records(self) -> Iterator[Record]:
        yield from {id(p.record): p.record for p in self.blocks}.values()

    def prove(self, nbytes: int) -> None:
        """Count bytes, then show that no two blocks meet: equal totals without overlap leave no hole.

        Folding may give neighbours different ranks, so blocks are compared as sets of target runs, merged lazily: cost is
        the number of rows that blocks break into, only where blocks interleave.
        """
        total = sum(p.nbytes for p in self.blocks)
        path = self.blocks[0].record.path if self.blocks else None
        if total != nbytes or self.nbytes != nbytes:
            raise DamagedError(f"its chunks hold {total} of {nbytes} bytes.", path=path)
        for piece in self.blocks:
            lo, hi = piece.source_span
            _need(lo >= 0 and hi <= piece.record.nbytes, piece.record, "a chunk leaves its record")
            _need(piece.target_offset >= 0 and piece.target_end <= nbytes, piece.record, "a chunk leaves the tensor")
        if any_meet(self.blocks):
            raise DamagedError("two of its chunks cover the same elements.", path=path)


def _need(condition: bool, record: Record, what: str) -> None:
    if not condition:
        where = f" in record {record.name}" if record.name else ""
        raise DamagedError(f"{Path(record.path).name}{where}: {what}.", path=record.path)
