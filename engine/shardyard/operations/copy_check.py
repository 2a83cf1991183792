"""Do the masters, cast, equal the 16-bit copy that lies in the same step folder?  Only this finds weights rebuilt wrongly.

ZeRO-1 and 2 store every weight twice: as float32 masters cut into flat partitions, and whole in 16 bits.  A padding, group or
order misread by one element shows here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardyard.checkpoint import Tensor
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.numeric import elements, wide
from shardyard.operations.rounding import matching

SAMPLES = 4
"""Ranges looked at in a sample: the two ends, where borders are, and places between."""
SAMPLE = 16 << 10
"""Elements of each."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where a master and its copy are not the same weight."""

    name: str
    differing: int
    """Elements seen that disagree."""
    looked_at: int
    first: int
    """Flat index of the first."""
    largest: float
    """Largest |master - copy|, of those that are finite."""

    @property
    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        return (
            f"{self.differing:,} of {self.looked_at:,} values of {self.name} are not those of its 16-bit copy "
            f"(the first at element {self.first:,}, by up to {self.largest:.4g})."
        )


def check_copy(
    tensor: Tensor, handles: FileHandles, *, sample: bool = False, watch: Callable[[int], None] = lambda n: None
) -> Disagreement | None:
    """Compare a tensor with its `copy16`, all of it or a sample; None if they agree, or it has none."""
    copy = tensor.copy16
    if copy is None or copy.layout is None or tensor.layout is None:
        return None
    if copy.numel != tensor.numel:
        return Disagreement(tensor.name, tensor.numel, tensor.numel, 0, float("inf"))
    sizes = (tensor.dtype.itemsize, copy.dtype.itemsize)
    differing = looked_at = 0
    first, largest = -1, 0.0
    for lo, hi in _ranges(tensor.numel, sample):
        sides = []
        for side, size in zip((tensor, copy), sizes, strict=True):
            buffer = memoryview(bytearray((hi - lo) * size))
            gather.read_range(side, lo * size, hi * size, buffer, handles)
            sides.append(elements(buffer, side.dtype))
        watch((hi - lo) * sum(sizes))
        looked_at += hi - lo
        wrong = ~matching(sides[0], sides[1], copy.dtype)
        if wrong.any():
            differing += int(np.count_nonzero(wrong))
            first = first if first >= 0 else lo + int(wrong.argmax())
            with np.errstate(all="ignore"):
                distance = np.abs(wide(sides[0][wrong]) - wide(sides[1][wrong]))
            largest = max(largest, float(np.nanmax(np.where(np.isfinite(distance), distance, 0.0))))
    return Disagreement(tensor.name, differing, looked_at, first, largest) if differing else None


def _ranges(numel: int, sample: bool) -> list[tuple[int, int]]:
    if not sample or numel <= SAMPLES * SAMPLE:
        step = 1 << 18
        return [(lo, min(numel, lo + step)) for lo in range(0, numel, step)]
    gap = (numel - SAMPLE) // (SAMPLES - 1)
    return [(i * gap, i * gap + SAMPLE) for i in range(SAMPLES)]
