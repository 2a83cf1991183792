"""The Python API: opening, reading values and rows, scanning, merging with progress and cancel."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardyard
from shardyard import demo
from shardyard.errors import AmbiguousError, Cancelled, UsageError


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("library") / "tree"
    demo.write(root)
    return root


def test_a_checkpoint_is_a_mapping_from_names_to_tensors(tree: Path) -> None:
    with shardyard.open(tree / "zero3" / "checkpoint-2000") as checkpoint:
        assert (checkpoint.kind, checkpoint.world_size, checkpoint.step) == ("deepspeed-zero3", 4, 2000)
        assert checkpoint.complete
        assert len(checkpoint) == 30
        norm = checkpoint["model.norm.weight"]
        assert (norm.dtype, norm.shape, norm.nbytes) == ("float32", (64,), 256)
        assert norm.read().tobytes() == demo.DemoModel().float32["model.norm.weight"]
        assert ("model.embed_tokens.weight", "lm_head.weight") in checkpoint.ties


def test_rows_are_read_without_the_rest(tree: Path) -> None:
    with shardyard.open(tree / "zero2" / "checkpoint-500") as checkpoint:
        embedding = checkpoint["model.embed_tokens.weight"]
        before = checkpoint._handles.bytes_read
        rows = embedding[10:12]
        assert rows.shape == (2, 64)
        assert rows.tobytes() == demo.DemoModel().float32["model.embed_tokens.weight"][10 * 256 : 12 * 256]
        assert checkpoint._handles.bytes_read - before < 2 * 256 + 200
        assert embedding[5:5].shape == (0, 64)
        with pytest.raises(ValueError, match="step 1"):
            embedding[::2]


def test_bfloat16_values_come_as_their_own_type(tree: Path) -> None:
    with shardyard.open(tree / "tied-model") as checkpoint:
        values = checkpoint["model.norm.weight"].read()
        assert values.dtype.name == "bfloat16"
        assert values.tobytes() == demo.DemoModel().bfloat16["model.norm.weight"]


def test_scanning_finds_each_checkpoint(tree: Path) -> None:
    kinds = {candidate.path.relative_to(tree).as_posix(): candidate.kind.value for candidate in shardyard.scan(tree)}
    assert kinds["zero3/checkpoint-2000"] == "deepspeed-zero3"
    assert kinds["fsdp/checkpoint-2000"] == "dcp"
    assert kinds["bloated-bins"] == "torch-sharded"


def test_several_checkpoints_are_never_guessed_between(tree: Path) -> None:
    with pytest.raises(AmbiguousError) as caught:
        shardyard.open(tree)
    assert "tied-model" in caught.value.candidates


def test_a_path_that_is_not_there_is_an_error_of_the_one_tree(tmp_path: Path) -> None:
    with pytest.raises(shardyard.ShardyardError):
        shardyard.open(tmp_path / "nowhere")


def test_a_merge_reports_progress_and_returns_the_result(tree: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    result = shardyard.merge(
        tree / "fsdp" / "checkpoint-2000", out=tmp_path / "out", dtype="bfloat16", progress=lambda p: seen.append(p.done)
    )
    assert result["complete"] is True
    assert seen and seen[-1] > 0
    with shardyard.open(tmp_path / "out") as merged:
        assert merged["model.norm.weight"].read().tobytes() == demo.DemoModel().bfloat16["model.norm.weight"]


def test_a_cancelled_merge_leaves_nothing_under_its_name(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        shardyard.merge(tree / "zero3" / "checkpoint-2000", out=tmp_path / "out", cancelled=lambda: True)
    assert not (tmp_path / "out").exists()


def test_an_option_that_does_not_exist_is_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dtyp"):
        shardyard.merge(tree / "tied-model", out=tmp_path / "out", dtyp="bfloat16")


def test_an_export_opens_as_a_model_folder(tree: Path, tmp_path: Path) -> None:
    result = shardyard.export(tree / "zero2" / "checkpoint-500", out=tmp_path / "out")
    assert result["config_dtype"] == "bfloat16"
    assert (tmp_path / "out" / "config.json").read_bytes() == (tree / "zero2" / "checkpoint-500" / "config.json").read_bytes()
