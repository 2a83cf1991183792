"""What two arrays are to each other, in every kind; the casts of torch and ml_dtypes are the oracle."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from shardyard.operations.compare import pairs
from shardyard.operations.compare.run import CompareOptions, compare
from shardyard.operations.numeric import by_name, cast, wide
from support.arrays import checkpoint, tensor

BF16 = ml_dtypes.bfloat16
FLOAT32 = some.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))
BITS32 = some.arrays(np.uint32, st.integers(1, 40))
ROUNDABLE = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def row(a: np.ndarray, b: np.ndarray, a_type: str | None = None, b_type: str | None = None, **options: Any) -> dict[str, Any]:
    """The row of one pair."""
    sides = [checkpoint({"w": tensor("w", array, dtype)}) for array, dtype in ((a, a_type), (b, b_type))]
    result = compare(*sides, CompareOptions(**options))
    (found,) = result["tensors"]
    return {**found, "top": result["equal"]}


def kind(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


@settings(max_examples=60, deadline=None)
@given(BITS32, st.sampled_from(ROUNDABLE), st.booleans(), st.booleans())
def test_a_cast_is_recognised_from_either_side_narrow_or_widened(
    bits: np.ndarray, name: str, swapped: bool, widened: bool
) -> None:
    source = bits.view(np.float32)
    with np.errstate(all="ignore"):
        narrow = source.astype(kind(name))
    other = narrow.astype(np.float32) if widened and not name.endswith("fnuz") else narrow
    a, b = (other, source) if swapped else (source, other)
    found = row(a, b)
    assert found["relation"] in ("identical", "equal") or found["relation"].startswith("rounded-")
    if found["relation"].startswith("rounded-") and other is narrow:
        assert found["relation"] == f"rounded-{name}"
        assert found["rounded"] == ("a" if swapped else "b")


@settings(max_examples=60, deadline=None)
@given(FLOAT32, st.sampled_from(ROUNDABLE), st.data())
def test_one_neighbour_off_is_no_rounding(source: np.ndarray, name: str, data: st.DataObject) -> None:
    with np.errstate(all="ignore"):
        rounded = source.astype(kind(name))
    at = data.draw(st.integers(0, source.size - 1))
    bits = rounded.view(f"u{rounded.dtype.itemsize}").copy()
    bits[at] ^= 1
    moved = bits.view(rounded.dtype)
    before, after = wide(rounded)[at], wide(moved)[at]
    if np.isnan(before) or np.isnan(after) or before == after or np.isinf(before) or np.isinf(after):
        return
    found = row(source, moved)
    if rounded.dtype.itemsize == 1 and not np.isfinite(before):
        return
    expected = {f"rounded-{name}"}
    assert found["relation"] not in expected
    assert found["relation"] != "identical"


@pytest.mark.parametrize("name", ROUNDABLE)
def test_casts_agree_with_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    sources = [
        rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32),
        rng.standard_normal(100_000).astype(np.float32),
        (rng.standard_normal(50_000) * 1e-5).astype(np.float32),
    ]
    for source in sources:
        expected = torch.from_numpy(source).to(getattr(torch, name)).double().numpy()
        with np.errstate(invalid="ignore"):
            found = wide(cast(source, by_name(name)))
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        # What overflows an 8-bit kind without infinities is NaN here; torch 2.13 stops at the largest number.
        overflowed = np.isnan(found) & (np.abs(expected) == 448)
        assert (same | overflowed).all()
        assert row(source, torch.from_numpy(source).to(getattr(torch, name)).view(_words(torch, name)).numpy().view(kind(name)))[
            "relation"
        ] in (f"rounded-{name}", "equal")


def _words(torch: Any, name: str) -> Any:
    return torch.int16 if by_name(name).bits == 16 else torch.uint8


@pytest.mark.parametrize("name", ROUNDABLE[:4])
def test_ties_go_to_even_and_their_neighbours_to_the_nearer(name: str) -> None:
    patterns = np.arange(1 << 8 * kind(name).itemsize, dtype=f"u{kind(name).itemsize}").view(kind(name))
    with np.errstate(invalid="ignore"):
        values = np.unique(wide(patterns)[np.isfinite(wide(patterns))])
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    even = cast(low, by_name(name)).view(f"u{kind(name).itemsize}") & 1 == 0
    for source, expected in (
        (middle, np.where(even, low, high)),
        (np.nextafter(middle, np.inf), high),
        (np.nextafter(middle, -np.inf), low),
    ):
        np.testing.assert_array_equal(wide(cast(source, by_name(name))), expected)


def test_float64_may_pass_through_float32_as_torch_casts() -> None:
    # Just above a tie of bfloat16: float32 loses the excess and lands on the tie.
    source = np.array([1 + 2**-8 + 2**-40, 1.0, 3.0])
    direct, by_way = np.array([1 + 2**-7, 1, 3], BF16), np.array([1.0, 1, 3], BF16)
    assert row(source, direct)["relation"] == row(source, by_way)["relation"] == "rounded-bfloat16"
    assert row(source, np.array([1 + 2**-6, 1, 3], BF16))["relation"] == "different"


def test_an_overflow_to_infinity_is_part_of_the_rounding_and_is_said() -> None:
    a = np.array([70000.0, -65520.0, 1.1], np.float32)
    with np.errstate(over="ignore"):
        result = compare(checkpoint({"w": a}), checkpoint({"w": a.astype(np.float16)}))
    assert result["worst"] == "rounded-float16" and result["equal"]
    assert "2 finite values became infinite in B, in w" in result["verdict"]
    assert "nothing is lost" not in result["verdict"]


@settings(max_examples=60, deadline=None)
@given(BITS32)
def test_two_16_bit_casts_of_one_parent_are_siblings(bits: np.ndarray) -> None:
    parent = bits.view(np.float32)
    with np.errstate(all="ignore"):
        a, b = parent.astype(BF16), parent.astype(np.float16)
    found = row(a, b)
    assert found["relation"] in ("equal", "both-rounded", "rounded-bfloat16", "rounded-float16")
    assert found["top"] == (found["relation"] != "both-rounded")


def test_siblings_need_a_common_parent() -> None:
    def relation(bf16: float, fp16: float) -> str:
        # The first pair makes sure that neither side is a rounding of the other.
        found = row(np.array([1 + 2**-7, bf16], BF16), np.array([1 + 2**-8, fp16], np.float16))
        return str(found["relation"])

    # A little more than 1 + 2^-8 goes up in bfloat16, and down to 1 + 2^-8 itself in float16.
    assert relation(1.0, 1.0) == "both-rounded"
    assert relation(1 + 2**-7, 1 + 2**-8 - 2**-10) == "different"
    # Infinite in float16 only where the parent may be at least 65,520, and nothing is where it may not.
    assert relation(70144.0, np.inf) == relation(65536.0, np.inf) == "both-rounded"
    assert relation(60160.0, np.inf) == relation(65536.0, 60000.0) == "different"
    assert relation(np.nan, np.nan) == "both-rounded"
    assert relation(np.nan, 1.0) == "different"
    # Too small for float16, and its sign is lost with it or kept.
    assert relation(-1e-9, -0.0) == relation(1e-9, 0.0) == "both-rounded"
    assert relation(1e-7, 0.0) == "different"


def test_bits_of_nan_and_signs_of_zero_are_not_values() -> None:
    a = np.array([0x7FC00000, 0, 0x3F800000], np.uint32).view(np.float32)
    b = np.array([0xFFC12345, 0x80000000, 0x3F800000], np.uint32).view(np.float32)
    found = row(a, b)
    assert (found["relation"], found["differing"], found["nan_a"], found["nan_b"]) == ("equal", 0, 1, 1)
    assert row(a, a)["relation"] == "identical"
    assert not row(a, b, require="identical")["top"]


def test_a_rounding_must_hold_where_the_bytes_are_equal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "BLOCK", 4096)
    monkeypatch.setattr(pairs, "UNIT", 8192)
    rng = np.random.default_rng(3)
    fine = rng.standard_normal(4096).astype(np.float32)
    coarse = fine.astype(BF16).astype(np.float32)
    kept = coarse.copy()
    kept[:1024] = fine[:1024]  # a whole block that was never rounded
    assert row(fine, coarse)["relation"] == "rounded-bfloat16"
    assert row(fine, kept)["relation"] == "different"
    assert row(np.concatenate([coarse[:1024], fine[1024:]]), coarse)["relation"] == "rounded-bfloat16"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_figures_do_not_depend_on_how_blocks_fall(size: int, seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(size).astype(np.float32)
    b = a.copy()
    places = rng.integers(0, size, changes)
    b[places] += rng.standard_normal(changes).astype(np.float32)
    a[rng.integers(0, size, 1)] = rng.choice([np.nan, np.inf, 1.0])
    whole = row(a, b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BLOCK", 512)
        patch.setattr(pairs, "UNIT", 1024)
        patch.setattr(pairs, "CHUNK", 100)
        pieces = row(a, b)
    for key, value in whole.items():
        assert pieces[key] == value or pieces[key] == pytest.approx(value, rel=1e-12), key


def test_integers_are_exact_in_every_width_and_sign() -> None:
    found = row(np.array([2**63 - 1, -(2**63)]), np.array([-(2**63), 2**63 - 1]))
    assert (found["max_abs"], found["mean_abs"], found["differing"]) == (2**64 - 1, float(2**64 - 1), 2)
    found = row(np.array([0, 2**64 - 1], np.uint64), np.array([0, -1]))
    assert (found["max_abs"], found["differing"]) == (2**64, 1)
    assert row(np.array([5, 2**63], np.uint64), np.array([5, 2**62]))["max_abs"] == 2**62
    assert row(np.array([True, False]), np.array([1, 0], np.int8))["relation"] == "equal"
    assert row(np.array([7], np.int32), np.array([7]))["relation"] == "equal"


def test_integers_against_floats_are_equal_only_if_they_are() -> None:
    assert row(np.array([2**53, 3]), np.array([2.0**53, 3]))["relation"] == "equal"
    found = row(np.array([2**53 + 1, 3]), np.array([2.0**53, 3]))
    assert (found["relation"], found["differing"], found["max_abs"]) == ("different", 1, 1.0)


def test_complex_numbers_are_compared_by_distance() -> None:
    a = np.array([3 + 4j, 1 + 0j, complex(np.nan, 0)], np.complex64)
    found = row(a, np.array([0 + 0j, 1 + 0j, complex(0, np.nan)], np.complex64))
    assert (found["max_abs"], found["differing"], found["place"], found["nan_a"]) == (5.0, 1, [0], 1)
    half = np.array([1, 2, 3, 4], np.float16)
    assert row(half.reshape(2, 2)[:, 0].copy(), half.reshape(2, 2)[:, 0].copy())["relation"] == "identical"


def test_half_precision_complex_is_widened_without_loss() -> None:
    words = np.array([[1, 2], [3, 4]], np.float16)
    a = tensor("w", words.view(np.uint32).reshape(2), "complex32")
    b = tensor("w", np.array([1 + 2j, 3 + 4j], np.complex64))
    (found,) = compare(checkpoint({"w": a}), checkpoint({"w": b}))["tensors"]
    assert found["relation"] == "equal"


def test_what_cannot_be_computed_with_is_compared_by_its_bytes() -> None:
    a = np.arange(8, dtype=np.uint8)
    b = a.copy()
    b[6] = 0
    assert row(a, a, "qint8", "qint8")["relation"] == "identical"
    found = row(a, b, "float4_e2m1fn_x2", "float4_e2m1fn_x2")
    assert (found["relation"], found["differing"], found["first"], found["place"]) == ("different", 1, 6, [6])
    assert row(a, a, "qint8", "quint8")["relation"] == "dtype-differs"
    assert not row(a, a, "qint8", "quint8")["top"]


def test_close_is_within_the_tolerance_of_b_and_nan_needs_nan() -> None:
    a = np.array([1.0003, 100.01, np.nan, np.inf], np.float32)
    b = np.array([1.0013, 100.11, np.nan, np.inf], np.float32)
    assert row(a, b)["relation"] == "different"
    assert row(a, b, rtol=1.1e-3)["relation"] == "close" and row(a, b, rtol=1.1e-3)["top"]
    assert row(a, b, atol=0.01)["relation"] == "different"
    assert row(a, b, rtol=1.1e-3, require="equal")["top"] is False
    b[2] = 0
    assert row(a, b, rtol=1.0, atol=1.0)["relation"] == "different"


def test_a_coarse_rounding_within_the_tolerance_counts_as_close() -> None:
    a = np.linspace(0, 1, 50, dtype=np.float32)
    b = a.astype(ml_dtypes.float8_e4m3fn)
    assert row(a, b)["relation"] == "rounded-float8_e4m3fn" and not row(a, b)["top"]
    assert row(a, b, atol=0.1)["relation"] == "close"


def test_empty_and_single_elements() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert row(empty, empty)["relation"] == "identical"
    assert row(empty, empty.astype(np.float64))["relation"] == "equal"
    assert row(empty, np.zeros((0, 4), np.float32))["relation"] == "shape-differs"
    found = row(np.array(1.0, np.float32), np.array(2.0, np.float32))
    assert (found["relation"], found["place"], found["max_abs"]) == ("different", [], 1.0)


def test_a_few_elements_that_fit_both_kinds_follow_the_rest() -> None:
    rng = np.random.default_rng(0)
    fine = {f"layer.{i}": rng.standard_normal(64).astype(np.float32) for i in range(3)}
    fine["scale"] = np.array(1.0000001, np.float32)
    halves = {name: array.astype(np.float16).astype(np.float32) for name, array in fine.items()}
    result = compare(checkpoint(fine), checkpoint(halves))
    assert {row["relation"] for row in result["tensors"]} == {"rounded-float16"}


def test_values_that_are_no_rounding_are_counted_and_placed() -> None:
    a = np.linspace(-1, 1, 1000, dtype=np.float32).reshape(10, 100)
    b = a.astype(BF16)
    b[3, 7] += BF16(0.5)
    found = row(a, b)
    assert (found["relation"], found["unexplained"], found["place"]) == ("different", 1, [3, 7])


def test_distances_are_spread_over_powers_of_two() -> None:
    a = np.zeros(6, np.float32)
    found = row(a, np.array([0, 1, 1.5, -2, 0.25, 0], np.float32))
    assert found["powers"] == {"-2": 1, "0": 2, "1": 1}
