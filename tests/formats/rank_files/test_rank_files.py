"""One torch file a rank: what is there, what is missing, what contradicts itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardyard.checkpoint import Checkpoint
from shardyard.errors import Cancelled
from shardyard.findings import Blocks, Finding
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.rank_files import opening as rank_files
from support.rank_writer import (
    attributes,
    coordinates,
    dtensor,
    mesh,
    partial,
    plain,
    replicate,
    shard,
    sharded_tensor,
    verl,
    write_rank,
)
from support.truth import contents

WEIGHT = np.arange(7 * 5, dtype=np.float32).reshape(7, 5)
STEPS = np.array([3, 4], dtype=np.int64)


def row_sharded(rank: int, world: int, array: Any = WEIGHT) -> Any:
    per = -(-len(array) // world)
    return dtensor(array[rank * per : (rank + 1) * per], array.shape, mesh((world,), (rank,)), [shard(0)])


def save(folder: Path, world: int = 3, **more: Any) -> Path:
    for rank in range(world):
        write_rank(verl(folder, rank, world), {"w": row_sharded(rank, world), "steps": plain(STEPS), **more})
    return folder


def candidates(*folders: Path) -> list[Candidate]:
    listing = Folder(*folders)
    return list(rank_files.FORMAT.recognise(listing, dict.fromkeys(listing.entries)))


def open_folder(*folders: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = candidates(*folders)
    return candidate.open(options)


def find(checkpoint: Checkpoint, code: str) -> Finding:
    (finding,) = (f for f in checkpoint.findings if f.code == code)
    return finding


def values(checkpoint: Checkpoint, name: str = "w") -> bytes:
    return contents(checkpoint.tensors[name], OpenOptions().handles).data


def test_a_whole_folder(tmp_path: Path) -> None:
    checkpoint = open_folder(save(tmp_path))
    assert checkpoint.mergeable
    assert checkpoint.findings == []
    assert checkpoint.world_size == 3
    assert values(checkpoint) == WEIGHT.tobytes()
    # A plain tensor is one value, and the other ranks' are copies to be checked.
    assert values(checkpoint, "steps") == STEPS.tobytes()
    assert len(checkpoint.tensors["steps"].replicas) == 2


def test_a_missing_rank_takes_only_what_it_held(tmp_path: Path) -> None:
    save(tmp_path)
    verl(tmp_path, 1, 3).unlink()
    checkpoint = open_folder(tmp_path)
    finding = find(checkpoint, "missing-rank")
    assert finding.paths == ("model_world_size_3_rank_1.pt",)
    assert finding.blocks is Blocks.UNLESS_ALLOWED
    assert checkpoint.tensors["w"].layout is None
    assert values(checkpoint, "steps") == STEPS.tobytes()
    assert not checkpoint.complete


def test_a_missing_last_rank_is_seen_by_the_names(tmp_path: Path) -> None:
    save(tmp_path)
    verl(tmp_path, 2, 3).unlink()
    assert find(open_folder(tmp_path), "missing-rank").paths == ("model_world_size_3_rank_2.pt",)


def test_a_missing_last_rank_is_seen_by_the_mesh_where_names_do_not_tell(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path / f"pytorch_model_fsdp_0_rank{rank}.bin", {"w": row_sharded(rank, 3)})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.world_size == 3
    assert find(checkpoint, "missing-rank").paths == ("pytorch_model_fsdp_0_rank2.bin",)
    assert not checkpoint.complete


def test_a_missing_replica_takes_nothing_away(tmp_path: Path) -> None:
    for rank, at in enumerate(coordinates((2, 2))):
        local = WEIGHT[:4] if at[1] == 0 else WEIGHT[4:]
        share = dtensor(local, WEIGHT.shape, mesh((2, 2), at), [replicate(), shard(0)])
        write_rank(verl(tmp_path, rank, 4), {"w": share})
    for gone in (1, 2):
        verl(tmp_path, gone, 4).unlink()
    checkpoint = open_folder(tmp_path)
    assert checkpoint.complete
    assert "copies" in find(checkpoint, "missing-rank").message
    assert values(checkpoint) == WEIGHT.tobytes()


def test_a_missing_rank_may_have_held_names_of_its_own(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(verl(tmp_path, rank, 3), {f"layers.{rank}.w": plain(WEIGHT)})
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-rank").blocks is Blocks.UNLESS_ALLOWED
    assert values(checkpoint, "layers.1.w") == WEIGHT.tobytes()


def test_one_rank_and_plain_tensors(tmp_path: Path) -> None:
    write_rank(verl(tmp_path, 0, 1), {"w": plain(WEIGHT)})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert values(checkpoint) == WEIGHT.tobytes()


def test_partial_sums_are_refused_by_name(tmp_path: Path) -> None:
    for rank in range(2):
        share = dtensor(WEIGHT, WEIGHT.shape, mesh((2,), (rank,)), [partial()])
        write_rank(verl(tmp_path, rank, 2), {"w": share, "v": row_sharded(rank, 2)})
    checkpoint = open_folder(tmp_path)
    finding = find(checkpoint, "unknown-layout")
    assert finding.tensors == ("w",)
    assert "partial sums" in finding.message
    assert finding.blocks is Blocks.UNLESS_ALLOWED
    assert values(checkpoint, "v") == WEIGHT.tobytes()


def test_a_local_tensor_that_does_not_fit_its_placements_is_refused(tmp_path: Path) -> None:
    for rank in range(2):
        share = dtensor(WEIGHT[:3], WEIGHT.shape, mesh((2,), (rank,)), [shard(0)])
        write_rank(verl(tmp_path, rank, 2), {"w": share})
    assert "[3, 5]" in find(open_folder(tmp_path), "unknown-layout").message


def test_two_files_of_one_mesh_position_leave_a_hole_that_is_seen(tmp_path: Path) -> None:
    save(tmp_path, 2)
    verl(tmp_path, 1, 2).write_bytes(verl(tmp_path, 0, 2).read_bytes())
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-tensor").tensors == ("w",)
    assert not checkpoint.complete


def test_sharded_tensors_in_blocks_several_on_one_rank(tmp_path: Path) -> None:
    everywhere = {(0, 0): (3, 5), (3, 0): (4, 2), (3, 2): (4, 3)}
    owners = {0: [(0, 0), (3, 2)], 1: [(3, 0)], 2: []}
    for rank, mine in owners.items():
        parts = {at: WEIGHT[at[0] : at[0] + everywhere[at][0], at[1] : at[1] + everywhere[at][1]].copy() for at in mine}
        write_rank(verl(tmp_path, rank, 3), {"w": sharded_tensor(WEIGHT.shape, parts, everywhere, 3)})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert values(checkpoint) == WEIGHT.tobytes()


def test_ranks_that_disagree_about_a_tensor_are_refused(tmp_path: Path) -> None:
    write_rank(verl(tmp_path, 0, 2), {"w": plain(WEIGHT)})
    write_rank(verl(tmp_path, 1, 2), {"w": plain(WEIGHT[:3])})
    finding = find(open_folder(tmp_path), "unknown-layout")
    assert "disagree" in finding.message
    assert finding.blocks is not Blocks.NOTHING


def test_names_are_followed_where_the_config_says_another_world_size(tmp_path: Path) -> None:
    (save(tmp_path) / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 8}))
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert "8" in find(checkpoint, "index-mismatch").message


def test_the_whole_set_is_read_where_two_saves_are_mixed(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 2)
    verl(tmp_path, 0, 2).unlink()
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert checkpoint.world_size == 3
    assert find(checkpoint, "stale-file").paths == ("model_world_size_2_rank_1.pt",)


def test_two_whole_sets_are_never_guessed_between(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 2)
    assert find(open_folder(tmp_path), "competing-weights").blocks is Blocks.MERGE
    (tmp_path / "fsdp_config.json").write_text('{"world_size": 2}')
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert checkpoint.world_size == 2


def test_a_truncated_file_is_a_finding(tmp_path: Path) -> None:
    save(tmp_path)
    path = verl(tmp_path, 1, 3)
    path.write_bytes(path.read_bytes()[:-40])
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "truncated").paths == (path.name,)
    assert not checkpoint.complete


def test_ranks_on_two_nodes_disks_are_one_checkpoint(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a"), tmp_path / "b"
    second.mkdir()
    verl(first, 2, 3).rename(verl(second, 2, 3))
    assert not open_folder(first).complete
    checkpoint = open_folder(first, second)
    assert checkpoint.mergeable
    assert values(checkpoint) == WEIGHT.tobytes()


@pytest.mark.parametrize("same", [True, False])
def test_one_name_on_two_disks_must_have_one_content(tmp_path: Path, same: bool) -> None:
    first, second = save(tmp_path / "a"), save(tmp_path / "b", buffer=plain(STEPS)) if not same else save(tmp_path / "b")
    checkpoint = open_folder(first, second)
    assert checkpoint.mergeable is same
    assert [f.code for f in checkpoint.findings] == ([] if same else ["duplicate-copy"] * 3)


def test_the_optimizer_is_read_only_when_it_is_looked_at(tmp_path: Path) -> None:
    save(tmp_path)
    for rank in range(3):
        moments = attributes(exp_avg=row_sharded(rank, 3), step=plain(np.float32(2).reshape(())))
        state = {"state": attributes(w=moments), "param_groups": [attributes(lr=0.1, params=["w"])]}
        write_rank(verl(tmp_path, rank, 3, "optim"), state)
    options = OpenOptions()
    checkpoint = open_folder(tmp_path, options=options)
    opened = options.handles.bytes_read
    optimizer = checkpoint.parts["optimizer"].tensors
    assert options.handles.bytes_read > opened
    assert contents(optimizer["state.w.exp_avg"], options.handles).data == WEIGHT.tobytes()
    assert optimizer["state.w.step"].shape == ()
    assert checkpoint.usage.optimizer == sum(verl(tmp_path, rank, 3, "optim").stat().st_size for rank in range(3))


def test_each_of_several_models_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    for model in range(2):
        for rank in range(2):
            write_rank(tmp_path / f"pytorch_model_fsdp_{model}_rank{rank}.bin", {"w": row_sharded(rank, 2)})
    assert [len(c.files) for c in candidates(tmp_path)] == [2, 2]


def test_opening_stops_when_asked(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    options = OpenOptions(progress=lambda *step: seen.append(step), cancelled=lambda: len(seen) == 2)
    with pytest.raises(Cancelled):
        open_folder(save(tmp_path), options=options)
    assert [done for _, done, _ in seen] == [0, 1]


def test_a_view_inside_a_larger_storage_is_cut_out(tmp_path: Path) -> None:
    from shardyard.dtypes import BY_NAME
    from shardyard.formats.torch.writer import Storage, tensor

    storage = Storage(BY_NAME["float32"], WEIGHT.tobytes())
    write_rank(verl(tmp_path, 0, 1), {"w": tensor(storage, (2, 3), 6, (1, 5))})
    expected = np.lib.stride_tricks.as_strided(WEIGHT.ravel()[6:], (2, 3), (4, 20))
    assert values(open_folder(tmp_path)) == expected.tobytes()


def test_many_ranks_open_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    world = 64
    save(tmp_path, world)
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert math.prod(checkpoint.tensors["w"].shape) == WEIGHT.size
    assert values(checkpoint) == WEIGHT.tobytes()


def test_names_of_one_storage_in_every_file_are_tied(tmp_path: Path) -> None:
    for rank in range(2):
        shared, other = row_sharded(rank, 2), row_sharded(rank, 2)
        state = {"lm_head.weight": shared, "model.embed_tokens.weight": shared, "copy": other}
        write_rank(verl(tmp_path, rank, 2), state)
    checkpoint = open_folder(tmp_path)
    (tie,) = checkpoint.ties
    assert tie.names == ("model.embed_tokens.weight", "lm_head.weight") and tie.source == "storage"
    assert checkpoint.usage.weights == 2 * WEIGHT.nbytes and checkpoint.usage.wasted == 0
    assert values(checkpoint, "lm_head.weight") == WEIGHT.tobytes()


def test_names_that_are_one_storage_in_one_file_alone_are_not_tied(tmp_path: Path) -> None:
    for rank in range(2):
        shared = row_sharded(rank, 2)
        write_rank(verl(tmp_path, rank, 2), {"a": shared, "b": shared if rank else row_sharded(rank, 2)})
    assert open_folder(tmp_path).ties == []
