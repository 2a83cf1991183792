"""Which checkpoint a path means: never a guess, one level too high or too low found and said."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shardyard import discover
from shardyard.checkpoint import CheckpointKind
from shardyard.discover import find, open_checkpoint
from shardyard.dtypes import BY_NAME
from shardyard.errors import AmbiguousError, UsageError
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import Storage, tensor, write_torch
from shardyard.operations.inspect import text
from shardyard.operations.inspect.report import report
from support.checkpoints import fixture_root
from support.model_files import llama, write_config, write_safetensors, write_sharded
from support.reports import finding, looked_at, only

K = CheckpointKind


def small(path: Path) -> None:
    write_safetensors(path, {"w": np.ones(4, "float32")})


def notes(path: Path) -> list[str]:
    return [f.message for f in open_checkpoint(path).findings if f.code == "other-level"]


def test_a_folder_means_the_model_in_it(tmp_path: Path) -> None:
    small(tmp_path / "model.safetensors")
    assert find(tmp_path).path == tmp_path and notes(tmp_path) == []


def test_a_file_means_itself_or_the_set_it_is_of(tmp_path: Path) -> None:
    write_sharded(tmp_path, [llama(), {"extra.weight": np.ones(2, "float32")}])
    small(tmp_path / "other.safetensors")
    assert find(tmp_path / "model-00001-of-00002.safetensors").kind is K.SAFETENSORS_SHARDED
    assert find(tmp_path / "model.safetensors.index.json").kind is K.SAFETENSORS_SHARDED
    assert find(tmp_path / "other.safetensors").path == tmp_path / "other.safetensors"


def test_the_step_with_the_masters_goes_before_the_gathered_copy() -> None:
    folder = fixture_root() / "deepspeed" / "trainer_z2_gpt2" / "checkpoint-2"
    assert find(folder).kind.value.startswith("deepspeed")
    assert find(folder / "model.safetensors").kind is K.SAFETENSORS


def test_one_level_too_high_is_found_and_said(tmp_path: Path) -> None:
    small(tmp_path / "out" / "final" / "model.safetensors")
    assert find(tmp_path).path == tmp_path / "out" / "final"
    assert "out/final" in notes(tmp_path)[0]


def test_one_level_too_low_is_found_and_said() -> None:
    inside = fixture_root() / "deepspeed" / "universal_z2" / "global_step3_universal" / "zero"
    assert find(inside).kind is K.UNIVERSAL and "is part of" in notes(inside)[0]


def test_several_checkpoints_are_listed_and_none_is_taken(tmp_path: Path) -> None:
    for step in (10, 20):
        small(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    with pytest.raises(AmbiguousError) as caught:
        find(tmp_path)
    assert caught.value.candidates == ("checkpoint-10", "checkpoint-20")


def test_several_single_files_are_listed(tmp_path: Path) -> None:
    small(tmp_path / "actor.safetensors")
    small(tmp_path / "critic.safetensors")
    with pytest.raises(AmbiguousError, match=r"actor\.safetensors, critic\.safetensors"):
        find(tmp_path)


def test_no_path_and_no_checkpoint_are_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no .*nowhere"):
        find(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="There is no checkpoint in"):
        find(tmp_path)


def test_a_configuration_without_weights_points_up(tmp_path: Path) -> None:
    small(tmp_path / "actor" / "model.safetensors")
    write_config(tmp_path / "actor" / "huggingface")
    with pytest.raises(UsageError, match="one level up, in actor"):
        find(tmp_path / "actor" / "huggingface")


def test_folders_of_several_nodes_are_one_checkpoint(tmp_path: Path) -> None:
    write_sharded(tmp_path / "a", [{"x": np.ones(3, "float32")}, {"y": np.ones(5, "float32")}])
    (tmp_path / "b").mkdir()
    second = "model-00002-of-00002.safetensors"
    (tmp_path / "a" / second).rename(tmp_path / "b" / second)
    assert not open_checkpoint(tmp_path / "a").complete
    checkpoint = open_checkpoint([tmp_path / "a", tmp_path / "b"])
    assert checkpoint.complete and checkpoint.tensors["y"].files == (str(tmp_path / "b" / second),)


def test_a_file_among_several_paths_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="only if all of them are folders"):
        find([tmp_path, tmp_path / "a.safetensors"])


def test_a_heap_of_unrelated_files_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "firmware.bin").write_bytes(os.urandom(4096))
    (tmp_path / "notes.pt").write_text("Portuguese words\n" * 10)
    (tmp_path / "photo.bin").write_bytes(b"\x89PNG\r\n" + bytes(100))
    assert looked_at(tmp_path) == []


def test_the_runs_own_state_belongs_to_the_model_beside_it(tmp_path: Path) -> None:
    case = fixture_root() / "files" / "a3_hf_trainer_checkpoint-12"
    names = {f["path"]: f["role"] for f in next(r for r in looked_at(case) if r["path"] == ".")["files"]}
    assert names["optimizer.pt"] == "masters+optimizer" and names["rng_state.pth"] == "other"


def test_the_mixed_tree_has_what_it_has() -> None:
    paths = {r["path"] for r in looked_at(fixture_root() / "files" / "a4_mixed_tree")}
    assert {".hidden", "run1/checkpoint-10", "run1/checkpoint-20"} <= paths


def test_each_component_of_a_pipeline_is_a_checkpoint() -> None:
    assert [r["path"] for r in looked_at(fixture_root() / "files" / "a4_diffusers")] == ["unet"]


def test_links_are_followed_once_and_never_upwards(tmp_path: Path) -> None:
    root = tmp_path / "root"
    small(root / "real" / "model.safetensors")
    small(tmp_path / "outside" / "model.safetensors")
    for name, target in (("again", "real"), ("loop", "."), ("up", ".."), ("elsewhere", str(tmp_path / "outside"))):
        (root / name).symlink_to(target)
    assert [c.path.name for c in discover.scan(root)] == ["real", "elsewhere"]


def test_the_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / "abc"
    write_sharded(snapshot, [{"x": np.ones(3, "float32")}, {"y": np.ones(5, "float32")}])
    (repo / "blobs").mkdir()
    for i, file in enumerate(sorted(snapshot.iterdir())):
        blob = repo / "blobs" / f"sha{i}"
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, snapshot))
    report = only(snapshot)
    assert report["complete"] and report["findings"] == []


def test_an_index_never_leads_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    small(secret)
    folder = tmp_path / "model"
    write_sharded(folder, [{"x": np.ones(3, "float32")}])
    shard = folder / "model-00001-of-00001.safetensors"
    shard.unlink()
    shard.symlink_to(secret)
    report = only(folder)
    assert not report["complete"] and "it was not followed" in report["findings"][0]["message"]


def test_a_tree_of_500_checkpoints_and_10000_files_is_scanned_in_bounds(tmp_path: Path) -> None:
    blank = (tmp_path / "x.safetensors", {"w": np.ones(1, "float32")})
    write_safetensors(*blank)
    content = blank[0].read_bytes()
    blank[0].unlink()
    for i in range(500):
        folder = tmp_path / f"run{i // 20}" / f"checkpoint-{i}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(content)
        for j in range(19):
            (folder / f"log{j}.txt").touch()
    tracemalloc.start()
    start = time.process_time()
    found = list(discover.scan(tmp_path))
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 500 and peak < 100 << 20 and seconds < 12  # tracing makes it about four times slower


def test_a_scan_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    for i in range(20):
        small(tmp_path / f"c{i:02d}" / "model.safetensors")
    scan = discover.scan(tmp_path, cancelled=iter([False, False, False, False, True]).__next__)
    assert [c.path.name for c in scan] == ["c00", "c01", "c02"]


def test_a_listing_that_fails_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "gone")
    assert "cannot be listed" in discover.look(folder).problems[0]


def test_checkpoints_that_are_dropped_keep_no_descriptors(tmp_path: Path) -> None:
    write_sharded(tmp_path, [{"x": np.ones(3, "float32")}, {"y": np.ones(5, "float32")}])
    open_checkpoint(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        open_checkpoint(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before


def pieces(folder: Path, names: list[str]) -> None:
    """Files that each hold a part of every weight, and do not say so."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        weights, outer = Dict(), Dict()
        weights.pairs.append(("w", tensor(Storage(BY_NAME["float32"], bytes(32)), (4, 2))))
        outer.pairs.append(("model", weights))
        write_torch(folder / name, outer if "mp_rank" in name else weights)


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ([f"consolidated.{i:02d}.pth" for i in range(4)], "consolidated.02.pth"),
        ([f"mp_rank_{i:02d}/model_optim_rng.pt" for i in range(4)], "mp_rank_02/model_optim_rng.pt"),
        ([f"mp_rank_{i:02d}/model_optim_rng.pt" for i in range(4)], "mp_rank_02"),
    ],
)
def test_a_piece_of_a_tensor_parallel_set_never_passes_for_a_model(tmp_path: Path, names: list[str], given: str) -> None:
    pieces(tmp_path, names)
    whole, piece = only(tmp_path), only(tmp_path / given)
    assert whole["kind"] == piece["kind"] == "tensor-parallel" and not whole["mergeable"] and not piece["mergeable"]
    assert whole["verdict"].startswith("A set of 4 pieces") and piece["verdict"].startswith("Only a piece of a model.")
    assert "is piece 3 of 4" in finding(piece, "piece")["message"] and not piece["complete"]
    assert not find(tmp_path / given).open().mergeable


def test_the_step_is_told_by_the_folders_name(tmp_path: Path) -> None:
    small(tmp_path / "checkpoint-1200" / "model.safetensors")
    assert only(tmp_path)["step"] == 1200


def test_unfinished_outputs_are_told_and_not_taken_for_checkpoints(tmp_path: Path) -> None:
    small(tmp_path / "out.shardyard-partial" / "model.safetensors")
    found = report(tmp_path)
    assert found["checkpoints"] == [] and "was not finished" in found["problems"][0]
    assert any("was not finished" in line for line in text.describe(found))


def test_blobs_of_the_hubs_cache_are_seen_through_their_snapshots_alone(tmp_path: Path) -> None:
    pieces(tmp_path / "blobs", ["0123abcd"])
    (tmp_path / "snapshots" / "rev").mkdir(parents=True)
    (tmp_path / "snapshots" / "rev" / "pytorch_model.bin").symlink_to("../../blobs/0123abcd")
    assert [c.path for c in discover.scan(tmp_path)] == [tmp_path / "snapshots" / "rev"]
