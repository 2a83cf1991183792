"""Any slice of a tensor, read alone: `0:4, -1, ::2` as in Python, and never more than is shown."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from shardyard.checkpoint import Tensor
from shardyard.errors import UsageError
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.numeric import elements, numeric
from shardyard.operations.statistics.description import shown
from shardyard.text import printable

MOST = 10_000
"""Elements in one answer."""


def parse(text: str, shape: tuple[int, ...]) -> list[range | int]:
    """One range or index a dimension; dimensions that are not named are whole.

    Raises:
        UsageError: it is no slice of this shape.
    """
    parts = [p.strip() for p in text.strip().removeprefix("[").removesuffix("]").split(",")] if text.strip() else []
    if parts and parts[-1] == "":
        parts.pop()
    if len(parts) > len(shape):
        raise UsageError(f"{printable(text, 80)} names {len(parts)} dimensions; the tensor has {len(shape)}.")
    found: list[range | int] = [_part(part, n, text) for part, n in zip(parts, shape, strict=False)]
    return found + [range(n) for n in shape[len(parts) :]]


def _part(part: str, n: int, text: str) -> range | int:
    try:
        numbers = [int(x) if x.strip() else None for x in part.split(":")]
        if len(numbers) == 1 and numbers[0] is not None:
            return range(n)[numbers[0]]
        if 2 <= len(numbers) <= 3:
            return range(n)[slice(*numbers)]
    except (ValueError, IndexError):
        pass
    raise UsageError(f"{printable(text, 80)} is no slice of that shape; write it as in Python, such as 0:4, -1.")


def read(tensor: Tensor, text: str, handles: FileHandles) -> dict[str, Any]:
    """The values of a slice: `{"slice", "shape", "values"}`, values in row-major order.

    Raises:
        UsageError: it is no slice of the tensor, or holds more than `MOST` elements, or the values are not numbers.
    """
    if not numeric(tensor.dtype):
        raise UsageError(f"{printable(tensor.name)} holds {tensor.dtype.name}, whose values are not computed with.")
    chosen = parse(text, tensor.shape)
    shape = [len(c) for c in chosen if isinstance(c, range)]
    if math.prod(shape) > MOST:
        raise UsageError(f"That slice has {math.prod(shape):,} elements; at most {MOST:,} are shown.")
    values: list[Any] = []
    size = tensor.dtype.itemsize
    for start, count, step in _runs(tensor.shape, chosen):
        # A run with gaps is read whole where that is less than a read for each element would cost.
        each = abs(step) * size > gather.GAP
        for at in range(count) if each else (0,):
            first = start + at * step
            last = first if each else start + (count - 1) * step
            lo, hi = min(first, last), max(first, last) + 1
            buffer = memoryview(bytearray((hi - lo) * size))
            gather.read_range(tensor, lo * size, hi * size, buffer, handles)
            run = elements(buffer, tensor.dtype)
            with np.errstate(invalid="ignore"):
                values += [shown(v) for v in (run if each else run[first - lo :: step] if step > 0 else run[::step])]
    return {"slice": text, "shape": shape, "values": values}


def _runs(shape: tuple[int, ...], chosen: list[range | int]) -> Any:
    """(first flat index, elements, step) of each run along the innermost dimension."""
    if not shape:
        yield 0, 1, 1
        return
    ranges = [c if isinstance(c, range) else range(c, c + 1) for c in chosen]
    if any(len(r) == 0 for r in ranges):
        return
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    inner = ranges[-1]
    for outer in itertools.product(*ranges[:-1]):
        yield sum(i * s for i, s in zip(outer, strides, strict=False)) + inner.start, len(inner), inner.step
