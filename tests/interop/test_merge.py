"""What DeepSpeed and accelerate save, merged by us, equals what the live run and their own converters say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import shardyard

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (the interop extra)")
pytest.importorskip("accelerate", reason="accelerate is not installed (the interop extra)")
pytest.importorskip("transformers", reason="transformers is not installed (the interop extra)")

from interop import runs  # noqa: E402

pytestmark = pytest.mark.interop

ZERO_RUNS = [(1, "float32", "qwen2"), (2, "bfloat16", "gpt2"), (3, "bfloat16", "llama-tied"), (3, "float32", "t5")]


def merged(source: Path, out: Path, *options: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    done = shardyard("merge", source, "-o", out, "--tied", "both", *options)
    assert done.returncode == 0, done.stderr
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize(("stage", "dtype", "model"), ZERO_RUNS)
def test_a_zero_merge_equals_the_live_engine_and_its_own_converter(stage: int, dtype: str, model: str, tmp_path: Path) -> None:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    folder = runs.deepspeed(stage, dtype, model)
    ours = merged(folder, tmp_path / "out")
    live = torch.load(folder / "live.pt")
    converted = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    assert live.keys() <= ours.keys()
    assert all(torch.equal(ours[name], value) for name, value in live.items())
    assert all(torch.equal(ours[name], value) for name, value in converted.items())


@pytest.mark.parametrize(("stage", "dtype", "model"), ZERO_RUNS)
def test_consolidating_the_live_engine_equals_the_merge(stage: int, dtype: str, model: str, tmp_path: Path) -> None:
    folder = runs.deepspeed(stage, dtype, model)
    ours = merged(folder, tmp_path / "out")
    gathered = torch.load(folder / "consolidated.pt")
    assert gathered.keys() == ours.keys()
    assert all(torch.equal(ours[name], value) for name, value in gathered.items())


@pytest.mark.parametrize(("stage", "dtype", "model"), ZERO_RUNS)
def test_consolidating_straight_to_a_folder_stores_ties_once_and_casts(stage: int, dtype: str, model: str) -> None:
    from safetensors.torch import load_file

    folder = runs.deepspeed(stage, dtype, model)
    gathered = torch.load(folder / "consolidated.pt")
    streamed = load_file(folder / "streamed" / "model.safetensors")
    shared = {value.data_ptr() for value in gathered.values()}
    assert len(streamed) == len(shared)
    assert all(torch.equal(value, gathered[name].to(torch.bfloat16)) for name, value in streamed.items())


@pytest.mark.parametrize(("version", "model"), [(2, "llama-tied"), (1, "gpt2")])
def test_an_fsdp_merge_equals_the_full_state_dict_and_accelerates_own(version: int, model: str, tmp_path: Path) -> None:
    from accelerate.utils import merge_fsdp_weights
    from safetensors.torch import load_file

    folder = runs.fsdp(version, model)
    ours = merged(folder / "checkpoint-2", tmp_path / "out")
    live = torch.load(folder / "live.pt")
    assert ours.keys() == live.keys()
    assert all(torch.equal(ours[name], value) for name, value in live.items())
    merge_fsdp_weights(str(folder / "checkpoint-2" / "pytorch_model_fsdp_0"), str(tmp_path / "theirs"))
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.parametrize(("version", "model"), [(2, "llama-tied"), (1, "gpt2")])
def test_consolidating_a_live_fsdp_model_equals_the_merge(version: int, model: str, tmp_path: Path) -> None:
    folder = runs.fsdp(version, model)
    ours = merged(folder / "checkpoint-2", tmp_path / "out")
    gathered = torch.load(folder / "consolidated.pt")
    assert gathered.keys() == ours.keys()
    assert all(torch.equal(ours[name], value) for name, value in gathered.items())


@pytest.mark.parametrize("output", ["folder", "model.bin"])
def test_torch_outputs_open_with_weights_only_and_mmap(output: str, tmp_path: Path) -> None:
    folder = runs.deepspeed(2, "bfloat16", "gpt2")
    out = tmp_path / output
    done = shardyard("merge", folder, "-o", out, "--format", "torch")
    assert done.returncode == 0, done.stderr
    state = torch.load(out if out.is_file() else out / "pytorch_model.bin", weights_only=True, mmap=True)
    live = torch.load(folder / "live.pt")
    assert all(torch.equal(state[name], value) for name, value in live.items())
    assert state["lm_head.weight"].data_ptr() == state["transformer.wte.weight"].data_ptr()


def test_the_zero_to_fp32_drop_in_gives_what_the_script_gives(tmp_path: Path) -> None:
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    folder = runs.deepspeed(3, "float32", "t5")
    done = shardyard("compat", "zero_to_fp32", folder, tmp_path / "ours", "--max_shard_size", "20KB")
    assert done.returncode == 0, done.stderr
    convert_zero_checkpoint_to_fp32_state_dict(str(folder), str(tmp_path / "theirs"), max_shard_size="20KB")
    ours, theirs = _all_torch(tmp_path / "ours"), _all_torch(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert (tmp_path / "ours" / "pytorch_model.bin.index.json").is_file()


def test_the_merge_weights_drop_in_keeps_the_source_and_says_how_to_delete_it(tmp_path: Path) -> None:
    folder = runs.fsdp(2, "llama-tied") / "checkpoint-2"
    done = shardyard("compat", "merge-weights", folder / "pytorch_model_fsdp_0", tmp_path / "out", "--remove_checkpoint_dir")
    assert done.returncode == 0, done.stderr
    assert (folder / "pytorch_model_fsdp_0" / ".metadata").is_file()
    assert "rm -r" in done.stderr
    assert (tmp_path / "out" / "model.safetensors").is_file()


def _all_torch(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.bin")):
        found.update(torch.load(path, weights_only=True))
    return found
