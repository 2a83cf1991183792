"""The layout of a tensor that lies in slices: pieces by arithmetic, slices resolved when their bytes are wanted."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from shardyard.dtypes import DType
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.formats.coverage import flaw
from shardyard.formats.dcp.rows import Chunk, Place
from shardyard.formats.dcp.slices import EncodedSlice, Slice
from shardyard.formats.torch.tensors import TensorValue
from shardyard.pieces import Ops, Piece, Record, box, row_major
from shardyard.text import printable


@dataclass(slots=True, eq=False)
class Sliced:
    """A tensor in chunks, each in a slice of its own.  Chunks without elements are left out."""

    shape: tuple[int, ...]
    dtype: DType
    chunks: Sequence[Chunk]
    paths: Mapping[str, str]
    """Absolute paths of the folder's files."""
    handles: FileHandles
    _strides: tuple[int, ...] = ()
    _ordered: list[Chunk] | None = None
    _reach: list[int] = field(default_factory=list)
    """For each chunk in target order, the furthest end of it and all before it."""
    _records: dict[int, Slice | EncodedSlice] = field(default_factory=dict)
    _pieces: dict[int, Piece | None] = field(default_factory=dict)

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        chunks = self._in_order()
        for i in range(bisect_right(self._reach, lo), len(chunks)):
            if self._target(chunks[i]) >= hi:
                return
            if self._end(chunks[i]) > lo:
                piece = self._piece(i)
                if piece is not None:
                    yield piece

    def records(self) -> Iterator[Record]:
        for i in range(len(self._in_order())):
            yield self._record(i)

    def prove(self, nbytes: int) -> None:
        problem = flaw(self.shape, [(c.offsets, c.sizes) for c in self.chunks])
        expected = self.dtype.itemsize
        for n in self.shape:
            expected *= n
        if problem or expected != nbytes:
            raise DamagedError(f"{problem or 'its size and shape disagree'}.", path=self._first_path())

    def _first_path(self) -> str | None:
        return next((self.paths.get(c.place.file) for c in self.chunks if c.place is not None), None)

    def _in_order(self) -> list[Chunk]:
        if self._ordered is None:
            self._strides = row_major(self.shape, self.dtype.itemsize)
            chunks = sorted((c for c in self.chunks if 0 not in c.sizes), key=self._target)
            self._reach = list(accumulate((self._end(c) for c in chunks), max))
            self._ordered = chunks
        return self._ordered

    def _target(self, chunk: Chunk) -> int:
        return sum(o * s for o, s in zip(chunk.offsets, self._strides, strict=True))

    def _end(self, chunk: Chunk) -> int:
        return (
            sum((o + n - 1) * s for o, n, s in zip(chunk.offsets, chunk.sizes, self._strides, strict=True)) + self.dtype.itemsize
        )

    def _record(self, i: int) -> Slice | EncodedSlice:
        record = self._records.get(i)
        if record is None:
            chunk = self._in_order()[i]
            place = chunk.place or Place()
            nbytes = self.dtype.itemsize
            for n in chunk.sizes:
                nbytes *= n
            path = self.paths[place.file]
            kind = EncodedSlice if place.codecs else Slice
            # setdefault: two threads that ask at once must get one record.
            record = self._records.setdefault(i, kind(path, nbytes, place.start, place=place))
        return record

    def _piece(self, i: int) -> Piece | None:
        if i not in self._pieces:
            record = self._record(i)
            value = record.resolve(self.handles)
            chunk = self._in_order()[i]
            self._check(value, chunk, record)
            item = self.dtype.itemsize
            ops = value.ops | (Ops.SWAP if record.big_endian and self.dtype.word > 1 else Ops.NONE)
            source = [s * item for s in value.strides]
            self._pieces[i] = box(record, item, chunk.sizes, value.offset * item, source, self._target(chunk), self._strides, ops)
        return self._pieces[i]

    def _check(self, value: TensorValue, chunk: Chunk, record: Slice | EncodedSlice) -> None:
        """The slice must hold what `.metadata` promised, inside its own bytes."""
        where = f"{printable(os.path.basename(record.path))} at byte {record.place.start}"
        if value.dtype != self.dtype or value.shape != chunk.sizes:
            raise DamagedError(
                f"{where} holds a {value.dtype.name} tensor of shape {list(value.shape)} where .metadata says {self.dtype.name} "
                f"{list(chunk.sizes)}: files were exchanged or come from different saves.",
                path=record.path,
            )
        item = self.dtype.itemsize
        reach = value.offset * item + sum((n - 1) * s * item for n, s in zip(value.shape, value.strides, strict=True)) + item
        if min(value.strides, default=0) < 0 or reach > record.nbytes:
            raise DamagedError(f"{where}: a chunk leaves its stored bytes.", path=record.path)
