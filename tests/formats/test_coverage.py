"""Blocks fill a tensor exactly once, or it is said why not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.formats.coverage import Block, flaw

PINWHEEL: list[Block] = [((0, 0), (2, 1)), ((0, 1), (1, 2)), ((1, 2), (2, 1)), ((2, 0), (1, 2)), ((1, 1), (1, 1))]


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((), [((), ())]),
        ((0, 3), []),
        ((0, 3), [((0, 0), (0, 3)), ((0, 0), (0, 3))]),
        ((5,), [((3,), (2,)), ((0,), (3,)), ((5,), (0,))]),
        ((4, 4), [((r, c), (2, 2)) for r in (0, 2) for c in (0, 2)]),
        ((3, 3), PINWHEEL),
    ],
)
def test_whole_tensors_have_no_flaw(shape: tuple[int, ...], blocks: list[Block]) -> None:
    assert flaw(shape, blocks) == ""


@pytest.mark.parametrize(
    ("shape", "blocks", "words"),
    [
        ((), [], "not stored"),
        ((), [((), ()), ((), ())], "2 chunks"),
        ((5,), [((0,), (3,))], "3 of its 5 elements"),
        ((5,), [((0,), (3,)), ((2,), (3,))], "same elements"),
        ((4,), [((0,), (2,)), ((0,), (2,))], "same elements"),
        ((3, 3), [*PINWHEEL[:-1], ((0, 0), (1, 1))], "same elements"),
        ((5,), [((3,), (3,))], "leaves the tensor"),
        ((5,), [((-1,), (6,))], "leaves the tensor"),
        ((5, 1), [((0,), (5,))], "number of dimensions"),
    ],
)
def test_a_hole_or_an_overlap_is_named(shape: tuple[int, ...], blocks: list[Block], words: str) -> None:
    assert words in flaw(shape, blocks)


@st.composite
def _broken_up(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Block]]:
    """A shape cut again and again at random places, in random order."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    blocks: list[Block] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offsets, sizes = blocks.pop(draw(st.integers(0, len(blocks) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[dim]))
        first = (*sizes[:dim], at, *sizes[dim + 1 :])
        rest = (*sizes[:dim], sizes[dim] - at, *sizes[dim + 1 :])
        blocks += [(offsets, first), ((*offsets[:dim], offsets[dim] + at, *offsets[dim + 1 :]), rest)]
    return shape, draw(st.permutations(blocks))


@settings(max_examples=200, deadline=None)
@given(_broken_up(), st.data())
def test_agrees_with_counting_every_element(cut: tuple[tuple[int, ...], list[Block]], data: st.DataObject) -> None:
    shape, blocks = cut
    assert flaw(shape, blocks) == ""
    # Any one block moved, dropped or doubled is told exactly when an element's count is not one.
    which = data.draw(st.integers(0, len(blocks) - 1))
    sizes = blocks[which][1]
    moved = tuple(data.draw(st.integers(0, n - k)) for n, k in zip(shape, sizes, strict=True))
    for changed in (
        [*blocks[:which], (moved, sizes), *blocks[which + 1 :]],
        blocks[:which] + blocks[which + 1 :],
        [*blocks, blocks[which]],
    ):
        counts = np.zeros(shape, int)
        for at, n in changed:
            counts[tuple(slice(a, a + k) for a, k in zip(at, n, strict=True))] += 1
        assert (flaw(shape, changed) == "") == bool((counts == 1).all())
