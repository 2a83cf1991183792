"""Statistics of one tensor against numpy, in every kind, whether elements are kept or counted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.errors import IncompleteError, UsageError
from shardyard.files import FileHandles
from shardyard.operations.context import Context
from shardyard.operations.statistics import description as statistics
from shardyard.operations.statistics import quantiles as order_statistics
from shardyard.operations.statistics import slices
from shardyard.operations.statistics.quantiles import Selection
from shardyard.operations.statistics.run import ROWS, StatsOptions, stats
from support.arrays import checkpoint, tensor

RNG = np.random.default_rng(0)
N = 200_000
NORMAL = RNG.standard_normal(N)


def special() -> np.ndarray:
    """float32 with NaNs of both signs, infinities, zeros of both signs and denormals."""
    values = NORMAL.astype(np.float32)
    values[:50], values[50:80], values[80:90] = np.nan, np.inf, -np.inf
    values[90:100], values[100:110], values[110:120] = 0.0, -0.0, 1e-40
    values.view(np.uint32)[200:300] = 0xFFC00001
    return values


def every_pattern(name: str) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    return RNG.integers(0, 256**kind.itemsize, N).astype(f"u{kind.itemsize}").view(kind)


CASES: dict[str, np.ndarray] = {
    "normal float32": NORMAL.astype(np.float32),
    "normal float64": NORMAL,
    "denormal float32": (NORMAL * 1e-39).astype(np.float32),
    "special float32": special(),
    **{
        f"every {name}": every_pattern(name)
        for name in (
            "bfloat16",
            "float16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        )
    },
    **{
        f"random {name}": RNG.integers(0, 2**32, N, dtype=np.uint32).astype(name)
        for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
    },
    "wide int64": RNG.integers(-(2**40), 2**40, N),
    "wide uint64": RNG.integers(0, 2**50, N).astype(np.uint64),
    "bool": RNG.integers(0, 2, N).astype(bool),
    "complex64": (NORMAL + 1j * NORMAL[::-1]).astype(np.complex64),
    "constant": np.full(1000, 2.5, np.float32),
    "one": np.array(3.5, np.float32),
}


def describe(array: np.ndarray) -> dict[str, Any]:
    with FileHandles() as handles:
        return statistics.describe(tensor("w", array), handles)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "counted"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_figures_are_numpy_s(name: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kept:
        monkeypatch.setattr(order_statistics, "MOST_KEPT", 500)
    array = CASES[name]
    found = describe(array)
    values = np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)
    finite, numbers = values[np.isfinite(values)], values[~np.isnan(values)]
    assert found["sha256"] == hashlib.sha256(array.tobytes()).hexdigest()
    assert (found["finite"], found["nan"], found["inf"]) == (finite.size, np.isnan(values).sum(), np.isinf(values).sum())
    assert (found["zeros"], found["min"], found["max"]) == ((values == 0).sum(), finite.min(), finite.max())
    scale = np.abs(finite).max()
    assert found["mean"] == pytest.approx(finite.mean(), rel=1e-12, abs=1e-13 * scale)
    assert found["std"] == pytest.approx(finite.std(), rel=1e-12)
    assert found["norm"] == pytest.approx(np.sqrt(np.square(finite).sum()), rel=1e-12)
    if finite.size > 1:
        assert found["std_sample"] == pytest.approx(finite.std(ddof=1), rel=1e-12)
    if not np.isinf(numbers).any():
        for quantile, value in found["quantiles"].items():
            assert value == pytest.approx(np.quantile(numbers, float(quantile)), rel=1e-12, abs=1e-300)
    assert found["histogram"]["linear"]["counts"] == np.histogram(finite, 64, (finite.min(), finite.max()))[0].tolist()
    _check_log(found["histogram"]["log"], finite)


def _check_log(log: dict[str, Any], finite: np.ndarray) -> None:
    assert log["zero"] == (finite == 0).sum()
    for sign, part in (("positive", finite[finite > 0]), ("negative", -finite[finite < 0])):
        powers, counts = np.unique(np.frexp(part)[1] - 1, return_counts=True)
        assert log[sign] == {str(p): n for p, n in zip(powers.tolist(), counts.tolist(), strict=True)}


def test_quantiles_with_infinities_are_those_of_all_numbers() -> None:
    values = np.array([-np.inf, 1, 2, 3, np.inf, np.nan], np.float32)
    found = describe(values)
    assert found["quantiles"]["0.5"] == 2.0
    assert (found["quantiles"]["0.001"], found["quantiles"]["0.999"]) == ("-inf", "inf")
    assert (found["min"], found["max"], found["nan"], found["inf"]) == (1.0, 3.0, 1, 2)
    json.dumps(found, allow_nan=False)


def test_integers_beyond_2_53_are_exact() -> None:
    found = describe(np.array([2**62 + 1, 2**62 + 3, -(2**62)]))
    assert (found["min"], found["max"], found["quantiles"]["0.5"]) == (-(2**62), 2**62 + 3, 2**62 + 1)
    assert found["mean"] == (2**62 + 4) / 3
    assert describe(np.array([2**64 - 1], np.uint64))["max"] == 2**64 - 1


def test_denormals_are_those_of_the_stored_kind() -> None:
    assert describe(np.array([1e-40, 1e-37, 0], np.float32))["denormals"] == 1
    assert describe(np.array([1e-40, 1e-37, 0], np.float64))["denormals"] == 0
    assert describe(np.array([1e-5, 1e-4, 6e-8], np.float16))["denormals"] == 2
    assert describe(np.array([5e-324, 1.0]))["denormals"] == 1


def test_an_empty_tensor_has_no_figures() -> None:
    found = describe(np.zeros((0, 4), np.float32))
    assert (found["min"], found["mean"], found["norm"], found["quantiles"], found["finite"]) == (None, None, 0.0, {}, 0)
    assert found["sha256"] == hashlib.sha256(b"").hexdigest()


def test_what_is_no_number_is_hashed_alone() -> None:
    with FileHandles() as handles:
        found = statistics.describe(tensor("w", np.arange(4, dtype=np.uint8), "qint8"), handles)
    assert found["sha256"] == hashlib.sha256(bytes(range(4))).hexdigest() and "min" not in found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300), st.data(), st.sampled_from([16, 32, 64]), st.integers(0, 50)
)
def test_any_rank_is_found_in_any_number_of_passes(keys: list[int], data: st.DataObject, bits: int, kept: int) -> None:
    array = np.array([k >> (64 - bits) for k in keys], f"u{bits // 8}")
    ranks = data.draw(st.lists(st.integers(0, array.size - 1), min_size=1, max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_statistics, "MOST_KEPT", kept)
        selection = Selection(bits, array.size)
        wanted: list[int] | None = ranks
        while not selection.done:
            for part in np.array_split(array, 3):
                selection.feed(part)
            selection.end_pass(wanted)
            wanted = None
    in_order = np.sort(array)
    assert selection.found == {rank: int(in_order[rank]) for rank in ranks}


MATRIX = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


@pytest.mark.parametrize(
    "text", ["", "1", "-1", "0:2", "::2", "1, 2", "1, ::-1, 3", ":, :, -2:", "2, 0:4:2, ::2", "[0, 1:3, 4:1:-1]", "5:"]
)
def test_slices_are_python_s(text: str) -> None:
    with FileHandles() as handles:
        found = slices.read(tensor("w", MATRIX), text, handles)
    inner = text.strip("[]")
    expected = eval(f"MATRIX[{inner}]") if inner else MATRIX
    assert found["values"] == expected.reshape(-1).tolist()
    assert tuple(found["shape"]) == expected.shape


@pytest.mark.parametrize("text", ["3", "0,0,0,0", "a", "1:2:0", "1:2:3:4", "0,,1", ":,-5"])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with FileHandles() as handles, pytest.raises(UsageError):
        slices.read(tensor("w", MATRIX), text, handles)


def test_a_slice_that_nobody_could_read_is_refused() -> None:
    with FileHandles() as handles, pytest.raises(UsageError, match="at most"):
        slices.read(tensor("w", np.zeros((200, 200), np.int8)), "", handles)


class Recording(Context):
    def __init__(self, folder: Path) -> None:
        self.folder = folder


def test_rows_of_a_job_come_as_they_are_done(tmp_path: Path) -> None:
    weights = checkpoint({"a.weight": MATRIX, "b.weight": MATRIX[0], "step": np.array(7)})
    result = stats(weights, StatsOptions(select=("*.weight",)), Recording(tmp_path))
    assert [row["name"] for row in result["tensors"]] == ["a.weight", "b.weight"]
    rows = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert sorted(row["sha256"] for row in rows) == sorted(row["sha256"] for row in result["tensors"])


def test_data_that_is_not_here_is_not_described() -> None:
    weights = checkpoint({"w": MATRIX})
    weights.tensors["w"].layout = None
    with pytest.raises(IncompleteError):
        stats(weights)
