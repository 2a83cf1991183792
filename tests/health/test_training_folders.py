"""Training checkpoints: what the verdict says of them, and of the damage that runs and copies do to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import Storage, tensor, write_torch
from support.checkpoints import fixture_root
from support.reports import codes, finding, looked_at, only


def copy(case: str, target: Path) -> Path:
    """A fixture's checkpoint to damage, without the answers that lie beside it."""
    ignore = shutil.ignore_patterns("expected*")
    return Path(shutil.copytree(fixture_root() / case, target / Path(case).name, ignore=ignore))


@pytest.mark.parametrize("damage", ["last kilobyte", "half"])
def test_a_cut_rank_file_is_named(tmp_path: Path, damage: str) -> None:
    folder = copy("deepspeed/z2_w2_bf16", tmp_path)
    file = next(folder.rglob("*rank_1*optim_states.pt"))
    data = file.read_bytes()
    file.write_bytes(data[:-1024] if damage == "last kilobyte" else data[: len(data) // 2])
    report = only(folder)
    found = finding(report, "truncated")
    assert file.name in found["message"] and "cut short" in found["message"] and not report["complete"]


def test_a_zero_filled_middle_is_found_by_checksum(tmp_path: Path) -> None:
    folder = copy("deepspeed/z2_w2_llama", tmp_path)
    file = next(folder.rglob("*rank_1*optim_states.pt"))
    data = bytearray(file.read_bytes())
    third = len(data) // 3
    data[third : third + 4096] = bytes(4096)
    file.write_bytes(data)
    messages = [f["message"] for f in only(folder, deep=True)["findings"] if f["severity"] == "error"]
    assert any(file.name in m for m in messages)


def test_ranks_of_another_world_size_are_named_as_stale() -> None:
    found = finding(looked_at(fixture_root() / "deepspeed/broken_stale_rank")[0], "stale-file")
    assert "zero_pp_rank_2_mp_rank_00_optim_states.pt" in found["message"] and found["severity"] == "error"


def test_frozen_weights_that_no_rank_stored_are_listed_and_refused() -> None:
    report = looked_at(fixture_root() / "deepspeed/old_0_5_10_z3")[0]
    assert finding(report, "missing-tensor")["tensors"] == ["head.weight"]
    assert not report["complete"] and not report["mergeable"]


def test_moments_are_counted_and_said_not_to_be_merged() -> None:
    report = looked_at(fixture_root() / "deepspeed/z2_w2_bf16")[0]
    found = finding(report, "optimizer-state")
    assert found["bytes"] == report["bytes"]["optimizer"] > report["bytes"]["masters"] > 0
    assert "a merge neither reads nor writes it" in found["message"]


def test_the_parent_of_a_distributed_checkpoint_is_the_checkpoint() -> None:
    report = only(fixture_root() / "dcp/acc_fsdp1_tiny_w2/checkpoint-2000")
    assert report["kind"] == "dcp" and report["complete"] and report["bytes"]["optimizer"] > 0


def test_flat_local_shards_are_explained_and_never_guessed() -> None:
    report = only(fixture_root() / "dcp/acc_fsdp1_local_w2/checkpoint-7")
    assert report["kind"] == "fsdp-local" and not report["mergeable"]
    assert "flat local shards" in finding(report, "unknown-layout")["message"]


def test_files_of_an_overwritten_save_are_stale() -> None:
    found = finding(only(fixture_root() / "dcp/dcp_async_overwritten/ckpt"), "stale-file")
    assert found["severity"] == "warning" and "4 files" in found["message"]


def test_rank_files_are_told_apart_from_a_distributed_checkpoint() -> None:
    report = only(fixture_root() / "dcp/verl_fsdp2_hsdp/global_step_2/actor")
    assert report["kind"] == "fsdp-ranks" and report["world_size"] == 4 and report["mergeable"]


def test_plain_tensors_of_a_single_rank_are_a_whole_model(tmp_path: Path) -> None:
    values = Storage(BY_NAME["float32"], np.ones(16, "float32").tobytes())
    state = Dict()
    state.pairs.append(("model.embed_tokens.weight", tensor(values, (4, 4))))
    write_torch(tmp_path / "model_world_size_1_rank_0.pt", state)
    report = only(tmp_path)
    assert report["kind"] == "fsdp-ranks" and report["world_size"] == 1 and report["complete"] and report["mergeable"]


def test_names_are_trusted_over_a_json_that_contradicts_them(tmp_path: Path) -> None:
    folder = copy("dcp/verl_fsdp2_1d_w3", tmp_path) / "global_step_2" / "actor"
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 8}))
    report = only(folder)
    assert report["world_size"] == 3 and report["complete"] and codes(report, serious=True)
    (folder / "fsdp_config.json").unlink()
    assert codes(only(folder), serious=True) == set()


def test_unmerged_adapters_in_rank_files_are_told() -> None:
    assert "lora-unmerged" in codes(only(fixture_root() / "dcp/verl_fsdp2_lora_w2/global_step_2/actor"))


def test_a_folder_of_configuration_alone_says_where_the_weights_are() -> None:
    report = only(fixture_root() / "dcp/verl_fsdp1_w2/global_step_2/actor/huggingface")
    found = finding(report, "config-only")
    assert "The weights are one level up, in actor" in found["message"] and not report["complete"]


def test_the_verdict_explains_the_gathered_copy_and_the_masters() -> None:
    reports = {r["path"]: r for r in looked_at(fixture_root() / "deepspeed/trainer_z3_llama/checkpoint-2")}
    gathered = reports["model.safetensors"]["verdict"]
    assert "gathered copy of the model, whole, in bfloat16" in gathered and "float32 masters" in gathered
    assert "global_step2" in gathered and "float32 masters" in reports["."]["verdict"]


def test_masters_are_promised_only_where_a_step_has_files_of_them() -> None:
    reports = {r["path"]: r for r in looked_at(fixture_root() / "files/a4_mixed_tree/run1/checkpoint-20")}
    verdict = reports["model.safetensors"]["verdict"]
    assert verdict.endswith("A training step lies beside it, in global_step20.") and "masters" not in verdict


def test_a_part_of_a_checkpoint_is_taken_for_the_whole() -> None:
    folder = fixture_root() / "deepspeed/universal_z2/global_step3_universal/zero"
    assert only(folder)["kind"] == "deepspeed-universal"
