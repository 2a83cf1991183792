"""What two arrays have in common and what not, counted exactly in float64 (integers exactly in integers).

Ranges are tallied on their own, by whichever thread read them, and added up in order.  NaN on both sides counts as the same
value; averages and the largest difference are over elements that are finite on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray as Array

from shardyard.dtypes import DType, Kind
from shardyard.operations.numeric import largest_finite, wide, words


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|a - b| <= absolute + relative * |b|."""

    relative: float = 0.0
    absolute: float = 0.0

    def __bool__(self) -> bool:
        return self.relative > 0 or self.absolute > 0


@dataclass(slots=True)
class Tally:
    """What was seen of a range of elements. Indices are flat, of the whole tensor; -1: there is none."""

    count: int = 0
    differing: int = 0
    """Elements of different value."""
    finite: int = 0
    """Elements that are finite on both sides."""
    total: float | int = 0
    """Sum of |a - b|."""
    squares: float = 0.0
    largest: float | int = -1
    """Largest |a - b|; -1 before a finite pair was seen."""
    argmax: int = -1
    first: int = -1
    """The first element of different value."""
    largest_a: float | int = 0
    """Largest |a| where both are finite."""
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0
    outside: int = 0
    """Elements beyond the tolerance."""
    unexplained: int = 0
    """Elements that are not what a cast to the narrower type would have made."""
    powers: Counter[int] = field(default_factory=Counter)
    """How the differences that are not zero are spread: floor(log2 |a - b|) to elements."""

    def add(self, later: Tally) -> None:
        """Count in a range that comes after this one."""
        if later.largest > self.largest:
            self.largest, self.argmax = later.largest, later.argmax
        if self.first < 0:
            self.first = later.first
        self.largest_a = max(self.largest_a, later.largest_a)
        self.count += later.count
        self.differing += later.differing
        self.finite += later.finite
        self.total += later.total
        self.squares += later.squares
        self.nan_a += later.nan_a
        self.nan_b += later.nan_b
        self.inf_a += later.inf_a
        self.inf_b += later.inf_b
        self.outside += later.outside
        self.unexplained += later.unexplained
        if later.powers:
            self.powers.update(later.powers)


Compare = Callable[[Array, Array, int, Tolerance], Tally]
"""(elements of a, of b, flat index of the first, tolerance) to what they have in common."""


def comparison(a: DType, b: DType) -> Compare | None:
    """How elements of these kinds are compared; None where they cannot be."""
    kinds = {a.kind, b.kind}
    if kinds <= {Kind.FLOAT}:
        return floats
    if kinds <= {Kind.INT, Kind.UINT, Kind.BOOL}:
        return integers
    if kinds <= {Kind.FLOAT, Kind.COMPLEX, Kind.INT, Kind.UINT, Kind.BOOL}:
        return mixed
    return patterns if a == b else None


def same(values: Array, dtype: DType, start: int) -> Tally:
    """The tally of a range whose bytes are the same on both sides, in two reductions instead of ten."""
    if dtype.kind is Kind.FLOAT:
        top = largest_finite(values, dtype)
        if top is None:
            return floats(values, values, start, Tolerance())
        return Tally(values.size, finite=values.size, largest=0.0, argmax=start, largest_a=top)
    if dtype.kind is Kind.COMPLEX:
        return mixed(values, values, start, Tolerance())
    if dtype.kind in (Kind.INT, Kind.UINT) and values.size:
        top = max(abs(int(values.max())), abs(int(values.min())))
        return Tally(values.size, finite=values.size, largest=0, argmax=start, largest_a=top)
    return Tally(values.size, finite=values.size, largest=0, argmax=start, largest_a=int(dtype.kind is Kind.BOOL))


def floats(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """Real floating numbers of any two kinds."""
    return _floats(wide(x), wide(y), start, tolerance)


def after_rounding(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """float32 and its rounding to 16 bits: float32 holds their differences exactly (Sterbenz), in half the time."""
    return _floats(x.astype(np.float32, copy=False), y.astype(np.float32, copy=False), start, tolerance)


def _floats(a: Array, b: Array, start: int, tolerance: Tolerance) -> Tally:
    distance = np.subtract(a, b)
    np.abs(distance, out=distance)
    exact = wide(distance)
    total = float(exact.sum())
    if not np.isfinite(total):
        return _careful(wide(a), wide(b), start, tolerance)
    tally = Tally(a.size, finite=a.size, total=total)
    if not a.size:
        return tally
    tally.argmax = start + int(distance.argmax())
    tally.largest = float(distance[tally.argmax - start])
    tally.largest_a = max(float(a.max()), -float(a.min()))
    unequal = distance != 0
    tally.differing = int(np.count_nonzero(unequal))
    if tally.differing:
        tally.first = start + int(unequal.argmax())
        if tolerance:
            tally.outside = int(np.count_nonzero(exact > tolerance.absolute + tolerance.relative * np.abs(wide(b))))
        tally.powers = _powers(distance)
        np.square(exact, out=exact)
        # Not `np.dot`: a linear algebra library that starts threads for it takes four times as long.
        tally.squares = float(exact.sum())
    return tally


def mixed(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """Complex numbers, and integers against floating ones (equal only if they are, beyond 2^53 too)."""
    a, b = wide(x), wide(y)
    lost_a, lost_b = _lost(x, a), _lost(y, b)
    lost = lost_a if lost_b is None else lost_b
    return _careful(a, b, start, tolerance, lost)


def _lost(values: Array, widened: Array) -> Array | None:
    """How far float64 is from 64-bit integers that it cannot hold; None for kinds that it can."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    suspects = np.flatnonzero(np.abs(widened) >= 2.0**53)
    lost = np.zeros(values.size)
    for i in suspects:
        lost[i] = abs(int(values[i]) - int(widened[i]))
    return lost


def _careful(a: Array, b: Array, start: int, tolerance: Tolerance, lost: Array | None = None) -> Tally:
    """As `floats`, for ranges that may hold NaN and inf, or complex numbers."""
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(both, np.abs(a - b), 0.0)
    unequal = ~((a == b) | (nan_a & nan_b))
    if lost is not None:
        distance = np.where(unequal, distance, lost)
        unequal |= lost > 0
    tally = Tally(
        a.size,
        differing=int(np.count_nonzero(unequal)),
        finite=int(np.count_nonzero(both)),
        total=float(distance.sum()),
        nan_a=int(np.count_nonzero(nan_a)),
        nan_b=int(np.count_nonzero(nan_b)),
        inf_a=int(np.count_nonzero(np.isinf(a))),
        inf_b=int(np.count_nonzero(np.isinf(b))),
    )
    if tally.finite:
        place = int(np.where(both, distance, -1.0).argmax())
        tally.argmax, tally.largest = start + place, float(distance[place])
        tally.largest_a = float(np.abs(a[both]).max())
    if tally.differing:
        tally.first = start + int(unequal.argmax())
        if tolerance:
            with np.errstate(all="ignore"):
                within = both & (distance <= tolerance.absolute + tolerance.relative * np.abs(b))
            tally.outside = int(np.count_nonzero(unequal & ~within))
        tally.powers = _powers(distance)
        with np.errstate(over="ignore"):
            tally.squares = float(np.square(distance).sum())
    return tally


def integers(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """Integers and booleans, without rounding or wrap-around."""
    signed = [v.dtype.kind == "i" and v.size and int(v.min()) < 0 for v in (x, y)]
    huge = [v.dtype == np.uint64 for v in (x, y)]
    if (signed[0] and huge[1]) or (signed[1] and huge[0]):
        return _any_integers(x, y, start, tolerance)
    common = np.uint64 if any(huge) else np.int64
    a, b = x.astype(common), y.astype(common)
    distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    tally = Tally(x.size, finite=x.size)
    if not x.size:
        return tally
    place = int(distance.argmax())
    tally.argmax, tally.largest = start + place, int(distance[place])
    tally.largest_a = max(abs(int(a.max())), abs(int(a.min())))
    tally.differing = int(np.count_nonzero(distance))
    if tally.differing:
        tally.first = start + int((distance != 0).argmax())
        tally.total = (int((distance >> np.uint64(32)).sum()) << 32) + int((distance & np.uint64(0xFFFFFFFF)).sum())
        rounded = distance.astype(np.float64)
        tally.squares = float(np.square(rounded).sum())
        tally.powers = _powers(rounded)
        if tolerance:
            within = rounded <= tolerance.absolute + tolerance.relative * np.abs(b.astype(np.float64))
            tally.outside = int(np.count_nonzero((distance != 0) & ~within))
    return tally


def _any_integers(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """Negative numbers against uint64: the differences need more than 64 bits, so Python counts them."""
    distance = [abs(a - b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    largest = max(distance)
    unequal = [i for i, d in enumerate(distance) if d]
    rounded = np.array(distance, np.float64)
    outside = rounded > tolerance.absolute + tolerance.relative * np.abs(y.astype(np.float64))
    return Tally(
        x.size,
        differing=len(unequal),
        finite=x.size,
        total=sum(distance),
        squares=float(np.square(rounded).sum()),
        largest=largest,
        argmax=start + distance.index(largest),
        first=start + unequal[0] if unequal else -1,
        largest_a=max(abs(int(x.max())), abs(int(x.min()))),
        outside=int(np.count_nonzero(outside)) if tolerance else 0,
        powers=_powers(rounded),
    )


def patterns(x: Array, y: Array, start: int, tolerance: Tolerance) -> Tally:
    """Elements whose values are not ours to know: only whether their bits are the same."""
    unequal = words(x) != words(y)
    differing = int(np.count_nonzero(unequal))
    first = start + int(unequal.argmax()) if differing else -1
    return Tally(x.size, differing=differing, first=first, outside=differing)


def _powers(distance: Array) -> Counter[int]:
    """Counts of floor(log2 d) of the differences that are not zero; what float64 calls denormal counts as 2^-1023."""
    if distance.dtype == np.float32:
        return _powers32(distance)
    exponents = np.bincount(distance.view(np.int64) >> 52, minlength=1)
    exponents[0] -= int(np.count_nonzero(distance == 0))
    return Counter({int(i) - 1023: int(exponents[i]) for i in np.flatnonzero(exponents)})


def _powers32(distance: Array) -> Counter[int]:
    """The same of float32, whose exponents fit a byte: counted two at a time, which takes half as long."""
    bytes_ = (distance.view(np.uint32) >> 23).astype(np.uint8)
    pairs = np.bincount(bytes_[: bytes_.size & ~1].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    exponents = pairs.sum(axis=0) + pairs.sum(axis=1)
    exponents[bytes_[bytes_.size & ~1 :]] += 1
    # Zeros, and what float32 calls denormal and float64 does not.
    powers = _powers(distance[bytes_ == 0].astype(np.float64)) if exponents[0] else Counter()
    powers.update({int(i) - 127: int(exponents[i]) for i in np.flatnonzero(exponents) if i})
    return powers
