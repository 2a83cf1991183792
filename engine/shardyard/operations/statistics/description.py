"""Everything worth knowing about one tensor's values: exact, streamed, in bounded memory, reading nothing but the tensor.

Figures are over the finite values, in float64 (integers exactly); NaN and inf are counted apart.  `std` is over the whole
population, as numpy's; `std_sample` divides by n - 1, as torch's.  Complex values are described by their magnitudes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from shardyard.checkpoint import Tensor
from shardyard.dtypes import DType, Kind
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.numeric import CHUNK, by_name, elements, float_format, number, numeric, ordered, unordered, wide, words
from shardyard.operations.statistics.quantiles import Selection, interpolation

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
BINS = 64
FIRST = 32
"""Values shown from the beginning."""

Watch = Callable[[int], None]
"""Told of bytes done now and then; may raise to cancel."""


def sha256(tensor: Tensor, handles: FileHandles, watch: Watch = lambda n: None) -> str:
    """SHA-256 of the row-major little-endian values."""
    digest = hashlib.sha256()
    for _, block in gather.blocks(tensor, handles):
        digest.update(block)
        watch(len(block))
    return digest.hexdigest()


def describe(tensor: Tensor, handles: FileHandles, watch: Watch = lambda n: None) -> dict[str, Any]:
    """The statistics of one tensor."""
    found: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "numel": tensor.numel,
        "bytes": tensor.nbytes,
    }
    if not numeric(tensor.dtype):
        return {**found, "sha256": sha256(tensor, handles, watch), "note": f"values of {tensor.dtype.name} are not computed with"}
    with np.errstate(all="ignore"):
        return {**found, **_Description(tensor, handles, watch).run()}


def passes(tensor: Tensor) -> int:
    """How often `describe` reads the tensor, at most."""
    bits = _described(tensor.dtype).bits
    small = tensor.numel <= (1 << 20) or not numeric(tensor.dtype)
    return 1 if bits <= 16 or small else bits // 16


def _described(dtype: DType) -> DType:
    """The kind of the numbers that are described: magnitudes of complex ones are float64."""
    return by_name("float64") if dtype.kind is Kind.COMPLEX else by_name("uint8") if dtype.kind is Kind.BOOL else dtype


@dataclass(slots=True)
class _Moments:
    """Running count, mean and spread of finite values (Chan's way of adding ranges), and their ends."""

    count: int = 0
    total: int = 0
    """Exact sum, of integers only."""
    sums: list[float] = field(default_factory=list)
    mean: float = 0.0
    """Running, for the spread."""
    spread: float = 0.0
    """Sum of squared distances from the mean."""
    squares: list[float] = field(default_factory=list)
    low: float | int = math.inf
    high: float | int = -math.inf

    def add(self, values: Array, widened: Array) -> None:
        """Count in some finite values, given as they are and as float64."""
        n = widened.size
        if not n:
            return
        self.sums.append(float(widened.sum()))
        mean = self.sums[-1] / n
        step = mean - self.mean
        self.spread += float(np.square(widened - mean).sum()) + step * step * self.count * n / (self.count + n)
        self.mean += step * n / (self.count + n)
        self.count += n
        self.squares.append(float(np.square(widened).sum()))
        if values.dtype.kind in "iu":
            self.total += _exact_sum(values)
            self.low, self.high = min(self.low, int(values.min())), max(self.high, int(values.max()))
        else:
            self.low, self.high = min(self.low, float(widened.min())), max(self.high, float(widened.max()))


def _exact_sum(values: Array) -> int:
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    high, low = values >> 32, values & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())


class _Description:
    """One tensor at work: a first pass for nearly everything, more for what depends on it."""

    def __init__(self, tensor: Tensor, handles: FileHandles, watch: Watch) -> None:
        self.tensor, self.handles, self.watch = tensor, handles, watch
        self.kind = _described(tensor.dtype)
        self.selection = Selection(self.kind.bits, tensor.numel)
        self.moments = _Moments()
        self.exponents = np.zeros(4096, np.int64)
        self.nan_low = self.nan_high = self.negative_inf = self.positive_inf = self.zeros = 0
        self.first: list[Any] = []
        self.digest = hashlib.sha256()

    def run(self) -> dict[str, Any]:
        small: list[Array] | None = [] if self.tensor.numel <= CHUNK else None
        for raw, values in self._values(first=True):
            if len(self.first) < FIRST:
                self.first += [shown(v) for v in raw[: FIRST - len(self.first)]]
            self.selection.feed(ordered(values, self.kind))
            finite = self._count(values)
            if small is not None:
                small.append(finite)
        table = self.selection.table
        valid = self.tensor.numel - self.nan_low - self.nan_high
        places = {q: interpolation(valid, q) for q in QUANTILES} if valid else {}
        self.selection.end_pass(self.nan_low + rank for low, high, _ in places.values() for rank in (low, high))
        linear = self._linear(table, small)
        while not self.selection.done or linear is None:
            counts = np.zeros(BINS, np.int64)
            for _, values in self._values():
                if not self.selection.done:
                    self.selection.feed(ordered(values, self.kind))
                if linear is None:
                    counts += self._binned(wide(values))
            if not self.selection.done:
                self.selection.end_pass()
            linear = counts.tolist() if linear is None else linear
        return self._result(places, linear)

    def _values(self, *, first: bool = False) -> Iterator[tuple[Array, Array]]:
        """The elements in chunks, as stored and as they are described."""
        for _, block in gather.blocks(self.tensor, self.handles):
            if first:
                self.digest.update(block)
            raw = elements(block, self.tensor.dtype)
            for at in range(0, raw.size, CHUNK):
                part = raw[at : at + CHUNK]
                if part.dtype.kind == "c":
                    yield part, np.abs(wide(part))
                else:
                    yield part, part.view(np.uint8) if part.dtype.kind == "b" else part
            self.watch(len(block))

    def _count(self, values: Array) -> Array:
        """Count in a chunk; returns its finite values as float64."""
        widened = wide(values)
        bits = widened.view(np.int64)
        self.exponents += np.bincount(bits >> 52 & 0xFFF, minlength=4096)
        zeros = widened.size - int(np.count_nonzero(widened))
        if zeros:
            positive = widened.size - int(np.count_nonzero(bits))
            self.exponents[0] -= positive
            self.exponents[2048] -= zeros - positive
            self.zeros += zeros
        if self.kind.kind is Kind.FLOAT:
            special = ~np.isfinite(widened)
            if special.any():
                self._count_special(values[special], widened[special])
                values, widened = values[~special], widened[~special]
        self.moments.add(values, widened)
        return widened

    def _count_special(self, values: Array, special: Array) -> None:
        nan = np.isnan(special)
        signs = words(values[nan]) >> (8 * values.dtype.itemsize - 1)
        # In the order of patterns, NaNs with a sign come before all numbers and the others after them.
        below = 0 if self.kind.name == "float8_e8m0fnu" else int(np.count_nonzero(signs))
        self.nan_low += below
        self.nan_high += int(np.count_nonzero(nan)) - below
        self.positive_inf += int(np.count_nonzero(special == np.inf))
        self.negative_inf += int(np.count_nonzero(special == -np.inf))

    def _linear(self, table: Array | None, small: list[Array] | None) -> list[int] | None:
        """The linear histogram, where no further pass is needed for it."""
        if not self.moments.count:
            return [0] * BINS
        if small is not None:
            return [int(n) for n in sum((self._binned(part) for part in small), np.zeros(BINS, np.int64))]
        if table is None:
            return None
        values = wide(unordered(np.arange(table.size, dtype=f"u{self.kind.itemsize}"), self.kind))
        return [int(n) for n in self._binned(values, table)]

    def _binned(self, values: Array, counts: Array | None = None) -> Array:
        low, high = float(self.moments.low), float(self.moments.high)
        if not math.isfinite(high - low):
            return np.zeros(BINS, np.int64)  # the range itself is beyond float64
        if counts is not None:
            values, counts = values[np.isfinite(values)], counts[np.isfinite(values)]
            inside = (values >= low) & (values <= high)
            values, counts = values[inside], counts[inside]
        edges = np.linspace(low, high, BINS + 1)
        if bool((edges[:-1] < edges[1:]).all()):
            return np.histogram(values, BINS, (low, high), weights=counts)[0].astype(np.int64)
        # Fewer numbers than bins lie in the range: some bins stay empty. A single value goes to the middle, as numpy's does.
        share = (values - low) / (high - low) if high > low else np.full(values.size, 0.5)
        places = np.clip(share * BINS, 0, BINS - 1).astype(np.int64)
        return np.bincount(places, counts, BINS).astype(np.int64)

    def _result(self, places: Mapping[float, tuple[int, int, float]], linear: list[int]) -> dict[str, Any]:
        moments = self.moments
        integers = self.kind.kind is not Kind.FLOAT
        some = moments.count > 0
        mean = (moments.total if integers else math.fsum(moments.sums)) / moments.count if some else None
        return {
            "of": "magnitudes" if self.tensor.dtype.kind is Kind.COMPLEX else "values",
            "finite": moments.count,
            "min": number(moments.low) if some else None,
            "max": number(moments.high) if some else None,
            "mean": number(mean) if mean is not None else None,
            "std": number(math.sqrt(moments.spread / moments.count)) if some else None,
            "std_sample": number(math.sqrt(moments.spread / (moments.count - 1))) if moments.count > 1 else None,
            "norm": number(math.sqrt(math.fsum(moments.squares))),
            "zeros": self.zeros,
            "nan": self.nan_low + self.nan_high,
            "inf": self.positive_inf + self.negative_inf,
            "denormals": self._denormals(),
            "quantiles": {str(q): self._quantile(*place) for q, place in places.items()},
            "histogram": {
                "linear": {
                    "from": number(moments.low) if some else None,
                    "to": number(moments.high) if some else None,
                    "counts": linear,
                },
                "log": self._log(),
            },
            "first": self.first,
            "sha256": self.digest.hexdigest(),
        }

    def _quantile(self, low: int, high: int, share: float) -> float | int | str:
        keys = np.array([self.selection.found[self.nan_low + rank] for rank in (low, high)], f"u{self.kind.itemsize}")
        values = unordered(keys, self.kind)
        if values[0] == values[1] or share == 0:
            return number(_plain(values[0]))
        a, b = (float(v) for v in wide(values))
        if math.isinf(a) != math.isinf(b):
            return number(a if math.isinf(a) else b)
        return number(a + (b - a) * share)

    def _denormals(self) -> int:
        if self.tensor.dtype.kind is not Kind.FLOAT:
            return 0
        first_normal = int(math.log2(float_format(self.kind).smallest_normal)) + 1023
        return int(self.exponents[:first_normal].sum() + self.exponents[2048 : 2048 + first_normal].sum())

    def _log(self) -> dict[str, Any]:
        """Counts by sign and floor(log2 |x|)."""
        found: dict[str, Any] = {"zero": self.zeros}
        for sign, start in (("positive", 0), ("negative", 2048)):
            counts = self.exponents[start : start + 2047]
            found[sign] = {str(int(i) - 1023): int(counts[i]) for i in np.flatnonzero(counts)}
        return found


def _plain(value: Any) -> float | int:
    """A numpy scalar as a Python number."""
    return int(value) if isinstance(value, np.integer) else float(value)


def shown(value: Any) -> Any:
    """An element as JSON can hold it."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.complexfloating):
        return [number(float(value.real)), number(float(value.imag))]
    return number(float(value))
