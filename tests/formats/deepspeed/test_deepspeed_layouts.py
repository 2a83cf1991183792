"""ZeRO's layouts in general: any shapes, any world, every way in which padding and order were ever stored."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.discover import find, open_candidate
from shardyard.errors import UsageError
from shardyard.findings import Blocks
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import FORMAT
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import ordered_dict, write_torch
from support.sparse_deepspeed import shapes_70b, zero3
from support.truth import differences
from support.zero_runs import ZeroRun, dictionary, flat, scaler

GROUPS: list[dict[str, tuple[int, ...]]] = [{"a.weight": (7, 5), "b.weight": (3,), "c.weight": (1,)}, {"a.bias": (11,), "d": ()}]


def open_root(*folders: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = FORMAT.recognise(Folder(*folders), {})
    return candidate.open(options)


def check(run: ZeroRun, folder: Path) -> Checkpoint:
    run.write(folder)
    options = OpenOptions()
    found = open_root(folder, options=options)
    assert found.mergeable, found.findings
    assert differences(found.tensors, run.answers(), options.handles) == []
    return found


def codes(checkpoint: Checkpoint, blocks: Blocks) -> set[str]:
    return {f.code for f in checkpoint.findings if f.blocks is blocks}


shape = st.lists(st.integers(1, 9), max_size=3).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> ZeroRun:
    stage, world = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 13))
    count = draw(st.integers(1, 4))
    names = iter(f"layer.{i}.weight" for i in range(100))
    groups = [{next(names): draw(shape) for _ in range(draw(st.integers(1, 5)))} for _ in range(count)]
    first = next(iter(groups[0]))
    frozen = {f"frozen.{i}": draw(shape) for i in range(draw(st.integers(0, 2)))}
    buffers = {"positions": draw(shape)} if draw(st.booleans()) else {}
    run = ZeroRun(
        stage, world, groups, frozen, buffers, {"tied": first} if draw(st.booleans()) else {}, seed=draw(st.integers(0, 99))
    )
    if stage < 3:
        run.alignment = draw(st.sampled_from([0, 0, 4, 8]))
        run.keeps_padding = stage == 1 and not run.alignment and draw(st.booleans())
        run.last_padding_only = draw(st.booleans())
        run.stores_padding = draw(st.booleans())
        run.records_shared = draw(st.booleans())
        if not run.stores_padding and not run.keeps_padding:
            # Without stored paddings the versions knew of the last rank's only.
            run.last_padding_only = True
    elif draw(st.booleans()):
        run.sub_groups = [[n] for g in groups for n in g]
    run.shapes_in_optimizer = draw(st.booleans())
    return run


@settings(max_examples=60, deadline=None)
@given(runs())
def test_any_run_is_rebuilt(run: ZeroRun) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(run, Path(folder) / "run")


@pytest.mark.parametrize("world", [1, 2, 3, 64])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_tiny_weights_over_many_ranks(stage: int, world: int, tmp_path: Path) -> None:
    found = check(ZeroRun(stage, world, [{"x": (70,)}, {"y": (1,), "z": ()}]), tmp_path)
    assert found.world_size == world


def test_ranks_are_ordered_as_numbers(tmp_path: Path) -> None:
    check(ZeroRun(2, 12, [{"x": (1200,)}]), tmp_path / "2")
    check(ZeroRun(3, 102, [{"x": (1200,)}], prefix=""), tmp_path / "3")


def test_the_flat_order_is_that_of_the_shapes_not_of_the_module(tmp_path: Path) -> None:
    names = list(GROUPS[0])
    found = check(ZeroRun(2, 3, [dict(reversed(GROUPS[0].items()))], module_order=names), tmp_path)
    assert list(found.tensors) == names


def test_client_state_is_shown_and_changes_nothing(tmp_path: Path) -> None:
    state = {"epoch": 3, "args": scaler(), "callbacks": dictionary(best=0.5), "lr_scheduler": None}
    found = check(ZeroRun(2, 2, GROUPS, settings=state), tmp_path)
    shown = {o.name: o.text for o in found.objects}
    assert shown["epoch"] == "3" and "LossScaler" in shown["args"]
    assert found.globals["deepspeed.runtime.fp16.loss_scaler.LossScaler"] == 1


def test_a_layout_key_that_is_not_known_is_refused(tmp_path: Path) -> None:
    ZeroRun(2, 2, GROUPS, optimizer_keys={"param_stride_paddings": [[1], [2]]}).write(tmp_path)
    found = open_root(tmp_path)
    assert "unknown-layout" in codes(found, Blocks.MERGE)
    assert "param_stride_paddings" in found.findings[0].message


def test_gaps_that_are_not_recorded_are_noticed(tmp_path: Path) -> None:
    run = ZeroRun(2, 8, [{"x": (1001,), "y": (1008,)}], alignment=8)
    run.write(tmp_path / "whole")
    assert open_root(tmp_path / "whole").mergeable
    for paddings in ({}, {"group_paddings": [0]}):
        blind = replace(run, optimizer_keys={"param_alignment_paddings": [[0, 0]], **paddings})
        blind.write(tmp_path / f"blind{len(paddings)}")
        assert "unknown-layout" in codes(open_root(tmp_path / f"blind{len(paddings)}"), Blocks.MERGE)


@pytest.mark.parametrize(("stage", "change"), [(1, -1), (1, 1), (2, -1), (2, 1), (3, -3), (3, 3)])
def test_elements_that_do_not_add_up_are_refused(stage: int, change: int, tmp_path: Path) -> None:
    # At stage 3 each rank's part is padded to whole elements: only a change of every rank's part can be seen.
    run = ZeroRun(stage, 3, [{"x": (57,), "y": (12,)}])
    run.write(tmp_path / "true")
    lying = replace(run, groups=[{"x": (57,), "y": (12 + change,)}])
    lying.write(tmp_path / "lying")
    for path in (tmp_path / "true" / "global_step7").glob("*optim_states.pt"):
        path.replace(tmp_path / "lying" / "global_step7" / path.name)
    assert "unknown-layout" in codes(open_root(tmp_path / "lying"), Blocks.MERGE)


def test_an_order_that_is_not_that_of_the_16_bit_weights_is_refused(tmp_path: Path) -> None:
    run = ZeroRun(2, 2, [{"x": (6, 2), "y": (12,), "z": (5,)}])
    run.write(tmp_path / "true")
    other = replace(run, groups=[{"y": (12,), "x": (6, 2), "z": (5,)}])
    other.write(tmp_path / "other")
    name = "global_step7/mp_rank_00_model_states.pt"
    good = Path(tmp_path / "true" / name)
    model = run._model_file(0, 7)
    model.pairs.append(("param_shapes", other._shapes()))
    write_torch(good, model)
    found = open_root(tmp_path / "true")
    assert "unknown-layout" in codes(found, Blocks.MERGE) and "lies elsewhere" in found.findings[0].message


def test_two_nodes_folders_are_one_checkpoint(tmp_path: Path) -> None:
    run = ZeroRun(3, 4, GROUPS, frozen={"f": (9,)}, aliases={"tied": "d"})
    run.write(tmp_path / "a")
    other = tmp_path / "b" / "global_step7"
    other.mkdir(parents=True)
    for path in (tmp_path / "a" / "global_step7").glob("*pp_rank_[23]_*"):
        path.rename(other / path.name)
    alone = open_root(tmp_path / "a")
    assert codes(alone, Blocks.UNLESS_ALLOWED) == {"missing-rank"} and "2-3" in alone.findings[0].message
    options = OpenOptions()
    both = open_root(tmp_path / "a", tmp_path / "b", options=options)
    assert both.mergeable and differences(both.tensors, run.answers(), options.handles) == []


def test_copies_of_different_sizes_in_two_folders_are_refused(tmp_path: Path) -> None:
    ZeroRun(2, 2, GROUPS).write(tmp_path / "a")
    ZeroRun(2, 2, GROUPS[:1]).write(tmp_path / "b")
    assert "competing-weights" in codes(open_root(tmp_path / "a", tmp_path / "b"), Blocks.MERGE)


def test_only_what_needs_a_missing_rank_is_missing(tmp_path: Path) -> None:
    run = ZeroRun(2, 4, [{"x": (8,), "y": (8,), "z": (16,)}])
    tag = run.write(tmp_path)
    (tag / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert {n for n, t in found.tensors.items() if t.layout is None} == {"z"}
    kept = {n: a for n, a in run.answers().items() if n != "z"}
    assert differences({n: found.tensors[n] for n in kept}, kept, options.handles) == []


def test_without_any_optimizer_file_the_names_are_still_known(tmp_path: Path) -> None:
    tag = ZeroRun(2, 2, GROUPS).write(tmp_path)
    for path in tag.glob("*optim_states.pt"):
        path.unlink()
    found = open_root(tmp_path)
    assert found.world_size == 2 and set(found.tensors) == {"a.weight", "b.weight", "c.weight", "a.bias", "d"}
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-rank"}
    assert open_root(tmp_path, options=OpenOptions(part="module")).mergeable


def test_other_model_files_are_not_read_while_nothing_is_frozen(tmp_path: Path) -> None:
    for frozen in ({}, {"f": (9,)}):
        run = ZeroRun(3, 3, GROUPS, frozen=frozen)
        tag = run.write(tmp_path / str(len(frozen)))
        (tag / "zero_pp_rank_1_mp_rank_00_model_states.pt").write_bytes(b"not a torch file")
        found = open_root(tmp_path / str(len(frozen)))
        assert found.mergeable is not bool(frozen)


def test_a_model_file_of_another_rank_serves_where_rank_0s_is_damaged(tmp_path: Path) -> None:
    tag = ZeroRun(3, 3, GROUPS, aliases={"tied": "d"}).write(tmp_path)
    (tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"")
    found = open_root(tmp_path)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"empty-file", "missing-tensor"}
    assert found.tensors["a.weight"].layout is not None and found.tensors["tied"].layout is None


def test_frozen_weights_of_old_versions_are_names_without_data(tmp_path: Path) -> None:
    run = ZeroRun(3, 2, GROUPS, frozen={"f": (9,)}, settings={"frozen_param_shapes": None, "frozen_param_fragments": None})
    run.write(tmp_path)
    found = open_root(tmp_path)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-tensor"} and found.tensors["f"].layout is None


@pytest.mark.parametrize("stage", [2, 3])
def test_another_name_of_a_weight_that_was_left_out_is_left_out_too(stage: int, tmp_path: Path) -> None:
    nothing = {"frozen_param_shapes": None, "frozen_param_fragments": None}
    run = ZeroRun(stage, 2, GROUPS, frozen={"f": (9,)}, aliases={"again": "f"}, settings=nothing)
    tag = run.write(tmp_path)
    for path in tag.glob("*model_states.pt"):
        rank = int(path.name.split("_")[3]) if stage == 3 else 0
        model = run._model_file(rank, 7)
        names = [n for n in [*run.values, "again"] if stage == 3 or n != "again"]
        model.pairs.append(
            ("module", ordered_dict((n, w) for n, w in [*run._weights(), ("again", flat(np.zeros(0, np.float32)))] if n in names))
        )
        write_torch(path, model)
    found = open_root(tmp_path)
    assert found.mergeable and [f.code for f in found.findings] == ["partial"]
    assert set(found.tensors) == set(run.values)


def test_a_recorded_alias_of_another_shape_is_not_believed(tmp_path: Path) -> None:
    run = ZeroRun(1, 2, GROUPS, settings={"shared_params": dictionary([("a.bias2", "a.bias")])}, frozen={"a.bias2": (3,)})
    run.write(tmp_path)
    found = open_root(tmp_path)
    assert "tie-disagrees" in {f.code for f in found.findings} and found.ties == []
    assert found.tensors["a.bias2"].shape == (3,)


def test_a_recorded_alias_is_checked_against_its_own_16_bit_copy(tmp_path: Path) -> None:
    run = ZeroRun(1, 2, GROUPS, settings={"shared_params": dictionary([("e", "a.bias")])}, frozen={"e": (11,)})
    run.write(tmp_path)
    found = open_root(tmp_path)
    assert found.ties[0].names == ("a.bias", "e")
    own, owners = found.tensors["e"].copy16, found.tensors["a.bias"].copy16
    assert own is not None and owners is not None and own.storage != owners.storage


def test_lightning_keeps_its_step_in_a_folder_called_checkpoint(tmp_path: Path) -> None:
    run = ZeroRun(2, 2, [{f"_forward_module.{n}": s for n, s in GROUPS[0].items()}], settings={"callbacks": dictionary()})
    tag = run.write(tmp_path / "epoch=1.ckpt")
    tag.rename(tag.parent / "checkpoint")
    (tag.parent / "latest").unlink()
    found = open_root(tmp_path / "epoch=1.ckpt")
    assert found.mergeable and found.tag == "checkpoint" and "_forward_module.a.weight" in found.tensors


def test_without_latest_the_newest_complete_step_is_taken(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        tag = ZeroRun(2, 2, GROUPS, seed=step).write(tmp_path / str(step), step)
        tag.rename(tmp_path / tag.name)
    (tmp_path / "global_step100" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    found = open_root(tmp_path)
    assert (found.tag, found.step, found.mergeable) == ("global_step10", 10, True)
    assert found.tags == ("global_step9", "global_step10", "global_step100")
    assert not open_root(tmp_path, options=OpenOptions(tag="global_step100")).complete
    with pytest.raises(UsageError, match="global_step9, global_step10, global_step100"):
        open_root(tmp_path, options=OpenOptions(tag="global_step11"))


def test_latest_that_leaves_the_folder_is_not_followed(tmp_path: Path) -> None:
    ZeroRun(2, 2, GROUPS).write(tmp_path / "other")
    ZeroRun(2, 2, GROUPS).write(tmp_path / "run")
    (tmp_path / "run" / "latest").write_text("../other/global_step7\x1b[31m")
    found = open_root(tmp_path / "run")
    assert codes(found, Blocks.MERGE) == {"dangling-latest"}
    assert "\x1b" not in found.findings[0].message


def test_mixed_stages_or_types_of_ranks_are_refused(tmp_path: Path) -> None:
    whole, other = ZeroRun(1, 2, GROUPS), ZeroRun(1, 2, GROUPS, keeps_padding=True)
    whole.write(tmp_path / "a")
    other.write(tmp_path / "b")
    name = "global_step7/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (tmp_path / "b" / name).replace(tmp_path / "a" / name)
    assert "unknown-layout" in codes(open_root(tmp_path / "a"), Blocks.MERGE)


def test_opening_a_large_run_reads_headers_only(tmp_path: Path) -> None:
    zero3(tmp_path / "run", shapes_70b(200), 16)
    options = OpenOptions()
    found = open_root(tmp_path / "run", options=options)
    assert found.mergeable and found.kind is CheckpointKind.ZERO3 and found.world_size == 16
    assert found.usage.masters > 50 << 30
    assert options.handles.bytes_read < 300_000


def test_progress_is_told_and_opening_can_be_cancelled(tmp_path: Path) -> None:
    from shardyard.errors import Cancelled

    ZeroRun(3, 5, GROUPS).write(tmp_path)
    seen: list[tuple[str, int, int]] = []
    open_root(tmp_path, options=OpenOptions(progress=lambda *a: seen.append(a)))
    assert [done for _, done, _ in seen] == list(range(6)) and seen[-1][2] == 6
    with pytest.raises(Cancelled):
        open_root(tmp_path, options=OpenOptions(cancelled=lambda: len(seen) > 0))


@pytest.mark.parametrize("intervals", [1, 2, 3])
def test_stage_1_of_0_3_16_interleaves_communication_intervals(intervals: int, tmp_path: Path) -> None:
    world, numel = 2, 23
    run = ZeroRun(1, world, [{"x": (numel,)}], records_shared=False, prefix="", intervals=intervals)
    per = -(-numel // (world * intervals))
    vector = run.values["x"]
    pieces = [[vector[(i * world + r) * per : (i * world + r + 1) * per] for i in range(intervals)] for r in range(world)]
    tag = run.write(tmp_path)
    for rank in range(world):
        root = run._optimizer_file([np.zeros(0, np.float32)], rank)
        state = root.pairs[0][1]
        assert isinstance(state, Dict)
        state.pairs.append(("local_sub_partitions_of_fp32_groups", [[flat(p) for p in pieces[rank]]]))
        write_torch(tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", root)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.mergeable, found.findings
    assert differences(found.tensors, run.answers(), options.handles) == []


def test_root_step_rank_file_and_the_folder_above_all_mean_the_same_weights(tmp_path: Path) -> None:
    run = ZeroRun(3, 2, GROUPS)
    root = tmp_path / "run" / "checkpoint-7"
    tag = run.write(root)
    for path in (root, tag, tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", root / "latest", tmp_path / "run"):
        options = OpenOptions()
        found = open_candidate(find(path), options)
        assert found.kind is CheckpointKind.ZERO3 and found.mergeable, path
        assert differences(found.tensors, run.answers(), options.handles) == []


def test_a_trainers_gathered_copy_is_a_weight_set_of_its_own(tmp_path: Path) -> None:
    from shardyard.discover import look

    ZeroRun(3, 2, GROUPS).write(tmp_path)
    header = b'{"a.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    kinds = [c.kind for c in look(Folder(tmp_path)).candidates]
    assert sorted(kinds) == [CheckpointKind.ZERO3, CheckpointKind.SAFETENSORS]
    found = open_candidate(find(tmp_path), OpenOptions())
    assert found.kind is CheckpointKind.ZERO3 and found.config == {"model_type": "llama"}
    assert find(tmp_path / "model.safetensors").kind is CheckpointKind.SAFETENSORS
