"""A whole checkpoint read once: what no header tells."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import Cancelled, UnsupportedError
from shardyard.files import FileHandles
from shardyard.findings import Finding
from shardyard.layouts import Strided
from shardyard.operations.compare.run import compare
from shardyard.operations.context import Context
from shardyard.operations.copy_check import check_copy
from shardyard.operations.inspect.scan import scan
from shardyard.operations.statistics.run import stats
from shardyard.pieces import InlineRecord
from support.arrays import checkpoint, tensor

RNG = np.random.default_rng(9)


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_zeros_that_were_never_gathered_are_flagged() -> None:
    weights = {f"layers.{i}.weight": noise(8, 8) if i % 3 else np.zeros((8, 8), np.float32) for i in range(9)}
    weights |= {"norm.bias": np.zeros(8, np.float32), "norm.weight": np.ones(8, np.float32)}
    result = scan(checkpoint(weights))
    found = result.to_json()
    assert found["all_zero"] == [f"layers.{i}.weight" for i in (0, 3, 6)] + ["norm.bias"]
    assert found["constant"] == ["norm.weight"]
    (finding,) = result.findings()
    assert finding.code == "all-zero" and finding.tensors == ("layers.0.weight", "layers.3.weight", "layers.6.weight")
    assert "3 of 11 tensors hold nothing but zeros" in found["verdict"]


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"])
def test_nan_and_inf_are_counted_in_every_kind(kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    values = noise(50, 50).astype(dtype)
    values[3, 4] = values[7, 7] = np.nan
    values[5, 5] = -np.inf
    has_inf = bool(np.isinf(values[5, 5].astype(np.float64)))
    found = scan(checkpoint({"w": values, "fine": noise(4, 4)})).to_json()
    assert found["nan"] == {"w": 2 if has_inf else 3}
    assert found["inf"] == ({"w": 1} if has_inf else {})


def test_equal_copies_are_proved_and_ties_are_none() -> None:
    table, other = noise(16, 4), noise(16, 4)
    ones = np.ones(16, np.float32)
    weights = {"embed": table, "head": table.copy(), "other": other, "alias": other, "n1": ones, "n2": ones}
    found = scan(checkpoint(weights, ties=[("other", "alias")])).to_json()
    assert found["equal_copies"] == [["embed", "head"]]


def test_negative_zeros_are_zeros_and_not_a_constant() -> None:
    mixed = np.array([[0.0, -0.0], [0.0, 0.0]], np.float32)
    found = scan(checkpoint({"w": mixed})).to_json()
    assert (found["all_zero"], found["constant"]) == (["w"], [])


def test_a_healthy_checkpoint_says_so_and_other_types_are_read_too() -> None:
    weights = {"w": noise(8, 8), "ids": np.arange(5), "mask": np.array([True, False]), "z": noise(4).astype(np.complex64)}
    result = scan(checkpoint({**weights, "q": tensor("q", np.arange(4, dtype=np.uint8), "qint8")}))
    assert result.findings() == []
    assert result.verdict() == "All values of 5 tensors are finite, and no matrix is empty of content."


def test_findings_reach_the_context_and_cancelling_ends_it() -> None:
    class Told(Context):
        def __init__(self, *, stop: bool = False) -> None:
            self.findings: list[Finding] = []
            self.stop = stop

        def finding(self, finding: Finding) -> None:
            self.findings.append(finding)

        def cancelled(self) -> bool:
            return self.stop

    context = Told()
    scan(checkpoint({"w": np.full((2, 2), np.nan, np.float32)}), context)
    assert "nan" in [f.code for f in context.findings]
    with pytest.raises(Cancelled):
        scan(checkpoint({"w": noise(2, 2)}), Told(stop=True))


def masters(copy: np.ndarray, master: np.ndarray) -> object:
    whole = tensor("w", master)
    whole.copy16 = tensor("w", copy)
    with FileHandles() as handles:
        return check_copy(whole, handles), check_copy(whole, handles, sample=True)


def test_masters_must_round_to_their_16_bit_copy() -> None:
    master = noise(400, 1000)
    copy = master.astype(ml_dtypes.bfloat16)
    assert masters(copy, master) == (None, None)
    shifted = np.roll(copy.reshape(-1), 1).reshape(copy.shape)
    whole, sample = masters(shifted, master)  # type: ignore[misc]
    assert whole.differing > 390_000 and whole.first == 0 and sample.differing > 60_000
    one = copy.copy()
    one[0, 5] = 3
    whole, _ = masters(one, master)  # type: ignore[misc]
    assert (whole.differing, whole.first, whole.looked_at) == (1, 5, 400_000)
    assert "1 of 400,000 values of w" in whole.sentence


def test_scanning_and_describing_run_as_jobs(tmp_path: Path) -> None:
    from shardyard.jobs.folder import Spec, State
    from shardyard.jobs.store import create

    save_file({"w": np.zeros((4, 4), np.float32), "v": noise(3)}, tmp_path / "m.safetensors")
    for verb, options in (("scan", {}), ("stats", {"select": ["w"]})):
        job = create(Spec(verb, (str(tmp_path / "m.safetensors"),), None, options))
        job.start()
        events = list(job.follow())
        assert job.state() is State.DONE
        result = next(e for e in events if e["event"] == "result")
        assert result["all_zero"] == ["w"] if verb == "scan" else result["tensors"] == 1


def test_a_view_that_repeats_a_number_for_ever_is_refused_by_everything_that_reads() -> None:
    record = InlineRecord("memory", 4, 0, data=b"\0\0\x80\x3f")
    endless = Tensor("w", BY_NAME["float32"], (10**6, 10**6), Strided(record, 0, (10**6, 10**6), (0, 0), 4))
    weights = checkpoint({"w": endless})
    for read in (scan, stats, lambda c: compare(c, c)):
        with pytest.raises(UnsupportedError, match="w repeats 4 stored bytes"):
            read(weights)
