"""How tensors share storages, in bytes: what is stored, what is touched, and the least that keeps every sharing.

Three numbers a storage: `stored`; `touched`, the bytes that at least one view reaches (the lower bound of any rewrite); and
`ideal`, the target of a shrink that keeps sharing.  Views whose extents overlap form a cluster, which costs the smaller of the
sum of its distinct views and its span: slices are cut out, a matrix and its transpose stay one storage, a 0-stride view small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from shardyard.checkpoint import Tensor
from shardyard.pieces import Ops

MOST_MASK_UNITS = 1 << 25
MOST_MASK_STEPS = 1 << 20


@dataclass(slots=True, eq=False)
class View:
    """One distinct look at a storage, and everybody who has it. More than one holder is a tie."""

    dtype: str
    itemsize: int
    offset: int
    """In bytes, like the strides."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ops: Ops = Ops.NONE
    holders: list[str] = field(default_factory=list)
    """Names, or whatever the caller identifies its tensors by."""
    end: int = field(init=False)
    """One past the last byte reached; equals `offset` for a view without elements."""

    def __post_init__(self) -> None:
        reach = self.itemsize
        for n, stride in zip(self.shape, self.strides, strict=True):
            if n == 0:
                reach = 0
                break
            reach += (n - 1) * stride
        self.end = self.offset + reach

    @property
    def nbytes(self) -> int:
        """Bytes of its row-major values."""
        return self.itemsize * math.prod(self.shape)

    @property
    def packed(self) -> bool:
        """Whether it is row-major and contiguous, as most are."""
        step = self.itemsize
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != step:
                return False
            step *= n
        return True

    @property
    def identity(self) -> tuple[object, ...]:
        """Two views with equal identities hold the same values at the same place."""
        return (self.dtype, self.offset, self.shape, self.strides, self.ops)


class Cluster:
    """Views whose extents overlap, possibly interleaved without a common byte."""

    def __init__(self, views: list[View], end: int) -> None:
        self.views = views
        """By rising offset."""
        self.end = end

    @property
    def start(self) -> int:
        return self.views[0].offset

    @property
    def span(self) -> int:
        return self.end - self.start

    @property
    def distinct(self) -> int:
        """Bytes if every distinct view were stored by itself."""
        return sum(v.nbytes for v in self.views)

    @property
    def ideal(self) -> int:
        return min(self.distinct, self.span)

    @property
    def split(self) -> bool:
        """Whether the ideal stores each distinct view by itself; otherwise the span stays one storage."""
        return self.distinct <= self.span

    @cached_property
    def _touched(self) -> tuple[int, bool]:
        return _touched(self.views, self.start, self.end)

    @property
    def touched(self) -> int:
        return self._touched[0]

    @property
    def exact(self) -> bool:
        """False where counting was too costly and `touched` is an upper bound."""
        return self._touched[1]


class StorageUse:
    """A storage and the views of it."""

    def __init__(self, key: tuple[str, str], stored: int, views: Iterable[View]) -> None:
        self.key = key
        """(file, storage key)."""
        self.stored = stored
        self.views = list(views)
        self.clusters = clusters_of(self.views)

    @property
    def touched(self) -> int:
        return sum(c.touched for c in self.clusters)

    @property
    def ideal(self) -> int:
        return sum(c.ideal for c in self.clusters)

    @property
    def distinct(self) -> int:
        """Payload after storing each distinct view by itself."""
        return sum(v.nbytes for v in self.views)

    @property
    def wasted(self) -> int:
        """Stored bytes that no tensor uses."""
        return max(0, self.stored - self.touched)

    @property
    def names(self) -> list[str]:
        return sorted(h for v in self.views for h in v.holders)

    @property
    def ties(self) -> list[list[str]]:
        """Groups of names that are the same view."""
        return [sorted(v.holders) for v in self.views if len(v.holders) > 1 and 0 not in v.shape]


def analyse(tensors: Iterable[Tensor]) -> list[StorageUse]:
    """The storages that the tensors use, in order of first use; tensors without a storage are left out."""
    stored: dict[tuple[str, str], int] = {}
    views: dict[tuple[str, str], dict[tuple[object, ...], View]] = {}
    for tensor in tensors:
        look = tensor.storage
        if look is None:
            continue
        stored[look.key] = look.storage_nbytes
        dtype, shape, strides = tensor.dtype, tensor.shape, look.strides
        if dtype.bits < 8:
            # Several elements share a byte: such a view is a run of bytes.
            shape, strides = (tensor.nbytes,), (1,)
        identity = (dtype.name, look.offset, shape, strides, look.ops.value)
        of_key = views.setdefault(look.key, {})
        view = of_key.get(identity)
        if view is None:
            view = of_key[identity] = View(dtype.name, dtype.itemsize, look.offset, shape, strides, look.ops)
        view.holders.append(tensor.name)
    return [StorageUse(key, stored[key], of_key.values()) for key, of_key in views.items()]


def clusters_of(views: Iterable[View]) -> list[Cluster]:
    """Views grouped by overlapping extents; views without elements are in none."""
    found: list[Cluster] = []
    filled = [v for v in views if v.end > v.offset]
    if len(filled) > 1:
        filled.sort(key=lambda v: (v.offset, -v.end))
    for view in filled:
        if found and view.offset < found[-1].end:
            found[-1].views.append(view)
            found[-1].end = max(found[-1].end, view.end)
        else:
            found.append(Cluster([view], view.end))
    return found


@dataclass(frozen=True, slots=True)
class _Comb:
    """The bytes of a view: equal runs, repeated by (count, stride) dimensions of rising stride."""

    start: int
    run: int
    dims: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        return self.start + sum((n - 1) * s for n, s in self.dims) + self.run

    @property
    def count(self) -> int | None:
        """Bytes in it; None if its runs may overlap."""
        reach, total = self.run, self.run
        for n, stride in self.dims:
            if stride < reach:
                return None
            reach += (n - 1) * stride
            total *= n
        return total


def _comb(view: View) -> _Comb:
    run = view.itemsize
    dims: list[tuple[int, int]] = []
    for stride, n in sorted((s, n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1 and s > 0):
        if not dims and stride <= run:
            run += (n - 1) * stride
        elif dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0] * n, dims[-1][1])
        else:
            dims.append((n, stride))
    return _Comb(view.offset, run, tuple(dims))


def _touched(views: list[View], start: int, end: int) -> tuple[int, bool]:
    """Bytes that at least one view reaches, by arithmetic where possible; (bytes, whether that is exact)."""
    if any(v.offset == start and v.end == end and v.packed for v in views):
        return end - start, True
    combs = list(dict.fromkeys(_comb(v) for v in views))
    dense = _union([(c.start, c.end) for c in combs if not c.dims])
    loose = [c for c in combs if c.dims and not any(lo <= c.start and c.end <= hi for lo, hi in dense)]
    total = sum(hi - lo for lo, hi in dense)
    if not loose:
        return total, True
    if len(loose) == 1 and loose[0].count is not None and not any(lo < loose[0].end and loose[0].start < hi for lo, hi in dense):
        return total + loose[0].count, True
    unit = math.gcd(*(n for c in loose for n in (c.start - start, c.run, *(s for _, s in c.dims))))
    unit = math.gcd(unit, *(n - start for interval in dense for n in interval))
    if (end - start) // unit <= MOST_MASK_UNITS and sum(map(_steps, loose)) <= MOST_MASK_STEPS:
        mask = bytearray((end - start) // unit)
        for lo, hi in dense:
            mask[(lo - start) // unit : (hi - start) // unit] = b"\1" * ((hi - lo) // unit)
        for comb in loose:
            _mark(mask, comb, start, unit)
        return mask.count(1) * unit, True
    return min(end - start, total + sum(c.count or c.end - c.start for c in loose)), False


def _union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(intervals):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        else:
            found.append((lo, hi))
    return found


def _steps(comb: _Comb) -> int:
    """Slices that `_mark` needs at most: all dimensions but the longest, times a run's units."""
    sizes = [n for n, _ in comb.dims]
    return comb.run * math.prod(sizes) // max(sizes)


def _mark(mask: bytearray, comb: _Comb, start: int, unit: int) -> None:
    longest = max(comb.dims)
    others = list(comb.dims)
    others.remove(longest)
    n, stride = longest[0], longest[1] // unit
    ones = b"\1" * n
    base = (comb.start - start) // unit
    for steps in product(*(range(0, m * s // unit, s // unit) for m, s in others)):
        first = base + sum(steps)
        for at in range(first, first + comb.run // unit):
            mask[at : at + (n - 1) * stride + 1 : stride] = ones
