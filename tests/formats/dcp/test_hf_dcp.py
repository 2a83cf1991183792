"""Shards of the Hugging Face storage writer: what is missing, what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Blocks, Finding
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.dcp import hugging_face as hf_dcp
from shardyard.formats.folder import Folder
from shardyard.health import verdict
from support.truth import contents

WEIGHT = np.arange(6 * 4, dtype=np.float32).reshape(6, 4)
NORM = np.arange(4, dtype=np.float16)
Parts = dict[str, tuple[tuple[int, ...], Any]]


def write(folder: Path, shard: int, parts: Parts, *, said: bool = True) -> Path:
    """One shard of parts, each with its offsets."""
    folder.mkdir(exist_ok=True)
    info = {name: {"saved_offsets": list(offsets)} for name, (offsets, _) in parts.items()}
    metadata = {"DCP_VERSION": "1.0", "format": "pt"} | ({"DCP_SHARDING_INFO": json.dumps(info)} if said else {})
    path = folder / f"shard-{shard:05}-model-00001-of-00001.safetensors"
    save_file({name: np.ascontiguousarray(array) for name, (_, array) in parts.items()}, path, metadata)
    return path


def save(folder: Path) -> Path:
    """Three shards, two rows each; the norm lies whole in the first."""
    write(folder, 1, {"w": ((0, 0), WEIGHT[:2]), "norm": ((0,), NORM)})
    write(folder, 2, {"w": ((2, 0), WEIGHT[2:4])})
    write(folder, 3, {"w": ((4, 0), WEIGHT[4:])})
    return folder


def open_folder(*folders: Path) -> Checkpoint:
    listing = Folder(*folders)
    (candidate,) = hf_dcp.FORMAT.recognise(listing, dict.fromkeys(listing.entries))
    return candidate.open()


def find(checkpoint: Checkpoint, code: str) -> Finding:
    (finding,) = (f for f in checkpoint.findings if f.code == code)
    return finding


def values(checkpoint: Checkpoint, name: str) -> bytes:
    return contents(checkpoint.tensors[name], OpenOptions().handles).data


def test_parts_become_whole_tensors(tmp_path: Path) -> None:
    checkpoint = open_folder(save(tmp_path))
    assert (checkpoint.kind, checkpoint.world_size) == (CheckpointKind.HF_DCP, 3)
    assert [(f.code, f.sure, f.blocks) for f in checkpoint.findings] == [("unknown-extent", False, Blocks.NOTHING)]
    assert values(checkpoint, "w") == WEIGHT.tobytes()
    assert values(checkpoint, "norm") == NORM.tobytes()
    # How many ranks there were is written nowhere: it is not said to be checked.
    assert "ranks" not in checkpoint.checked


def test_a_missing_shard_in_the_middle_is_refused(tmp_path: Path) -> None:
    (save(tmp_path) / "shard-00002-model-00001-of-00001.safetensors").unlink()
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-shard").blocks is Blocks.MERGE
    assert find(checkpoint, "missing-tensor").tensors == ("w",)
    assert values(checkpoint, "norm") == NORM.tobytes()


def test_a_gap_that_takes_nothing_visible_away_is_only_merged_on_request(tmp_path: Path) -> None:
    write(tmp_path, 1, {"w": ((0, 0), WEIGHT[:3])})
    write(tmp_path, 3, {"w": ((3, 0), WEIGHT[3:])})
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-shard").blocks is Blocks.UNLESS_ALLOWED
    assert values(checkpoint, "w") == WEIGHT.tobytes()


def test_parts_that_overlap_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, {"w": ((0, 0), WEIGHT[:4])})
    write(tmp_path, 2, {"w": ((2, 0), WEIGHT[2:])})
    assert "same elements" in find(open_folder(tmp_path), "corrupt").message


def test_equal_parts_are_copies(tmp_path: Path) -> None:
    write(tmp_path, 1, {"w": ((0, 0), WEIGHT)})
    write(tmp_path, 2, {"w": ((0, 0), WEIGHT), "norm": ((0,), NORM)})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.complete
    assert len(checkpoint.tensors["w"].replicas) == 1


def test_a_shard_that_adds_nothing_may_be_anothers_copy(tmp_path: Path) -> None:
    first = save(tmp_path) / "shard-00001-model-00001-of-00001.safetensors"
    (tmp_path / "shard-00003-model-00001-of-00001.safetensors").write_bytes(first.read_bytes())
    found = find(open_folder(tmp_path), "duplicate-copy")
    assert found.blocks is Blocks.UNLESS_ALLOWED and "shard-00003" in found.message and "shard-00001" in found.message


LLAMA = {
    "model.embed_tokens.weight": (30, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.up_proj.weight": (20, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 20),
    "model.norm.weight": (8,),
}
OTHER = {"net.wte.weight": (30, 8), "net.mix.weight": (20, 8)}


def save_cut(folder: Path, model: dict[str, tuple[int, ...]], ranks: int, words: int | None = None) -> Path:
    """A model cut among ranks by rows, as FSDP does, and its config.json."""
    whole = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in model.items()}
    for rank in range(ranks):
        rows = {name: -(-array.shape[0] // ranks) for name, array in whole.items()}
        here = {name: array[rank * rows[name] : (rank + 1) * rows[name]] for name, array in whole.items()}
        at = {name: (rank * rows[name], *[0] * (array.ndim - 1)) for name, array in whole.items()}
        write(folder, rank + 1, {name: (at[name], array) for name, array in here.items() if len(array)})
    if words is not None:
        (folder / "config.json").write_text(json.dumps({"vocab_size": words}))
    return folder


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize(("model", "words"), [(LLAMA, None), (LLAMA, 30), (OTHER, 30)])
def test_without_the_last_ranks_shards_nothing_is_merged(
    tmp_path: Path, model: dict[str, tuple[int, ...]], words: int | None, lost: int
) -> None:
    save_cut(tmp_path, model, 4, words)
    for rank in range(4, 4 - lost, -1):
        (tmp_path / f"shard-{rank:05}-model-00001-of-00001.safetensors").unlink()
    checkpoint = open_folder(tmp_path)
    found = find(checkpoint, "missing-shard")
    assert found.blocks is Blocks.MERGE and f"more ranks than {4 - lost} wrote" in found.message
    assert all(checkpoint.tensors[name].shape[0] < model[name][0] for name in found.tensors)


@pytest.mark.parametrize(("words", "known"), [(30, True), (29, False), (None, False)])
def test_the_number_of_words_proves_that_all_ranks_shards_are_here(tmp_path: Path, words: int | None, known: bool) -> None:
    checkpoint = open_folder(save_cut(tmp_path, LLAMA, 4, words))
    assert checkpoint.complete
    assert [f.code for f in checkpoint.findings] == ([] if known else ["unknown-extent"])
    assert ("ranks" in checkpoint.checked) == known
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == LLAMA


def test_a_head_without_the_padding_of_the_embedding_is_whole(tmp_path: Path) -> None:
    model = {**LLAMA, "model.embed_tokens.weight": (32, 8), "lm_head.weight": (30, 8)}
    assert open_folder(save_cut(tmp_path, model, 4, 32)).findings == []


def test_where_no_name_is_known_it_is_said_that_the_end_is_not(tmp_path: Path) -> None:
    save_cut(tmp_path, {"net.mix.weight": (20, 8)}, 4)
    (tmp_path / "shard-00004-model-00001-of-00001.safetensors").unlink()
    checkpoint = open_folder(tmp_path)
    assert [f.code for f in checkpoint.findings] == ["unknown-extent"]
    assert verdict(checkpoint).startswith("As far as its files tell, the whole model in float32: 1 tensor")


def write_two_files(folder: Path) -> Path:
    """Three ranks, two output files: `w` and its norm in the first, `v` in the second."""
    tall = np.arange(12 * 4, dtype=np.float32).reshape(12, 4)
    for rank in range(3):
        for number, name in ((1, "w"), (2, "v")):
            path = write(folder, rank + 1, {name: ((4 * rank, 0), tall[4 * rank : 4 * rank + 4])})
            path.rename(folder / path.name.replace("00001-of-00001", f"0000{number}-of-00002"))
    return folder


def test_a_rank_that_has_only_some_of_its_files_is_missed(tmp_path: Path) -> None:
    assert open_folder(write_two_files(tmp_path)).complete
    (tmp_path / "shard-00003-model-00002-of-00002.safetensors").unlink()
    found = find(open_folder(tmp_path), "missing-shard")
    assert found.blocks is Blocks.MERGE and found.tensors == ("v",) and "Shard 3 has no file numbered 2" in found.message


def test_an_output_file_of_which_no_rank_has_a_part_is_missed(tmp_path: Path) -> None:
    for path in write_two_files(tmp_path).glob("*-00001-of-*"):
        path.unlink()
    found = find(open_folder(tmp_path), "missing-shard")
    assert found.blocks is Blocks.UNLESS_ALLOWED and "No rank's file numbered 1 of 2 is here" in found.message


def test_shards_of_two_saves_are_refused(tmp_path: Path) -> None:
    write_two_files(tmp_path)
    write(tmp_path, 4, {"norm": ((0,), NORM)})
    assert find(open_folder(tmp_path), "stale-file").blocks is Blocks.MERGE


def test_a_shard_of_an_absurd_number_takes_no_memory(tmp_path: Path) -> None:
    path = save(tmp_path) / "shard-00003-model-00001-of-00001.safetensors"
    path.rename(tmp_path / "shard-999999999-model-00001-of-00001.safetensors")
    assert "(and 999,999,995 more) is missing" in find(open_folder(tmp_path), "missing-shard").message


def test_a_shard_under_another_files_number_is_refused(tmp_path: Path) -> None:
    other = write_two_files(tmp_path) / "shard-00001-model-00001-of-00002.safetensors"
    (tmp_path / "shard-00003-model-00002-of-00002.safetensors").write_bytes(other.read_bytes())
    assert find(open_folder(tmp_path), "renamed-file").blocks is Blocks.MERGE


def test_a_shard_that_does_not_say_where_its_parts_belong_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, {"w": ((0, 0), WEIGHT[:3])})
    write(tmp_path, 2, {"w": ((3, 0), WEIGHT[3:])}, said=False)
    checkpoint = open_folder(tmp_path)
    assert not checkpoint.complete
    assert any(f.blocks is Blocks.MERGE and "DCP_SHARDING_INFO" in f.message for f in checkpoint.findings)


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file"])
def test_a_damaged_shard_is_a_finding(tmp_path: Path, damage: bytes) -> None:
    path = save(tmp_path) / "shard-00003-model-00001-of-00001.safetensors"
    path.write_bytes(damage)
    checkpoint = open_folder(tmp_path)
    # The shapes of its tensors are not known any more.
    assert any(path.name in f.paths and f.blocks is Blocks.MERGE for f in checkpoint.findings)


def test_shards_on_two_disks_are_one_checkpoint(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a"), tmp_path / "b"
    second.mkdir()
    name = "shard-00002-model-00001-of-00001.safetensors"
    (first / name).rename(second / name)
    assert values(open_folder(first, second), "w") == WEIGHT.tobytes()
