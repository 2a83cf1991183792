"""Every tensor of a checkpoint read once: NaN, inf, all zero, constant, and equal copies.

What no header tells: a merge that lost a third of its weights to zeros loads without a word and generates nothing useful.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.dtypes import DType, Kind
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.limits import manners
from shardyard.operations import gather
from shardyard.operations.bounds import refuse_endless
from shardyard.operations.compare.suggestions import same_bytes
from shardyard.operations.context import Context, Counter
from shardyard.operations.numeric import CHUNK, elements, keep_freed_memory, largest_finite, numeric, wide, words
from shardyard.operations.parallel import spread
from shardyard.text import printable

_MOST_NAMED = 3


@dataclass(slots=True)
class Seen:
    """What one pass over a tensor tells."""

    name: str
    numel: int
    nan: int = 0
    inf: int = 0
    constant: bool = False
    """All elements have the same bits (and there are several)."""
    zero: bool = False
    """All values are zero."""
    crc32: int = 0
    """Of its bytes: a first guess at which tensors are equal."""


@dataclass(slots=True)
class Scan:
    """A whole checkpoint."""

    seen: dict[str, Seen] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    copies: list[list[str]] = field(default_factory=list)
    """Groups of names that hold equal bytes without being recorded as one tensor; constants are left out."""

    def findings(self) -> list[Finding]:
        """What is worth telling, the worst first."""
        nan = {s.name: s.nan for s in self.seen.values() if s.nan}
        inf = {s.name: s.inf for s in self.seen.values() if s.inf}
        zero = [s.name for s in self.seen.values() if s.zero and self._matrix(s.name)]
        constant = [s.name for s in self.seen.values() if s.constant and not s.zero and self._matrix(s.name)]
        found = []
        if nan:
            text = f"{_values(nan)} NaN, in {_some(list(nan))}."
            found.append(Finding("nan", Severity.ERROR, text, "Use an earlier step; training had diverged.", tensors=tuple(nan)))
        if inf:
            text = f"{_values(inf)} infinite, in {_some(list(inf))}."
            remedy = "Look for a cast to float16, which ends at 65,504; bfloat16 holds these values."
            found.append(Finding("inf", Severity.ERROR, text, remedy, tensors=tuple(inf), sure=True))
        if zero:
            text = f"{len(zero):,} of {len(self.seen):,} tensors hold nothing but zeros: {_some(zero)}."
            remedy = (
                "Normal for an adapter that was never trained; else the file was written from weights that were not gathered."
            )
            found.append(Finding("all-zero", Severity.WARNING, text, remedy, tensors=tuple(zero), sure=False))
        if constant:
            text = f"{len(constant):,} matrices hold one value over and over: {_some(constant)}."
            found.append(Finding("constant", Severity.WARNING, text, tensors=tuple(constant), sure=False))
        for group in self.copies:
            text = f"{_some(group)} hold the same bytes."
            remedy = "Where config.json ties them, `export --tied once` keeps one."
            found.append(Finding("duplicate-copy", Severity.INFO, text, remedy, tensors=tuple(group)))
        return found

    def _matrix(self, name: str) -> bool:
        """Whether it has at least two dimensions: biases of zero and norms of one are as they should be."""
        return sum(n > 1 for n in self.shapes[name]) >= 2

    def to_json(self) -> dict[str, Any]:
        """The result of a scan job."""
        rows = self.seen.values()
        return {
            "tensors": len(self.seen),
            "nan": {s.name: s.nan for s in rows if s.nan},
            "inf": {s.name: s.inf for s in rows if s.inf},
            "all_zero": [s.name for s in rows if s.zero],
            "constant": [s.name for s in rows if s.constant and not s.zero],
            "equal_copies": self.copies,
            "verdict": self.verdict(),
        }

    def verdict(self) -> str:
        """One or two sentences."""
        told = [f.message for f in self.findings() if f.severity is not Severity.INFO]
        count = f"{len(self.seen):,} tensor{'s' if len(self.seen) != 1 else ''}"
        return " ".join(told) or f"All values of {count} are finite, and no matrix is empty of content."


def scan(checkpoint: Checkpoint, context: Context | None = None, workers: int = 0) -> Scan:
    """Read every tensor of the model part once."""
    context = context or Context()
    keep_freed_memory()
    tensors = {n: t for n, t in checkpoint.tensors.items() if t.layout is not None}
    refuse_endless(tensors.values())
    counter = Counter(context, sum(t.nbytes for t in tensors.values()))
    result = Scan(shapes={n: t.shape for n, t in tensors.items()})
    seen: dict[str, Seen] = {}
    lock = threading.Lock()

    with FileHandles() as handles:

        def do(tensor: Tensor) -> None:
            found = look(tensor, handles, lambda n: counter.add(n, tensor.name))
            with lock:
                seen[tensor.name] = found

        spread(tensors.values(), do, workers or manners.workers(), context.check)
        result.seen = {name: seen[name] for name in tensors}
        _copies(result, tensors, [set(tie.names) for tie in checkpoint.ties], handles, context)
    for finding in result.findings():
        context.finding(finding)
    return result


def look(tensor: Tensor, handles: FileHandles, watch: Any = lambda n: None) -> Seen:
    """One pass over one tensor."""
    found = Seen(tensor.name, tensor.numel)
    constant, zero = tensor.numel > 1, tensor.numel > 1 and numeric(tensor.dtype)
    first: Any = None
    for _, block in gather.blocks(tensor, handles):
        found.crc32 = zlib.crc32(block, found.crc32)
        watch(len(block))
        values = elements(block, tensor.dtype)
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        first = values[:1].tobytes() if first is None else first
        constant = constant and _all_are(values, first)
        zero = zero and _all_zero(values)
        if tensor.dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
            _count_special(values, tensor.dtype, found)
    found.constant, found.zero = constant, zero
    return found


def _all_are(values: Array, first: bytes) -> bool:
    bits = values.view(np.uint8).reshape(values.size, -1)
    head = np.frombuffer(first, np.uint8)
    return bool((bits[:16] == head).all()) and bool((bits == head).all())


def _all_zero(values: Array) -> bool:
    """Whether all are zero; of either sign, if they are floats."""
    if values.dtype.kind in "iuc":
        return not values[:16].any() and not values.any()
    bits = words(values)
    magnitude = bits & bits.dtype.type((1 << (8 * bits.dtype.itemsize - 1)) - 1)
    return not magnitude[:16].any() and not magnitude.any()


def _count_special(values: Array, dtype: DType, found: Seen) -> None:
    if dtype.kind is Kind.FLOAT and largest_finite(values, dtype) is not None:
        return
    with np.errstate(invalid="ignore"):
        for at in range(0, values.size, CHUNK):
            part = wide(values[at : at + CHUNK])
            found.nan += int(np.count_nonzero(np.isnan(part)))
            found.inf += int(np.count_nonzero(np.isinf(part)))


def _copies(result: Scan, tensors: Mapping[str, Tensor], ties: list[set[str]], handles: FileHandles, context: Context) -> None:
    """Fill in the groups of equal tensors: those of one kind, shape and CRC, then proved byte by byte."""
    alike: dict[tuple[int, tuple[int, ...], str], list[str]] = {}
    for name, row in result.seen.items():
        if not row.constant and row.numel > 1:
            alike.setdefault((row.crc32, tensors[name].shape, tensors[name].dtype.name), []).append(name)
    for names in alike.values():
        first = tensors[names[0]]
        group = [names[0]]
        if len(names) > 1 and not any(set(names) <= tie for tie in ties):
            group += [n for n in names[1:] if same_bytes(first, tensors[n], handles, context)]
        if len(group) > 1:
            result.copies.append(group)


def _values(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return f"{total:,} value{'s are' if total > 1 else ' is'}"


def _some(names: list[str]) -> str:
    shown = ", ".join(printable(n, 120) for n in names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED:,} more"
