"""What might explain names without a partner and shapes that differ: said, never assumed.

Ties are proved byte by byte; a renamed tensor is suggested where the bytes are the same and not all one value, since zeros and
ones are equal by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardyard.checkpoint import Tensor
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.compare.names import Match
from shardyard.operations.context import Context
from shardyard.operations.numeric import element_bytes

HEAD = 4096
"""Bytes that are looked at before whole tensors are."""
BAND = 4 << 20
"""Bytes of two matrices that are held at a time to see whether one is the other's transpose."""


@dataclass(slots=True)
class Suggestions:
    """Ties that were proved, and candidates that were not asked for."""

    tied: list[dict[str, Any]] = field(default_factory=list)
    """`{"name", "in", "equals"}`: a name of one side only, whose tensor is there a second time under a name that both have."""
    candidates: list[dict[str, Any]] = field(default_factory=list)
    """`{"a", "b", "reason"}`: tensors that hold the same values under other names or in other shapes."""


def look(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    match: Match,
    rows: list[dict[str, Any]],
    handles: FileHandles,
    context: Context,
) -> Suggestions:
    """Look for ties among the names of one side, for renamed tensors, and for transposes."""
    found = Suggestions()
    for side, tensors, alone in (("a", a, match.only_a), ("b", b, match.only_b)):
        partnered = {pair[side == "b"] for pair in match.pairs.values()}
        for name in alone:
            context.check()
            twin = _twin(tensors[name], (tensors[n] for n in partnered), handles, context)
            if twin is not None:
                found.tied.append({"name": name, "in": side, "equals": twin.name})
    tied = {(t["in"], t["name"]) for t in found.tied}
    free_a = [a[n] for n in match.only_a if ("a", n) not in tied]
    free_b = [b[n] for n in match.only_b if ("b", n) not in tied]
    if match.hint is None:
        found.candidates.extend(_renamed(free_a, free_b, handles, context))
    for row in rows:
        if row["relation"] == "shape-differs":
            in_a, in_b = match.pairs[row["name"]]
            if _transposed(a[in_a], b[in_b], handles, context):
                row["note"] = "the same values, transposed"
            if "note" in row and "same values" in row["note"]:
                found.candidates.append({"a": in_a, "b": in_b, "reason": row["note"]})
    return found


def _twin(tensor: Tensor, others: Iterator[Tensor], handles: FileHandles, context: Context) -> Tensor | None:
    """Another tensor of the same kind, shape and bytes."""
    alike = [t for t in others if t.dtype == tensor.dtype and t.shape == tensor.shape and t.layout is not None]
    return next((t for t in alike if same_bytes(tensor, t, handles, context)), None) if alike else None


def _renamed(a: list[Tensor], b: list[Tensor], handles: FileHandles, context: Context) -> Iterator[dict[str, Any]]:
    by_start: dict[tuple[str, int, bytes], list[Tensor]] = {}
    sizes = {(t.dtype.name, t.nbytes) for t in a}
    for tensor in b:
        if (tensor.dtype.name, tensor.nbytes) in sizes and tensor.layout is not None:
            by_start.setdefault((tensor.dtype.name, tensor.nbytes, _head(tensor, handles)), []).append(tensor)
    for tensor in a if by_start else ():
        context.check()
        if tensor.layout is None:
            continue
        for other in by_start.get((tensor.dtype.name, tensor.nbytes, _head(tensor, handles)), ()):
            if same_bytes(tensor, other, handles, context):
                shape = "same shape" if tensor.shape == other.shape else "another shape"
                yield {"a": tensor.name, "b": other.name, "reason": f"{shape} and the same bytes"}


def _head(tensor: Tensor, handles: FileHandles) -> bytes:
    n = min(HEAD, tensor.nbytes)
    buffer = bytearray(n)
    gather.read_range(tensor, 0, n, memoryview(buffer), handles)
    return bytes(buffer)


def same_bytes(x: Tensor, y: Tensor, handles: FileHandles, context: Context) -> bool:
    """Whether two tensors of one size hold the same bytes, and those are not one element over and over."""
    if x.nbytes != y.nbytes or x.nbytes <= x.dtype.itemsize or _head(x, handles) != _head(y, handles):
        return False
    size = element_bytes(x.dtype)
    first: bytes | None = None
    varied = False
    step = max(gather.block_size(t, 0, t.nbytes, gather.BLOCK, 8 << 20) for t in (x, y))
    left, right = (memoryview(bytearray(min(step, x.nbytes))) for _ in range(2))
    for lo in range(0, x.nbytes, step):
        context.check()
        n = min(step, x.nbytes - lo)
        for tensor, view in ((x, left), (y, right)):
            gather.read_range(tensor, lo, lo + n, view[:n], handles)
        if bytes(left[:n]) != bytes(right[:n]):
            return False
        first = first if first is not None else bytes(left[:size])
        varied = varied or bytes(left[:n]) != first * (n // size)
    return varied


def _transposed(x: Tensor, y: Tensor, handles: FileHandles, context: Context) -> bool:
    """Whether one matrix is the other, transposed; a band of rows against a band of columns at a time."""
    size = x.dtype.itemsize
    if x.dtype != y.dtype or len(x.shape) != 2 or x.shape != y.shape[::-1] or x.numel < 2 or 1 in x.shape:
        return False
    if x.dtype.bits != 8 * size or size > 8:
        return False
    rows, columns = x.shape
    kind = np.dtype(f"u{size}")
    step = max(1, BAND // (columns * size))
    for at in range(0, rows, step):
        n = min(step, rows - at)
        band = memoryview(bytearray(n * columns * size))
        gather.read_range(x, at * columns * size, (at + n) * columns * size, band, handles)
        other = memoryview(bytearray(len(band)))
        for column in range(columns):
            lo = (column * rows + at) * size
            gather.read_range(y, lo, lo + n * size, other[column * n * size : (column + 1) * n * size], handles)
            if column == 0 and not np.array_equal(np.frombuffer(band, kind)[::columns], np.frombuffer(other[: n * size], kind)):
                return False
        context.check()
        if not np.array_equal(np.frombuffer(band, kind).reshape(n, columns).T, np.frombuffer(other, kind).reshape(columns, n)):
            return False
    return True
