"""The sentences: what a person reads first, and often alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import AmbiguousError, CheckpointError, IncompleteError, UsageError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.operations.compare.run import CompareOptions, compare
from shardyard.operations.context import Context, Progress
from support.arrays import checkpoint

RNG = np.random.default_rng(5)
BF16 = ml_dtypes.bfloat16
BASE = {f"layers.{i}.weight": RNG.standard_normal((8, 8)).astype(np.float32) for i in range(6)}
HALF = {name: array.astype(BF16) for name, array in BASE.items()}


def verdict(a: dict[str, Any], b: dict[str, Any], **options: Any) -> str:
    return str(compare(checkpoint(a), checkpoint(b), CompareOptions(**options))["verdict"])


def test_equality_is_said_in_the_strongest_words_that_hold() -> None:
    wide = {name: array.astype(np.float32) for name, array in HALF.items()}
    assert verdict(BASE, BASE) == "Identical: the same bits in all 6 tensors."
    assert verdict(HALF, wide) == (
        "Equal: the same values in all 6 tensors; bfloat16 in A is float32 in B in 6 of them, and nothing is lost."
    )
    assert verdict(BASE, HALF) == "B is A rounded to bfloat16, exactly, in all 6 tensors; nothing is lost but precision."
    assert verdict(HALF, BASE) == "A is B rounded to bfloat16, exactly, in all 6 tensors; nothing is lost but precision."
    moved = {name: array * np.float32(1.0001) for name, array in BASE.items()}
    assert verdict(BASE, moved, rtol=0.01) == "Within the tolerance in all 6 tensors."


def test_buffers_that_stayed_as_they_were_do_not_weaken_a_rounding() -> None:
    extra = {"steps": np.array([3, 4]), "scale": np.array([1.5, 2.0], np.float32)}
    a, b = {**BASE, **extra}, {**HALF, **extra}
    assert verdict(a, b) == (
        "B is A rounded to bfloat16, exactly, in 7 of 8 tensors, and equal in the other; nothing is lost but precision."
    )


def test_a_few_exceptions_are_named() -> None:
    longer = {**BASE, "layers.2.weight": np.concatenate([BASE["layers.2.weight"], np.zeros((8, 8), np.float32)])}
    assert verdict(BASE, longer) == "Identical except layers.2.weight: 8 extra rows in B; the first 8 are identical."
    changed = {**HALF, "layers.1.weight": HALF["layers.1.weight"].copy()}
    changed["layers.1.weight"][2, 3] = 9
    text = verdict(BASE, changed)
    assert text.startswith(
        "B is A rounded to bfloat16, exactly, except layers.1.weight: 1 of 64 values is no rounding to bfloat16"
    )
    assert text.endswith("at [2, 3].")


def test_missing_names_are_named() -> None:
    fewer = {name: array for name, array in BASE.items() if name != "layers.5.weight"}
    assert verdict(BASE, fewer) == "Identical in the 5 tensors that both have; layers.5.weight is only in A."


def test_many_differences_are_counted_and_the_largest_named() -> None:
    other = {name: array + np.float32(i) for i, (name, array) in enumerate(BASE.items())}
    text = verdict(BASE, other)
    assert text.startswith("5 of 6 tensors differ, most of all layers.") and "64 of 64 values differ" in text


def test_siblings_are_recognised_as_one_model() -> None:
    a = {name: array.astype(BF16) for name, array in _large().items()}
    b = {name: array.astype(np.float16) for name, array in _large().items()}
    result = compare(checkpoint(a), checkpoint(b))
    assert not result["equal"]
    assert result["verdict"] == (
        "All 2 tensors are two roundings of one parent, bfloat16 and float16: the same model, saved twice in different types."
    )


def _large() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {f"w{i}": rng.standard_normal(5000).astype(np.float32) for i in range(2)}


def test_nan_is_said_before_anything_is_averaged() -> None:
    broken = {**BASE, "layers.0.weight": BASE["layers.0.weight"].copy()}
    broken["layers.0.weight"][1, 1] = np.nan
    assert verdict(BASE, broken) == "Identical except layers.0.weight: 1 of 64 values differs, 1 NaN in B."


def test_an_adapter_that_was_never_folded_in_is_found_out(tmp_path: Path) -> None:
    adapter = {"layers.0.lora_A.weight": np.zeros((2, 8), np.float32), "layers.0.lora_B.weight": np.zeros((8, 2), np.float32)}
    assert verdict(BASE, {**BASE, **adapter}) == (
        "No tensor differs from the base model (all 6 tensors): the LoRA (2 adapter tensors in B) was never folded in."
    )
    peft = {f"base_model.model.{n.replace('.weight', '.base_layer.weight')}": a for n, a in BASE.items()}
    peft |= {f"base_model.model.{n}": a for n, a in adapter.items()}
    result = compare(checkpoint(BASE), checkpoint(peft), CompareOptions(strip_prefix=("base_model.model.",)))
    assert "was never folded in" in result["verdict"]
    assert compare(checkpoint(BASE), checkpoint(peft))["prefix_hint"] == "base_model.model."
    (tmp_path / "lora_adapter").mkdir()
    (tmp_path / "lora_adapter" / "adapter_config.json").write_text("{}")
    result = compare(checkpoint(BASE), checkpoint(BASE, path=str(tmp_path)))
    assert result["verdict"] == "No tensor differs (all 6 tensors): the LoRA in lora_adapter beside B was never folded in."
    assert result["equal"]


def test_nothing_in_common() -> None:
    assert verdict({"x": np.ones(1)}, {"y": np.ones(1)}) == "No tensor name is in both."
    result = compare(checkpoint({}), checkpoint({}))
    assert (result["equal"], result["worst"]) == (True, None)


def test_a_checkpoint_that_cannot_be_trusted_is_refused() -> None:
    finding = Finding("missing-rank", Severity.ERROR, "Rank 1 of 2 is missing.", blocks=Blocks.UNLESS_ALLOWED)
    damaged = checkpoint(BASE)
    damaged.findings.append(finding)
    with pytest.raises(CheckpointError, match=r"B \(memory\) cannot be compared: Rank 1 of 2 is missing."):
        compare(checkpoint(BASE), damaged)
    hollow = checkpoint({"layers.0.weight": Tensor("layers.0.weight", BY_NAME["float32"], (8, 8), None)})
    with pytest.raises(IncompleteError, match=r"layers\.0\.weight is not here"):
        compare(checkpoint(BASE), hollow)


def test_several_models_are_not_guessed_between() -> None:
    from shardyard.checkpoint import Part

    several = checkpoint(BASE)
    several.parts["ema"] = Part("ema", {}, model=True)
    several.part = None
    with pytest.raises(AmbiguousError) as caught:
        compare(several, checkpoint(BASE))
    assert caught.value.candidates == ("model", "ema")


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError):
        CompareOptions(require="mostly")
    with pytest.raises(UsageError):
        CompareOptions(rtol=-1)


class Watching(Context):
    """Remembers progress, and cancels when told."""

    def __init__(self, folder: Path | None = None, *, after: int | None = None) -> None:
        self.folder = folder
        self.seen: list[Progress] = []
        self._after = after

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)

    def cancelled(self) -> bool:
        return self._after is not None and len(self.seen) >= self._after


def _open(path: Path) -> Checkpoint:
    from shardyard.discover import open_checkpoint

    return open_checkpoint(path)


def test_progress_reaches_the_total_and_rows_come_as_they_are_done(tmp_path: Path) -> None:
    import json

    from safetensors.numpy import save_file

    from shardyard.operations.compare.run import ROWS, compare_paths

    save_file(BASE, tmp_path / "a.safetensors")
    save_file({name: array.astype(np.float16) for name, array in BASE.items()}, tmp_path / "b.safetensors")
    context = Watching(tmp_path)
    result = compare_paths(tmp_path / "a.safetensors", tmp_path / "b.safetensors", context=context)
    assert context.seen[-1].done == context.seen[-1].total == 6 * 64 * 6
    rows = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert sorted(r["name"] for r in rows) == [r["name"] for r in result["tensors"]]


def test_cancelling_ends_it() -> None:
    from shardyard.errors import Cancelled

    with pytest.raises(Cancelled):
        compare(checkpoint(BASE), checkpoint(BASE), context=Watching(after=2))
