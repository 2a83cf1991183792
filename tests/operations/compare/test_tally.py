"""What two arrays have in common, counted the quick way and the plain way."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardyard.operations.compare.tally import Tally, Tolerance, after_rounding, floats

WORDS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 0x80000001, 0x007FFFFF, 0x33000001, 0x7F7FFFFF, 0x477FF000, 0x7F800000, 0x7FC00000]),
)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
@given(patterns=st.lists(WORDS, min_size=1, max_size=40), relative=st.sampled_from([0.0, 1e-3]))
def test_a_rounding_is_tallied_in_float32_as_it_is_in_float64(kind: type, patterns: list[int], relative: float) -> None:
    x = np.array(patterns, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        y = x.astype(kind)
        for a, b in ((x, y), (y, x)):
            quick, plain = (tally(a, b, 7, Tolerance(relative)) for tally in (after_rounding, floats))
            assert repr(quick) == repr(plain)


def test_differences_are_counted_by_their_power_of_two() -> None:
    x = np.array([1.0, 1.0, 1.0, 2.0, 1e-40], np.float32)
    y = np.array([1.5, 1.25, 1.0, 2.25, 0.0], np.float32)
    expected = Counter({-1: 1, -2: 2, -133: 1})
    for tally in (after_rounding, floats):
        found: Tally = tally(x, y, 0, Tolerance())
        assert found.powers == expected and found.differing == 4 and found.first == 0
