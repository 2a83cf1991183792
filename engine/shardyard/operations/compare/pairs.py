"""Two tensors, compared block by block: the state that several threads share, and the relation it ends in.

A block whose bytes are the same on both sides costs one comparison of memory and two reductions.  Only what differs is looked at
as numbers, in chunks that stay in a core's cache.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardyard.checkpoint import Tensor
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.compare.tally import Compare, Tally, Tolerance, after_rounding, comparison, same
from shardyard.operations.numeric import CHUNK, element_bytes, elements, number
from shardyard.operations.rounding import SIXTEEN, Rounding, Roundings, siblings

UNIT = 16 << 20
"""Bytes of the larger side that one thread takes at a time."""
BLOCK = 1 << 20
MOST_BLOCK = 8 << 20
RELATIONS = (
    "identical",
    "equal",
    "rounded-bfloat16",
    "rounded-float16",
    "close",
    "rounded-float8_e4m3fn",
    "rounded-float8_e5m2",
    "rounded-float8_e4m3fnuz",
    "rounded-float8_e5m2fnuz",
    "both-rounded",
    "different",
    "dtype-differs",
    "shape-differs",
)
"""From the best to the worst."""


@dataclass(slots=True, eq=False)
class Pair:
    """One tensor of a and its partner in b."""

    name: str
    a: Tensor
    b: Tensor
    tolerance: Tolerance
    count: int = 0
    """Elements compared; 0 where nothing can be."""
    note: str = ""
    compare: Compare | None = None
    """How elements are compared; None where they cannot be."""
    sizes: tuple[int, int] = (1, 1)
    """Bytes of an element on either side."""
    same_shape: bool = True
    identical: bool = True
    related: bool = True
    """Whether a bfloat16 and a float16 side can still be roundings of one parent."""
    roundings: Roundings = field(init=False)
    expected: Rounding | None = None
    """The rounding that the types suggest; elements that it does not explain are counted."""
    same_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Elements whose bytes are equal and which no rounding was tried on."""
    tallies: dict[int, Tally] = field(default_factory=dict)
    units: int = 0
    """Units of work; at least 1, so that an empty tensor ends too."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        a, b = self.a, self.b
        self.roundings = Roundings(a.dtype, b.dtype)
        self.expected = Rounding.expected(a.dtype, b.dtype)
        self.related = {a.dtype.name, b.dtype.name} == set(SIXTEEN)
        self.identical = a.dtype == b.dtype
        self.same_shape = a.shape == b.shape and (a.dtype != b.dtype or a.nbytes == b.nbytes)
        self.compare = comparison(a.dtype, b.dtype)
        self.sizes = element_bytes(a.dtype), element_bytes(b.dtype)
        if self.compare is not None:
            self.count = min(_count(a), _count(b)) if self.same_rows or self.same_numel else 0
        self.units = max(1, -(-self.count // self.unit))

    @property
    def same_rows(self) -> bool:
        """Whether they differ in the number of rows at most."""
        return len(self.a.shape) == len(self.b.shape) and self.a.shape[1:] == self.b.shape[1:]

    @property
    def same_numel(self) -> bool:
        """Whether they may be the same values in another shape."""
        squeezed = [tuple(n for n in t.shape if n != 1) for t in (self.a, self.b)]
        return squeezed[0] == squeezed[1]

    @property
    def unit(self) -> int:
        """Elements of one unit of work."""
        return UNIT // max(self.sizes)

    def compare_unit(self, index: int, reader: Reader) -> bool:
        """Compare one unit's elements and keep the tally; whether it was the last one to end."""
        lo, hi = index * self.unit, min(self.count, (index + 1) * self.unit)
        tally = Tally()
        with np.errstate(all="ignore"):
            for start, end in reader.steps(self, lo, hi):
                block_a, block_b = reader.read(self, start, end)
                for part in self._compare_block(start, block_a, block_b):
                    tally.add(part)
        with self.lock:
            self.tallies[index] = tally
            return len(self.tallies) == self.units

    def _compare_block(self, start: int, block_a: memoryview, block_b: memoryview) -> list[Tally]:
        a, b = self.a.dtype, self.b.dtype
        if a == b:
            if _same_bytes(block_a, block_b):
                if self.roundings:
                    with self.lock:
                        self.same_ranges.append((start, start + len(block_a) // element_bytes(a)))
                return [same(elements(block_a, a), a, start)]
            self.identical = False
        x, y = elements(block_a, a), elements(block_b, b)
        assert self.compare is not None, "a pair that cannot be compared has no blocks"
        tallies = []
        for at in range(0, x.size, CHUNK):
            part_x, part_y = x[at : at + CHUNK], y[at : at + CHUNK]
            self.roundings.narrow(part_x, part_y)
            explained = self.expected is not None and self.expected in self.roundings.alive
            compare = after_rounding if explained and self.sizes in ((4, 2), (2, 4)) else self.compare
            tallies.append(compare(part_x, part_y, start + at, self.tolerance))
            if self.expected is not None and not explained:
                tallies[-1].unexplained = int(np.count_nonzero(self.expected.exceptions(part_x, part_y)))
            if self.related:
                self.related = siblings(part_x, part_y)
        return tallies

    def finish(self, reader: Reader) -> dict[str, Any]:
        """The row of the result, once every unit is done."""
        tally, *later = (self.tallies[index] for index in sorted(self.tallies))
        self.tallies.clear()
        for part in later:
            tally.add(part)
        if self.roundings and not self.identical and (tally.differing or self.a.dtype != self.b.dtype):
            self._try_same_ranges(reader)
        return row(self, tally)

    def _try_same_ranges(self, reader: Reader) -> None:
        """A rounding must hold where the bytes are equal too: each value there must be one of the narrower kind."""
        with np.errstate(all="ignore"):
            for lo, hi in self.same_ranges:
                for start, end in reader.steps(self, lo, hi):
                    if not self.roundings:
                        return
                    values = elements(reader.read_a(self, start, end), self.a.dtype)
                    for at in range(0, values.size, CHUNK):
                        part = values[at : at + CHUNK]
                        self.roundings.narrow(part, part)


class Reader:
    """Reads both sides of a pair into buffers of its own: one for each thread."""

    def __init__(self, handles: FileHandles) -> None:
        self._handles = handles
        self._buffers = [bytearray(BLOCK), bytearray(BLOCK)]
        self.done = 0
        """Bytes read of both sides."""

    def steps(self, pair: Pair, lo: int, hi: int) -> list[tuple[int, int]]:
        """The ranges of elements to read at a time: about 1 MiB, more where a source's strides make that wasteful."""
        step = BLOCK // max(pair.sizes)
        if hi - lo <= step:
            return [(lo, hi)] if lo < hi else []
        for tensor, size in zip((pair.a, pair.b), pair.sizes, strict=True):
            wanted = gather.block_size(tensor, lo * size, hi * size, step * size, MOST_BLOCK)
            step = max(step, wanted // size)
        return [(at, min(hi, at + step)) for at in range(lo, hi, step)]

    def read(self, pair: Pair, start: int, end: int) -> tuple[memoryview, memoryview]:
        """The bytes of elements [start, end) of both sides; valid until the next call."""
        return self._read(0, pair.a, start, end), self._read(1, pair.b, start, end)

    def read_a(self, pair: Pair, start: int, end: int) -> memoryview:
        """The bytes of elements [start, end) of side a."""
        return self._read(0, pair.a, start, end)

    def _read(self, side: int, tensor: Tensor, start: int, end: int) -> memoryview:
        size = element_bytes(tensor.dtype)
        lo, hi = start * size, end * size
        if len(self._buffers[side]) < hi - lo:
            self._buffers[side] = bytearray(hi - lo)
        view = memoryview(self._buffers[side])[: hi - lo]
        gather.read_range(tensor, lo, hi, view, self._handles)
        self.done += hi - lo
        return view


def _count(tensor: Tensor) -> int:
    """Elements of a tensor, or its bytes where they are packed or not known."""
    dtype = tensor.dtype
    return tensor.numel if dtype.bits and dtype.bits % 8 == 0 else tensor.nbytes


def _same_bytes(x: memoryview, y: memoryview) -> bool:
    whole = len(x) & ~7
    equal = np.array_equal(np.frombuffer(x[:whole], np.uint64), np.frombuffer(y[:whole], np.uint64))
    return equal and x[whole:] == y[whole:]


def row(pair: Pair, tally: Tally) -> dict[str, Any]:
    """What the result says of one tensor."""
    relation, rounding = relate(pair, tally)
    a, b = pair.a, pair.b
    found: dict[str, Any] = {
        "name": pair.name,
        "relation": relation,
        "dtype_a": a.dtype.name,
        "dtype_b": b.dtype.name,
        "shape_a": list(a.shape),
        "shape_b": list(b.shape),
        **numbers(pair, tally if pair.same_shape else None),
    }
    if rounding is not None:
        found["rounded"] = "b" if rounding.source == "a" else "a"
    if pair.same_shape and (tally.differing or a.dtype != b.dtype):
        found["b_is_a_rounded_to"] = [r.kind for r in pair.roundings.alive if r.source == "a"]
        found["a_is_b_rounded_to"] = [r.kind for r in pair.roundings.alive if r.source == "b"]
    if relation == "different" and pair.expected is not None and pair.expected not in pair.roundings.alive:
        found["narrower"], found["unexplained"] = pair.expected.kind, tally.unexplained
    note = pair.note or (_rows_note(pair, tally) if relation == "shape-differs" and pair.count else "")
    if note:
        found["note"] = note
    return found


def relate(pair: Pair, tally: Tally) -> tuple[str, Rounding | None]:
    """The contract's relation, and the rounding that it speaks of."""
    if not pair.same_shape:
        return "shape-differs", None
    return _relate_values(pair, tally)


def _relate_values(pair: Pair, tally: Tally) -> tuple[str, Rounding | None]:
    if pair.compare is None:
        return "dtype-differs", None
    if pair.identical:
        return "identical", None
    if not tally.differing:
        return "equal", None
    within = bool(pair.tolerance) and not tally.outside
    for rounding in pair.roundings.alive:
        if rounding.kind in SIXTEEN:
            return f"rounded-{rounding.kind}", rounding
        return ("close", None) if within else (f"rounded-{rounding.kind}", rounding)
    if within:
        return "close", None
    return ("both-rounded" if pair.related else "different"), None


def numbers(pair: Pair, tally: Tally | None) -> dict[str, Any]:
    """The figures of a row; all null where the elements have no partners."""
    if tally is None or pair.compare is None:
        return dict.fromkeys(("max_abs", "mean_abs", "max_rel", "differing", "nan_a", "nan_b"))
    seen = tally.largest >= 0
    largest = tally.largest if seen else 0
    figures: dict[str, Any] = {
        "max_abs": number(largest),
        "mean_abs": number(tally.total / tally.finite if tally.finite else 0.0),
        "max_rel": number(largest / tally.largest_a if tally.largest_a and seen else 0.0),
        "differing": tally.differing,
        "nan_a": tally.nan_a,
        "nan_b": tally.nan_b,
        "inf_a": tally.inf_a,
        "inf_b": tally.inf_b,
        "rms": number(math.sqrt(tally.squares / tally.finite) if tally.finite else 0.0),
        "finite": tally.finite,
    }
    if tally.differing:
        argmax = tally.argmax if seen else tally.first
        figures["argmax"], figures["first"] = argmax, tally.first
        figures["place"] = place(argmax if largest else tally.first, pair.a.shape)
        figures["powers"] = {str(power): n for power, n in sorted(tally.powers.items())}
    return figures


def place(index: int, shape: tuple[int, ...]) -> list[int]:
    """The index in every dimension of a flat index."""
    found = []
    for n in reversed(shape):
        index, k = divmod(index, n)
        found.append(k)
    return found[::-1]


def _rows_note(pair: Pair, tally: Tally) -> str:
    """How tensors of different shape go together, where their elements could be compared."""
    relation, _ = _relate_values(pair, tally)
    if not pair.same_rows:
        return (
            f"the same values in another shape{'' if relation == 'identical' else f' ({relation})'}"
            if relation != "different"
            else ""
        )
    rows_a, rows_b = pair.a.shape[0], pair.b.shape[0]
    more, side = abs(rows_b - rows_a), "B" if rows_b > rows_a else "A"
    rows = f"{more} extra row{'s' if more > 1 else ''} in {side}"
    return f"{rows}; the first {min(rows_a, rows_b)} are {relation}"
