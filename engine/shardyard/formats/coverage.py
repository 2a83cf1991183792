"""Whether rectangular blocks fill a tensor: each element once, none twice, none left out.

torch's own loader does not look and leaves uninitialised memory in holes.  The proof is arithmetic: if every block lies inside,
the volumes add up to the whole and no two blocks meet, there is no hole.  Blocks are told apart by cutting along one dimension
after another, so a hundred thousand rows, columns or tiles cost a few sorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Block = tuple[tuple[int, ...], tuple[int, ...]]
"""(offsets, sizes)."""

MOST_COMPARISONS = 10_000_000
"""For blocks that no straight cut separates; torch writes none."""


def flaw(shape: Sequence[int], blocks: Sequence[Block]) -> str:
    """Why the blocks do not fill the shape exactly once, as the end of a sentence; empty if they do."""
    if not shape:
        scalars = sum(1 for offsets, sizes in blocks if not offsets and not sizes)
        return "" if scalars == len(blocks) == 1 else _count(len(blocks), 1)
    full = []
    volume = 0
    for block in blocks:
        offsets, sizes = block
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return "one of its chunks has another number of dimensions"
        size = math.prod(sizes)
        for offset, n, end in zip(offsets, sizes, shape, strict=True):
            if offset < 0 or n < 0 or offset + n > end:
                return "one of its chunks leaves the tensor"
        if size:
            volume += size
            full.append(block)
    wanted = math.prod(shape)
    if volume < wanted:
        return f"{volume:,} of its {wanted:,} elements are stored"
    if volume > wanted or _overlap(full, len(shape)):
        return "two of its chunks cover the same elements"
    return ""


def _count(found: int, wanted: int) -> str:
    return f"{found} chunks hold its {wanted} element" if found else "its only element is not stored"


def _overlap(blocks: list[Block], dimensions: int) -> bool:
    """Whether any two blocks, none of them empty, share an element."""
    waiting = [blocks]
    left = MOST_COMPARISONS
    while waiting:
        group = waiting.pop()
        if len(group) < 2:
            continue
        for dimension in range(dimensions):
            parts = _cut(group, dimension)
            if len(parts) > 1:
                waiting.extend(p for p in parts if len(p) > 1)
                break
        else:
            left -= len(group) * len(group)
            if left < 0 or _meet(group):
                return True
    return False


def _cut(group: list[Block], dimension: int) -> list[list[Block]]:
    """The blocks in runs that do not touch each other along one dimension."""
    group.sort(key=lambda block: block[0][dimension])
    parts: list[list[Block]] = []
    end = -1
    for block in group:
        start = block[0][dimension]
        if start >= end:
            parts.append([block])
        else:
            parts[-1].append(block)
        end = max(end, start + block[1][dimension])
    return parts


def _meet(group: list[Block]) -> bool:
    """Compare every pair."""
    for i, (offsets, sizes) in enumerate(group):
        for others, lengths in group[:i]:
            if all(a < b + m and b < a + n for a, n, b, m in zip(offsets, sizes, others, lengths, strict=True)):
                return True
    return False
