"""Touched and ideal bytes of shared storages, against counting every byte."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.formats.torch.sharing import StorageUse, View, clusters_of


def reached(views: list[View]) -> int:
    found: set[int] = set()
    for view in views:
        for index in product(*(range(n) for n in view.shape)):
            start = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
            found.update(range(start, start + view.itemsize))
    return len(found)


@st.composite
def views(draw: st.DrawFn) -> View:
    item = draw(st.sampled_from([1, 2, 4]))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    strides = tuple(item * draw(st.integers(0, 12)) for _ in shape)
    return View("x", item, item * draw(st.integers(0, 12)), shape, strides)


@settings(max_examples=300, deadline=None)
@given(st.lists(views(), min_size=1, max_size=4))
def test_touched_bytes_are_counted_exactly(found: list[View]) -> None:
    for cluster in clusters_of(found):
        assert cluster.exact and cluster.touched == reached(cluster.views)


def test_a_column_of_a_huge_matrix_is_counted_without_a_mask() -> None:
    rows, columns = 1 << 22, 1 << 14
    use = StorageUse(("f", "0"), rows * columns * 4, [View("float32", 4, 12, (rows,), (columns * 4,))])
    assert use.touched == rows * 4 == use.ideal


def test_a_transpose_stays_one_storage_and_slices_are_cut_out() -> None:
    whole, turned = View("f", 4, 0, (20, 30), (120, 4)), View("f", 4, 0, (30, 20), (4, 120))
    assert StorageUse(("f", "0"), 2400, [whole, turned]).ideal == 2400
    slices = [View("f", 4, 4000, (5, 50), (200, 4)), View("f", 4, 38_000, (10, 50), (200, 4))]
    assert StorageUse(("f", "0"), 40_000, slices).ideal == 3000
