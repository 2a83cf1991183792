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
    assert (checkpoint.kind, checkpoint.world_size, checkpoint.findings) == (CheckpointKind.HF_DCP, 3, [])
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
    for shard in (1, 2):
        write(tmp_path, shard, {"w": ((0, 0), WEIGHT)})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.complete
    assert len(checkpoint.tensors["w"].replicas) == 1


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
