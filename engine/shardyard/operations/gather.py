"""A tensor's row-major bytes, read from wherever its pieces lie: what merge, compare, statistics and shrink all read through.

Plain runs go straight into the caller's buffer and need no numpy.  Everything else is read in bounded spans of the source
(runs closer than 16 KiB in one read) and put in place by numpy as opaque words, value operations applied on the bits.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from shardyard.checkpoint import Tensor
from shardyard.dtypes import DType, Kind
from shardyard.errors import DamagedError, IncompleteError, UnsupportedError
from shardyard.files import FileHandles
from shardyard.pieces import EncodedRecord, InlineRecord, Ops, Piece, Record, box, clip
from shardyard.text import printable

if TYPE_CHECKING:
    import numpy

BLOCK = 1 << 20
MOST_BLOCK = 32 << 20
"""The largest block that a badly strided source may ask for."""
GAP = 16 << 10
"""Runs that are closer than this are read in one go: a call costs about as much as copying this many bytes."""
SPAN = 8 << 20
"""Most bytes of a source that are held at a time."""
LONG_RUN = 32 << 10
"""Runs of this length are read straight into place, without numpy."""

Observer = Callable[[Record, int, memoryview], None]
"""Told of each straight read: (record, offset in the record, the bytes)."""


def read_record(record: Record, offset: int, buffer: memoryview, handles: FileHandles) -> None:
    """Fill `buffer` with a record's bytes from `offset` on."""
    if offset < 0 or offset + len(buffer) > record.nbytes:
        raise DamagedError(f"{printable(record.name or record.path)}: a tensor leaves its record.", path=record.path)
    if isinstance(record, InlineRecord):
        buffer[:] = memoryview(record.data)[offset : offset + len(buffer)]
    elif isinstance(record, EncodedRecord) and not record.spooled:
        handles.spool.read_into(record, offset, buffer, lambda: record.decode(handles), record.nbytes)
    else:
        handles.read_into(record.path, record.locate(handles) + offset, buffer)


def read_range(
    tensor: Tensor, lo: int, hi: int, buffer: memoryview, handles: FileHandles, observer: Observer | None = None
) -> None:
    """Fill `buffer` with the tensor's row-major little-endian bytes [lo, hi).

    Raises:
        IncompleteError: the tensor's data is not here.
        DamagedError: a file ends too early, or the pieces do not fill the range.
    """
    if tensor.layout is None:
        raise IncompleteError(f"The data of {printable(tensor.name)} is not here.", code="missing-tensor", tensors=[tensor.name])
    filled = 0
    for piece in tensor.pieces(lo, hi):
        if piece.run:
            filled += _read_run(piece, lo, hi, buffer, handles, observer)
        elif (lo - piece.target_offset) % piece.word or (hi - piece.target_offset) % piece.word:
            _read_unaligned(tensor, piece.word, lo, hi, buffer, handles)
            return
        else:
            for part in clip(piece, lo, hi):
                _fill(part, lo, buffer, handles, tensor.dtype, observer)
                filled += part.nbytes
    if filled != hi - lo:
        raise DamagedError(
            f"{filled} of {hi - lo} bytes of {printable(tensor.name)} are stored.", path=next(iter(tensor.files), None)
        )


def blocks(tensor: Tensor, handles: FileHandles, nbytes: int = BLOCK) -> Iterator[tuple[int, memoryview]]:
    """The tensor's bytes in order, as (first byte, view); a view is valid until the next one is asked for.

    Blocks are `nbytes` long (a multiple of 16) except the last; larger where smaller ones would read a source over and over.
    """
    total = tensor.nbytes
    size = block_size(tensor, 0, total, nbytes)
    buffer = memoryview(bytearray(min(size, total)))
    for lo in range(0, total, size):
        view = buffer[: min(size, total - lo)]
        read_range(tensor, lo, lo + len(view), view, handles)
        yield lo, view


def block_size(tensor: Tensor, lo: int, hi: int, wanted: int = BLOCK, most: int = MOST_BLOCK) -> int:
    """How many bytes to gather at a time from [lo, hi): `wanted`, or more where the source's strides make that wasteful."""
    size = wanted
    worth = _worth(tensor, lo, min(hi, lo + size))
    while worth < 0.25 and size * 2 <= most and lo + size < hi:
        better = _worth(tensor, lo, min(hi, lo + size * 2))
        if better <= worth:
            break
        size, worth = size * 2, better
    return size


def _worth(tensor: Tensor, lo: int, hi: int) -> float:
    """Bytes wanted for each byte that reading them costs; a call counts as `GAP` bytes."""
    useful = cost = 0
    for piece in tensor.pieces(lo, hi):
        if piece.run:
            return 1.0
        word = piece.word
        a = lo - (lo - piece.target_offset) % word
        b = hi + -(hi - piece.target_offset) % word
        for part in clip(piece, a, b):
            order, coalesced, span = _coalesce(part)
            calls = math.prod(part.shape[i] for i in order[coalesced:])
            useful += part.nbytes
            cost += calls * (span + (GAP if calls > 1 else 0))
    return useful / cost if cost else 1.0


def _read_run(piece: Piece, lo: int, hi: int, buffer: memoryview, handles: FileHandles, observer: Observer | None) -> int:
    start = piece.target_offset
    a, b = max(lo, start), min(hi, start + piece.nbytes)
    if a >= b:
        return 0
    view = buffer[a - lo : b - lo]
    offset = piece.source_offset + a - start
    read_record(piece.record, offset, view, handles)
    if observer is not None:
        observer(piece.record, offset, view)
    return b - a


def _read_unaligned(tensor: Tensor, word: int, lo: int, hi: int, buffer: memoryview, handles: FileHandles) -> None:
    """A range that cuts words in two: read one that does not, and keep the middle."""
    a, b = lo - lo % word, min(tensor.nbytes, hi + -hi % word)
    if (a, b) == (lo, hi):
        raise DamagedError(f"The pieces of {printable(tensor.name)} do not begin at whole elements.", tensors=[tensor.name])
    whole = memoryview(bytearray(b - a))
    read_range(tensor, a, b, whole, handles)
    buffer[:] = whole[lo - a : hi - a]


def _coalesce(piece: Piece) -> tuple[list[int], int, int]:
    """Dimensions from the innermost of the source outwards, how many of them one read covers, and how far it reaches."""
    order = sorted(range(len(piece.shape)), key=lambda i: abs(piece.source_strides[i]))
    span = piece.word
    straight = True
    for count, i in enumerate(order):
        n, stride = piece.shape[i], abs(piece.source_strides[i])
        if n == 1:
            continue
        if stride and (stride - span >= GAP or (straight and span >= LONG_RUN and not piece.ops)):
            return order, count, span
        straight = straight and piece.source_strides[i] == piece.target_strides[i] == span
        span += (n - 1) * stride
    return order, len(order), span


def _reads(piece: Piece) -> Iterator[Piece]:
    """The piece cut so that each part is one read of at most about `SPAN` bytes."""
    order, coalesced, _ = _coalesce(piece)
    outer = order[coalesced:]
    if not outer:
        yield from _bounded(piece)
        return
    for index in itertools.product(*(range(piece.shape[i]) for i in outer)):
        source = piece.source_offset + sum(k * piece.source_strides[i] for k, i in zip(index, outer, strict=True))
        target = piece.target_offset + sum(k * piece.target_strides[i] for k, i in zip(index, outer, strict=True))
        kept = [i for i in range(len(piece.shape)) if i not in outer]
        part = box(
            piece.record,
            piece.word,
            [piece.shape[i] for i in kept],
            source,
            [piece.source_strides[i] for i in kept],
            target,
            [piece.target_strides[i] for i in kept],
            piece.ops,
        )
        if part is not None:
            yield from _bounded(part)


def _bounded(piece: Piece) -> Iterator[Piece]:
    """The piece cut along the outermost dimension of its source until each part spans at most about `SPAN` bytes."""
    lo, hi = piece.source_span
    if hi - lo <= SPAN or piece.run:
        yield piece
        return
    outer = max(range(len(piece.shape)), key=lambda i: abs(piece.source_strides[i]))
    n, stride = piece.shape[outer], abs(piece.source_strides[outer])
    inner = hi - lo - (n - 1) * stride
    step = max(1, (SPAN - inner) // stride + 1)
    for k in range(0, n, step):
        shape = (*piece.shape[:outer], min(step, n - k), *piece.shape[outer + 1 :])
        source = piece.source_offset + k * piece.source_strides[outer]
        target = piece.target_offset + k * piece.target_strides[outer]
        part = box(piece.record, piece.word, shape, source, piece.source_strides, target, piece.target_strides, piece.ops)
        if part is not None:
            yield from _bounded(part)


def _fill(piece: Piece, lo: int, buffer: memoryview, handles: FileHandles, dtype: DType, observer: Observer | None) -> None:
    """Put one piece, which lies inside the buffer's range, in place."""
    for part in _reads(piece):
        if part.run:
            _read_run(part, lo, lo + len(buffer), buffer, handles, observer)
            continue
        import numpy as np

        word = np.dtype(f"u{part.word}") if part.word <= 8 else np.dtype(np.complex128)
        first, end = part.source_span
        scratch = _scratch(end - first)
        read_record(part.record, first, scratch, handles)
        if observer is not None:
            observer(part.record, first, scratch)
        source = np.ndarray(part.shape, word, scratch, part.source_offset - first, part.source_strides)
        target = np.ndarray(part.shape, word, buffer, part.target_offset - lo, part.target_strides)
        target[...] = source
        if part.ops:
            _apply(part, lo, buffer, dtype)


def _apply(piece: Piece, lo: int, buffer: memoryview, dtype: DType) -> None:
    """Change the bits of a piece that is in place: swap first, so that signs are where a little-endian machine has them."""
    import numpy as np

    half = dtype.word if dtype.kind is Kind.COMPLEX and piece.word == dtype.itemsize else piece.word
    parts = piece.word // half
    shape, strides = (*piece.shape, parts), (*piece.target_strides, half)
    values: numpy.ndarray = np.ndarray(shape, np.dtype(f"u{half}"), buffer, piece.target_offset - lo, strides)
    if piece.ops & Ops.SWAP:
        values.byteswap(inplace=True)
    if not piece.ops & (Ops.CONJ | Ops.NEG):
        return
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        raise UnsupportedError(f"A negated view of {dtype.name} values is not read.", code="unsupported", path=piece.record.path)
    sign = values.dtype.type(1 << (8 * half - 1))
    if piece.ops & Ops.NEG:
        values ^= sign
    if piece.ops & Ops.CONJ and parts == 2:
        values[..., 1] ^= sign


_threads = threading.local()


def _scratch(nbytes: int) -> memoryview:
    """A buffer of this thread, grown as needed and used again."""
    buffer: bytearray | None = getattr(_threads, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _threads.buffer = bytearray(max(nbytes, BLOCK))
    return memoryview(buffer)[:nbytes]
