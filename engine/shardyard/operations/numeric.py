"""Numbers out of bytes: the one place where element types mean something.

numpy with ml_dtypes, in workers only.  Every kind that torch can store is seen as an array, widened to float64 without loss, or
narrowed with one rounding to nearest even.  Types whose values nobody can compute with (packed, quantised, unknown) stay bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy import ndarray as Array

from shardyard.dtypes import BY_NAME, DType, Kind

CHUNK = 1 << 17
"""Elements worked on at a time: float64 copies of them stay near a core, and calls are long enough to be worth a thread."""

_NATIVE = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "complex128": "<c16",
    "complex64": "<c8",
    "bool": "u1",
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"})


def keep_freed_memory() -> None:
    """Let the allocator keep what chunks of arrays need, for a speed of two to three times; call it once before streaming.

    glibc gives memory back once more than twice the largest block ever freed lies on top of the heap, and every chunk would pay
    for its page faults again.  One large block, freed without being touched, lifts that line to 48 MiB.
    """
    np.empty(24 << 20, np.uint8)


@cache
def numpy_dtype(name: str) -> np.dtype | None:
    """The numpy type of a torch type; None where numpy and ml_dtypes have none (complex32 among them)."""
    if name in _NATIVE:
        return np.dtype(_NATIVE[name])
    if name in _ML_DTYPES:
        import ml_dtypes

        kind: np.dtype = np.dtype(getattr(ml_dtypes, name))
        return kind
    return None


def numeric(dtype: DType) -> bool:
    """Whether its elements are numbers that can be computed with."""
    return dtype.kind in (Kind.FLOAT, Kind.COMPLEX, Kind.INT, Kind.UINT, Kind.BOOL)


def element_bytes(dtype: DType) -> int:
    """Bytes of the unit that `elements` counts: an element, or one byte where elements are packed or not known."""
    return dtype.itemsize if dtype.bits and dtype.bits % 8 == 0 else 1


def elements(block: memoryview, dtype: DType) -> Array:
    """The elements of a block, typed as their numpy kind; a view of it where that is possible.

    Booleans are normalised (any byte but zero is true), complex32 is widened to complex64, opaque types are unsigned words.
    """
    if dtype.kind is Kind.BOOL:
        return np.frombuffer(block, np.uint8).astype(np.bool_)
    if dtype.name == "complex32":
        return np.frombuffer(block, "<f2").astype(np.float32).view(np.complex64)
    kind = numpy_dtype(dtype.name)
    if kind is None or not numeric(dtype):
        return np.frombuffer(block, f"<u{element_bytes(dtype)}")
    return np.frombuffer(block, kind)


def words(values: Array) -> Array:
    """The same elements as unsigned integers of their size: their bits."""
    return values.view(f"u{values.dtype.itemsize}")


@cache
def _byte_table(kind: np.dtype) -> Array:
    """The float64 value of each of the 256 patterns of an 8-bit kind."""
    return np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)


def wide(values: Array) -> Array:
    """As float64, or complex128: exact for every kind but 64-bit integers beyond 2^53."""
    if values.dtype.kind == "c":
        return values.astype(np.complex128, copy=False)
    if values.dtype.kind in "biu":
        return values.astype(np.float64)
    if values.dtype.itemsize == 1:
        return _byte_table(values.dtype).take(values.view(np.uint8))
    if values.dtype.itemsize == 2:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return values.astype(np.float32).astype(np.float64)
    return values.astype(np.float64, copy=False)


def cast(values: Array, target: DType) -> Array:
    """Real numbers in another floating kind, rounded once, to nearest even; what overflows becomes the kind's inf or NaN."""
    kind = numpy_dtype(target.name)
    if kind is None or target.kind is not Kind.FLOAT:
        raise ValueError(f"Nothing is rounded to {target.name}.")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if values.dtype == np.float64 and kind.itemsize < 4 and kind != np.float16:
            values = round_to_odd(values)
        elif values.dtype.itemsize < 4 and values.dtype.kind not in "biu" and values.dtype != kind:
            values = values.astype(np.float32)
        return values.astype(kind, copy=False)


def round_to_odd(values: Array) -> Array:
    """float64 as float32 such that a second rounding, to a kind of at most 21 bits of precision, gives what one would have.

    Where float32 cannot hold a value, the neighbour with an odd last bit stands for "between two": no tie is invented or lost.
    """
    narrow = values.astype(np.float32)
    bits = narrow.view(np.int32)
    back = narrow.astype(np.float64)
    inexact = (back != values) & ~np.isnan(values) & (bits & 1 == 0)
    if inexact.any():
        away = np.abs(values) > np.abs(back)
        bits[inexact] += np.where(away, 1, -1).astype(np.int32)[inexact]
    return narrow


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Where the special patterns of a floating kind lie, sign bit apart."""

    sign: int
    """The sign bit; 0 for a kind that has none."""
    first_special: int
    """The first pattern, sign apart, that is not a finite number (inf or NaN)."""
    smallest_normal: float
    """What is closer to zero than this, and not zero, is a denormal."""


_FORMATS = {
    "float64": FloatFormat(1 << 63, 0x7FF << 52, 2.0**-1022),
    "float32": FloatFormat(1 << 31, 0xFF << 23, 2.0**-126),
    "bfloat16": FloatFormat(1 << 15, 0xFF << 7, 2.0**-126),
    "float16": FloatFormat(1 << 15, 0x1F << 10, 2.0**-14),
    "float8_e4m3fn": FloatFormat(1 << 7, 0x7F, 2.0**-6),
    "float8_e5m2": FloatFormat(1 << 7, 0x7C, 2.0**-14),
    # The kinds below have one NaN where a negative zero would be, or no sign at all.
    "float8_e4m3fnuz": FloatFormat(1 << 7, 0x80, 2.0**-7),
    "float8_e5m2fnuz": FloatFormat(1 << 7, 0x80, 2.0**-15),
    "float8_e8m0fnu": FloatFormat(0, 0xFF, 2.0**-127),
}


def float_format(dtype: DType) -> FloatFormat:
    """The format of a floating kind."""
    return _FORMATS[dtype.name]


def largest_finite(values: Array, dtype: DType) -> float | None:
    """The largest magnitude of floats of which every one is finite; None if one is not (or the kind needs a closer look).

    Two reductions over the bits, at the speed of memory: what makes comparing equal files as cheap as `cmp`.
    """
    layout = _FORMATS[dtype.name]
    if not values.size:
        return 0.0
    if not layout.sign or layout.first_special >= layout.sign:
        return None
    bits = words(values)
    top = int(bits.max())
    positive = int(values.view(f"i{values.dtype.itemsize}").max())
    magnitude = max(positive, top - layout.sign if top >= layout.sign else 0, 0)
    if magnitude >= layout.first_special:
        return None
    return float(np.array([magnitude], bits.dtype).view(values.dtype)[0])


_NO_NEGATIVE_ZERO = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz"})
"""Kinds whose one NaN has the pattern of a negative zero."""


def ordered(values: Array, dtype: DType) -> Array:
    """Unsigned integers in the order of the values: NaNs with a sign first, then -inf to inf, then the other NaNs."""
    bits = words(values)
    top = _top_bit(bits)
    if dtype.kind is Kind.INT:
        flipped: Array = bits ^ top
        return flipped
    if dtype.kind is not Kind.FLOAT or dtype.name == "float8_e8m0fnu":
        return bits
    if dtype.name in _NO_NEGATIVE_ZERO:
        keys: Array = np.where(bits & top, -bits & (top - 1), bits ^ top)
        return keys
    signs = _signs(bits)
    signs |= top  # all bits of a negative number are flipped, the sign alone of any other
    signs ^= bits
    return signs


def unordered(keys: Array, dtype: DType) -> Array:
    """The values whose `ordered` keys these are, as elements of the kind."""
    top = _top_bit(keys)
    kind = numpy_dtype(dtype.name) or keys.dtype
    if dtype.kind is Kind.INT:
        flipped: Array = keys ^ top
        return flipped.view(kind)
    if dtype.kind is not Kind.FLOAT or dtype.name == "float8_e8m0fnu":
        return keys.view(kind)
    if dtype.name in _NO_NEGATIVE_ZERO:
        bits: Array = np.where(keys & top, keys ^ top, -keys & (top - 1) | top)
        return bits.view(kind)
    flips = ~_signs(keys)
    flips |= top
    flips ^= keys
    return flips.view(kind)


def _signs(bits: Array) -> Array:
    """All ones where the top bit is set, else zero."""
    width = 8 * bits.dtype.itemsize
    signs: Array = (bits.view(f"i{bits.dtype.itemsize}") >> (width - 1)).view(bits.dtype)
    return signs


def _top_bit(bits: Array) -> np.unsignedinteger:
    word: np.unsignedinteger = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    return word


def by_name(name: str) -> DType:
    """A dtype that is certain to be in the table."""
    return BY_NAME[name]


def number(value: float | int) -> float | int | str:
    """A number that JSON can hold: what is not finite becomes text."""
    return value if isinstance(value, int) or math.isfinite(value) else str(value)
