"""Is one array exactly the other, rounded?  The question behind most "why do my weights differ".

A rounding is to nearest even, as every framework casts.  Two freedoms are granted, because casts in the field take them: float64
may pass through float32 on its way down, and what overflows an 8-bit kind may stop at its largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy import ndarray as Array

from shardyard.dtypes import DType
from shardyard.operations.numeric import by_name, cast, elements, wide, words

SIXTEEN = ("bfloat16", "float16")
_ALWAYS = (*SIXTEEN, "float8_e4m3fn", "float8_e5m2")
_ROUNDABLE = frozenset({*_ALWAYS, "float64", "float32", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_PROBE = 256
"""Elements looked at first: most wrong guesses end here."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """A guess: the values of one side are those of the other, rounded to a kind."""

    source: str
    """`a` or `b`: the side that has the values before the rounding."""
    kind: str
    """The torch name of the kind rounded to."""

    @classmethod
    def expected(cls, a: DType, b: DType) -> Rounding | None:
        """The rounding that the stored types suggest: to the narrower of two floating kinds."""
        if not {a.name, b.name} <= _ROUNDABLE or a.bits == b.bits or min(a.bits, b.bits) > 16:
            return None
        return cls("a", b.name) if a.bits > b.bits else cls("b", a.name)

    def exceptions(self, x: Array, y: Array) -> Array:
        """Which elements of a and b it does not explain."""
        source, result = (x, y) if self.source == "a" else (y, x)
        return ~_matching(source, cast(source, by_name(self.kind)), result, by_name(self.kind))

    def holds(self, x: Array, y: Array) -> bool:
        """Whether it explains these elements of a (`x`) and b (`y`)."""
        source, result = (x, y) if self.source == "a" else (y, x)
        target = by_name(self.kind)
        return rounds_to(source[:_PROBE], result[:_PROBE], target) and rounds_to(source, result, target)


def matching(source: Array, result: Array, target: DType) -> Array:
    """Where `result` has the values of `source` rounded to `target`; what is no float is not rounded, and must be equal."""
    if target.name not in _ROUNDABLE or source.dtype.kind in "biuc":
        equal: Array = source == result
        return equal
    return _matching(source, cast(source, target), result, target)


def rounds_to(source: Array, result: Array, target: DType) -> bool:
    """Whether `result` (of whatever floating kind) has the values of `source` rounded to `target`."""
    rounded = cast(source, target)
    if rounded.dtype == result.dtype and np.array_equal(words(rounded), words(result)):
        return True
    if _matching(source, rounded, result, target).all():
        return True
    if source.dtype != np.float64:
        return False
    narrowed = cast(source, by_name("float32"))
    return bool(_matching(narrowed, cast(narrowed, target), result, target).all())


def _matching(source: Array, rounded: Array, result: Array, target: DType) -> Array:
    """Where `result` has the values of `rounded`; signs of zeros and payloads of NaNs do not count."""
    wide = np.float64 if np.float64 in (rounded.dtype, result.dtype) else np.float32
    with np.errstate(invalid="ignore"):
        x, y = rounded.astype(wide), result.astype(wide)
        matching: Array = (x == y) | (np.isnan(x) & np.isnan(y))
        if target.bits == 8 and not matching.all():
            origin = source.astype(wide)
            stopped = y == np.copysign(_largest(target.name), origin)
            matching |= ~np.isfinite(x) & ~np.isnan(origin) & stopped
        return matching


@cache
def _largest(name: str) -> float:
    """The largest number of an 8-bit kind."""
    values = wide(elements(memoryview(bytes(range(256))), by_name(name)))
    return float(values[np.isfinite(values)].max())


class Roundings:
    """The guesses about one pair of tensors that no element has refuted yet.  Threads may narrow it at the same time."""

    def __init__(self, a: DType, b: DType) -> None:
        kinds = [k for k in dict.fromkeys((b.name, a.name, *_ALWAYS)) if k in _ROUNDABLE and by_name(k).bits <= 16]
        possible = a.name in _ROUNDABLE and b.name in _ROUNDABLE
        self._alive = {Rounding(source, kind): None for kind in kinds for source in "ab"} if possible else {}

    def __bool__(self) -> bool:
        return bool(self._alive)

    def narrow(self, x: Array, y: Array) -> None:
        """Drop what these elements of a and b refute."""
        for guess in tuple(self._alive):
            if not guess.holds(x, y):
                self._alive.pop(guess, None)

    @property
    def alive(self) -> tuple[Rounding, ...]:
        """In the order of preference: the kind that one side is stored in comes first."""
        return tuple(self._alive)


@cache
def _intervals(name: str) -> tuple[Array, Array, Array]:
    """For each of the 65,536 patterns of a 16-bit kind: the real numbers that round to it, as (from, to, ends included)."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    magnitudes = (patterns & 0x7FFF).astype(np.int64)
    infinity = 0x7F80 if name == "bfloat16" else 0x7C00
    # The pattern of infinity, read as if the exponent went on: where the next number would be.
    beyond = 2.0**128 if name == "bfloat16" else 2.0**16
    with np.errstate(invalid="ignore"):
        values = wide(elements(memoryview(patterns[:0x8000].tobytes()), by_name(name)))
        values[infinity] = beyond
        middles = np.append((values[:-1] + values[1:]) / 2, np.nan)
    middles[infinity] = np.inf
    upper = middles[magnitudes]
    lower = np.where(magnitudes > 0, middles[magnitudes - 1], -middles[0])
    lower[magnitudes > infinity] = upper[magnitudes > infinity] = np.nan
    negative = patterns >= 0x8000
    return np.where(negative, -upper, lower), np.where(negative, -lower, upper), magnitudes % 2 == 0


def siblings(x: Array, y: Array) -> bool:
    """Whether a bfloat16 and a float16 array can both be roundings of one parent, element by element.

    A parent exists where the intervals that round to either value have a number in common; NaN needs NaN.
    """
    (x_from, x_to, x_ends), (y_from, y_to, y_ends) = (_lookup(v) for v in (x, y))
    low, high = np.maximum(x_from, y_from), np.minimum(x_to, y_to)
    # One common point, which is an end of at least one of them.
    inside_x = x_ends | ((x_from < low) & (low < x_to))
    inside_y = y_ends | ((y_from < low) & (low < y_to))
    both_nan = np.isnan(x_from) & np.isnan(y_from)
    return bool(((low < high) | ((low == high) & inside_x & inside_y) | both_nan).all())


def _lookup(values: Array) -> tuple[Array, Array, Array]:
    low, high, ends = _intervals(values.dtype.name)
    patterns = words(values)
    return low.take(patterns), high.take(patterns), ends.take(patterns)
