"""ZeRO's arithmetic: from flat vectors on ranks to the bytes of one parameter.

Stages 1 and 2 join the parameters of a group to one vector, pad its end and cut it into equal partitions: a parameter may span
several ranks (`Chain`).  Stage 3 cuts each parameter by itself into equal parts, zero-padded at the tail, and a rank's vector
has those parts one after another (`Columns`).  Element counts are exact: DeepSpeed's own script lets a shift of up to
2·world−1 elements pass.  A vector that is not here is None; what needs it has no layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardyard.dtypes import DType
from shardyard.errors import DamagedError
from shardyard.formats.torch.file import TorchFile
from shardyard.formats.torch.tensors import TensorValue
from shardyard.layouts import EvenRuns, Layout, OneRun, Runs
from shardyard.pieces import Record
from shardyard.text import printable

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatVector:
    """One rank's part of a flat group, in elements of `dtype`."""

    record: Record
    offset: int
    """Of its first byte, in the record."""
    numel: int
    dtype: DType


def layout_error(problem: str, path: str | None, remedy: str = "") -> DamagedError:
    """The refusal of a layout that is not understood to the last element."""
    return DamagedError(problem, code="unknown-layout", path=path, remedy=remedy)


def mixed_error(problem: str, path: str | None) -> DamagedError:
    """The refusal of files that do not fit together, each of which may be whole."""
    return layout_error(problem, path, "Files of several ranks, steps or runs are mixed: copy the step again, or use another.")


def flat_vector(file: TorchFile, value: object, what: str) -> FlatVector:
    """A stored tensor as a flat vector.

    Raises:
        DamagedError: it is no contiguous one-dimensional tensor, or leaves its storage.
    """
    name = printable(file.path.rsplit("/", 1)[-1])
    if not isinstance(value, TensorValue) or len(value.shape) > 1:
        raise layout_error(f"{name}: {what} is not a flat vector.", file.path)
    numel = math.prod(value.shape)
    if numel == 0:
        return FlatVector(Record(file.path, 0, 0), 0, 0, value.dtype)
    layout = file.layout(value)
    if not isinstance(layout, OneRun):
        raise layout_error(f"{name}: {what} is not stored in one piece.", file.path)
    return FlatVector(layout.record, layout.offset, numel, value.dtype)


@dataclass(slots=True)
class Chain:
    """A flat vector cut into equal partitions: stages 1 and 2."""

    pieces: Sequence[FlatVector | None]
    """In the order of the vector; those at the end may be short or empty, where padding was left out."""
    size: int
    """Elements of a whole partition."""

    def layout(self, start: int, numel: int, dtype: DType) -> Layout | None:
        """Where elements [start, start + numel) are; None if a piece they need is not here."""
        item, end = dtype.itemsize, start + numel
        parts: list[tuple[int, Record, int]] = []
        position = start
        while position < end:
            index = position // self.size
            piece = self.pieces[index]
            if piece is None:
                return None
            parts.append(((position - start) * item, piece.record, piece.offset + (position - index * self.size) * item))
            position = min(end, (index + 1) * self.size)
        if len(parts) == 1:
            return OneRun(parts[0][1], parts[0][2], numel * item)
        return Runs(parts, numel * item)


@dataclass(slots=True)
class Columns:
    """One vector a rank, each holding its part of every parameter, one after another: stage 3."""

    pieces: Sequence[FlatVector | None]
    _records: list[Record] | None = field(init=False, default=None)
    _offset: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        whole = [p for p in self.pieces if p is not None]
        if len(whole) == len(self.pieces) and len({p.offset for p in whole}) == 1:
            # One list of records serves all parameters: a model of 90,000 tensors on 1,024 ranks has 10^8 pieces.
            self._records = [p.record for p in whole]
            self._offset = whole[0].offset

    def layout(self, start: int, numel: int, dtype: DType) -> Layout | None:
        """Where a parameter of `numel` elements is whose parts begin at element `start` of every rank's vector."""
        if numel == 0:
            return Runs([], 0)
        item = dtype.itemsize
        per = share(numel, len(self.pieces)) * item
        if self._records is not None:
            return EvenRuns(self._records, self._offset + start * item, per, numel * item)
        parts: list[tuple[int, Record, int]] = []
        for rank in range(-(-numel * item // per)):
            piece = self.pieces[rank]
            if piece is None:
                return None
            parts.append((rank * per, piece.record, piece.offset + start * item))
        return Runs(parts, numel * item)


def share(numel: int, world: int) -> int:
    """Elements of a parameter that each rank holds at stage 3, padding included."""
    return -(-numel // world)


def partition_size(
    pieces: Sequence[FlatVector | None], total: int, paddings: Sequence[int | None], *, keeps_padding: bool, what: str
) -> int:
    """Elements of a whole partition, proven against every piece and every count that is stored.

    Args:
        pieces: the pieces in the order of the vector.
        total: elements of the group's parameters, gaps between them included.
        paddings: each piece's padding as stored (`group_paddings`); None where the version does not store it.
        keeps_padding: whether padding is stored too (BF16_Optimizer), or was left out when saving.
        what: how to call the group in a refusal.

    Raises:
        DamagedError: the counts do not agree.
    """
    count = len(pieces)
    known = [(i, p, q) for i, (p, q) in enumerate(zip(pieces, paddings, strict=True)) if p is not None]
    if not known:
        return max(1, -(-total // count))
    path = known[0][1].record.path
    size = _agreed_size([(p.numel, q) for _, p, q in known], total, count, keeps_padding=keeps_padding)
    if size is None or not total <= size * count:
        raise mixed_error(
            f"{what}: its {count} parts hold {sum(p.numel for _, p, _ in known)} elements where its parameters need {total}.",
            path,
        )
    for index, piece, _ in known:
        needed = min(max(total - index * size, 0), size)
        if not needed <= piece.numel <= size:
            possible = f"{needed} to {size} are possible" if needed < size else f"only {size} are possible"
            raise mixed_error(f"{what}: part {index} holds {piece.numel} elements where {possible}.", piece.record.path)
    stored = [q for _, _, q in known if q is not None]
    if len(known) == count and len(stored) == count and size * count - total not in (sum(stored), stored[-1]):
        raise mixed_error(f"{what}: its stored paddings do not add up to {size * count - total}.", path)
    return max(1, size)


def _agreed_size(known: list[tuple[int, int | None]], total: int, count: int, *, keeps_padding: bool) -> int | None:
    """The size that all pieces agree on, or None."""
    if keeps_padding:
        sizes = {numel for numel, _ in known}
        return sizes.pop() if len(sizes) == 1 else None
    padded = {numel + padding for numel, padding in known if padding is not None}
    if len(padded) == 1:
        return padded.pop()
    # Before 0.6 the padding is not stored, and up to 0.10 only the last rank's is.  Then the alignment is one or two elements a
    # rank, or nothing but the last parts is short and every element is accounted for.
    first = max(numel for numel, _ in known)
    exact = len(known) == count and sum(numel for numel, _ in known) == total
    return first if exact or first in (share(total, count), share(total, 2 * count) * 2) else None
