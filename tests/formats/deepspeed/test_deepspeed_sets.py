"""Steps that are more than one set of rank files: pipelines, experts, universal folders, stage 0, and tensor-parallel pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardyard.checkpoint import Checkpoint, CheckpointKind, Role
from shardyard.findings import Blocks, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import FORMAT
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import ordered_dict, write_torch
from support.truth import Answer, differences
from support.zero_runs import ZeroRun, dictionary, whole

WEIGHTS: dict[str, tuple[int, ...]] = {"a.weight": (7, 5), "b.bias": (3,), "c": ()}


def open_root(*folders: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = FORMAT.recognise(Folder(*folders), {})
    return candidate.open(options)


def codes(checkpoint: Checkpoint, blocks: Blocks) -> set[str]:
    return {f.code for f in checkpoint.findings if f.blocks is blocks}


def write_ranks(runs: list[ZeroRun], folder: Path, step: int = 7) -> Path:
    """Several runs' files as the model ranks of one step."""
    folders = [run.write(folder, step, rank) for rank, run in enumerate(runs)]
    return folders[0]


def parallel(pipeline: int, tensor: int) -> dict[str, object]:
    dims = dictionary(pp_degree=pipeline, tp_degree=tensor)
    return {"mp_world_size": pipeline * tensor, "checkpoint_parallel_dimensions": dims}


# Pipelines


def write_pipeline(folder: Path, *, world: int = 2, stage: int = 1) -> dict[str, Answer]:
    """Two stages that share an embedding; layers 0, 1, 3 and 4 have files."""
    settings = parallel(2, 1) | {"module": None}
    first = ZeroRun(stage, world, [{"tied_modules.embed.weight": (11, 4), "1.weight": (5, 4), "1.bias": (5,)}], settings=settings)
    second = ZeroRun(
        stage,
        world,
        [{"tied_modules.embed.weight": (11, 4), "3.weight": (4, 5), "4.weight": (4,)}],
        settings=settings | {"buffer_names": ["4.steps"]},
        seed=1,
    )
    second.values["tied_modules.embed.weight"] = first.values["tied_modules.embed.weight"]
    tag = write_ranks([first, second], folder)
    steps = np.array([5], np.int64)
    layers = {
        0: {"weight": first.values["tied_modules.embed.weight"]},
        1: {"weight": first.values["1.weight"], "bias": first.values["1.bias"]},
        3: {"weight": second.values["3.weight"]},
        4: {"weight": second.values["4.weight"], "steps": steps},
    }
    for number, tensors in layers.items():
        half = {n: whole(v if v.dtype == np.int64 else v.astype(np.float16)) for n, v in tensors.items()}
        write_torch(tag / f"layer_{number:02d}-model_00-model_states.pt", ordered_dict(half.items()))
    return first.answers() | second.answers() | {"4.steps": Answer("I64", (1,), steps.tobytes())}


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_pipeline_is_rebuilt_by_stage(world: int, tmp_path: Path) -> None:
    truth = write_pipeline(tmp_path, world=world)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.kind is CheckpointKind.PIPELINE and found.mergeable and found.world_size == 2 * world
    assert differences(found.tensors, truth, options.handles) == []
    tied = found.tensors["tied_modules.embed.weight"]
    assert len(tied.replicas) == 1 and tied.copy16 is not None
    assert found.tensors["4.steps"].role is Role.BUFFER


def test_a_pipeline_without_one_of_its_stages_is_not_whole(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    for path in (tmp_path / "global_step7").glob("*mp_rank_01*"):
        path.unlink()
    found = open_root(tmp_path)
    assert "missing-rank" in codes(found, Blocks.UNLESS_ALLOWED) and not found.mergeable


def test_a_pipeline_stage_without_its_model_file_leaves_the_rest(tmp_path: Path) -> None:
    truth = write_pipeline(tmp_path)
    (tmp_path / "global_step7" / "mp_rank_01_model_states.pt").unlink()
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-rank"} and codes(found, Blocks.MERGE) == set()
    kept = {n: truth[n] for n in ("1.weight", "1.bias", "tied_modules.embed.weight")}
    assert differences({n: found.tensors[n] for n in kept}, kept, options.handles) == []


def test_a_pipeline_stage_without_optimizer_files_names_them(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    for path in (tmp_path / "global_step7").glob("*mp_rank_01_optim*"):
        path.unlink()
    (finding,) = [f for f in open_root(tmp_path).findings if f.code == "missing-rank"]
    assert finding.paths[0] == "global_step7/zero_pp_rank_0_mp_rank_01_optim_states.pt"


def test_a_pipeline_without_a_layers_file_is_not_whole(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "global_step7" / "layer_03-model_00-model_states.pt").unlink()
    found = open_root(tmp_path)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-shard"}
    assert found.findings[0].paths == ("global_step7/layer_03-model_00-model_states.pt",)


def test_a_pipelines_frozen_weights_come_from_the_layer_files(tmp_path: Path) -> None:
    truth = write_pipeline(tmp_path)
    frozen = np.arange(6, dtype=np.float16).reshape(2, 3)
    write_torch(tmp_path / "global_step7" / "layer_02-model_00-model_states.pt", ordered_dict([("adapter", whole(frozen))]))
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    truth["2.adapter"] = Answer("F16", (2, 3), frozen.tobytes())
    assert found.mergeable and differences(found.tensors, truth, options.handles) == []
    assert found.tensors["2.adapter"].trainable is False and "16-bit" in found.tensors["2.adapter"].note


def test_a_pipeline_without_zero_is_its_layer_files_even_beside_masters(tmp_path: Path) -> None:
    write_pipeline(tmp_path, stage=1)
    for rank in range(2):
        path = tmp_path / "global_step7" / f"mp_rank_{rank:02d}_model_states.pt"
        fields = dictionary(module=None, buffer_names=[], optimizer=None, param_shapes=None, dp_world_size=2)
        fields.pairs += parallel(2, 1).items()
        write_torch(path, fields)
    found = open_root(tmp_path)
    assert found.part == "model" and found.mergeable and found.world_size == 4
    assert set(found.tensors) == {"0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.steps"}
    assert [f.code for f in found.findings] == ["masters-unnamed"]


# Experts


def write_experts(folder: Path, *, world: int, spread: int, local: int, stage: int = 2) -> dict[str, Answer]:
    """One layer of `spread * local` experts over `world` ranks, and dense weights."""
    head = "layer.deepspeed_moe.experts.deepspeed_experts"
    names = {f"{head}.{i}.{n}": s for i in range(local) for n, s in (("up", (3, 5)), ("bias", (3,)))}
    dense = ZeroRun(stage, world, [{"embed": (9, 5), "norm": (5,)}], settings={"num_experts": [spread * local]})
    experts = [ZeroRun(stage, world // spread, [names], seed=e + 1) for e in range(spread)]
    dense.groups.append(names)
    dense.values |= experts[0].values
    tag = dense.write(folder)
    truth = {n: a for n, a in dense.answers().items() if n not in names}
    for rank in range(world):
        own, place = experts[rank % spread], rank // spread
        vectors = [dense._partitions()[0][rank], own._partitions()[0][place]]
        root = dense._optimizer_file(vectors, rank)
        state = root.pairs[0][1]
        assert isinstance(state, Dict)
        base = dictionary(
            state=dictionary(), param_groups=[dictionary(params=[0]), dictionary(moe=True, name=f"ep_size_{spread}")]
        )
        paddings = [dense.paddings(dense.groups[0])[rank], own.paddings(names)[place]]
        counts = [world, world // spread]
        state.pairs += [("partition_count", counts), ("group_paddings", paddings), ("base_optimizer_state", base)]
        write_torch(tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", root)
    for rank, own in enumerate(experts):
        for number in range(local):
            tensors = {}
            for name in names:
                if name.startswith(f"{head}.{number}."):
                    values = own.values[name]
                    wanted = name.replace(f".{number}.", f".{rank * local + number}.")
                    truth[wanted] = Answer("F32", values.shape, values.tobytes())
                    tensors[wanted] = whole(values.astype(np.float16))
            path = tag / f"layer_0_expert_{rank * local + number}_mp_rank_00_model_states.pt"
            write_torch(path, dictionary(tensors.items()))
    model = dense._model_file(0, 7)
    module = ordered_dict((n, t) for n, t in dense._weights() if n not in names)
    model.pairs.append(("module", module))
    write_torch(tag / "mp_rank_00_model_states.pt", model)
    return truth


@pytest.mark.parametrize(("world", "spread", "local"), [(2, 1, 3), (4, 4, 1), (6, 2, 2), (6, 3, 11), (12, 4, 3)])
def test_experts_get_their_global_numbers(world: int, spread: int, local: int, tmp_path: Path) -> None:
    truth = write_experts(tmp_path, world=world, spread=spread, local=local)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.kind is CheckpointKind.MOE and found.world_size == world
    assert found.mergeable, found.findings
    assert differences(found.tensors, truth, options.handles) == []


def test_a_missing_expert_file_is_named(tmp_path: Path) -> None:
    write_experts(tmp_path, world=4, spread=2, local=2)
    (tmp_path / "global_step7" / "layer_0_expert_2_mp_rank_00_model_states.pt").unlink()
    found = open_root(tmp_path)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-shard"}
    assert "layer_0_expert_2_mp_rank_00" in found.findings[0].message


# Universal folders


def write_universal(folder: Path, run: ZeroRun, *, shaped: bool = True) -> Path:
    """What the converter makes of a run: the masters by name, and the model files."""
    tag = run.write(folder)
    for path in tag.glob("*optim_states.pt"):
        path.unlink()
    for name, values in run.values.items():
        place = tag / "zero" / name
        place.mkdir(parents=True, exist_ok=True)
        write_torch(place / "fp32.pt", dictionary(cat_dim=0, param=whole(values)) if shaped else whole(values.reshape(-1)))
    write_torch(tag / "zero" / "optimizer_state.pt", dictionary(zero_stage=run.stage))
    (folder / "latest").rename(folder / "latest_universal")
    return tag


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_universal_folders_get_shapes_and_frozen_weights_from_the_model_files(stage: int, tmp_path: Path) -> None:
    run = ZeroRun(stage, 3, [WEIGHTS], frozen={"f": (5, 2)}, buffers={"positions": (4,)}, aliases={"tied": "a.weight"})
    write_universal(tmp_path, run, shaped=stage < 3)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.kind is CheckpointKind.UNIVERSAL and found.mergeable, found.findings
    assert differences(found.tensors, run.answers(), options.handles) == []
    assert (found.tensors["a.weight"].copy16 is not None) == (stage < 3)


def test_a_universal_folder_without_one_weight_is_not_whole(tmp_path: Path) -> None:
    tag = write_universal(tmp_path, ZeroRun(2, 2, [WEIGHTS]))
    (tag / "zero" / "b.bias" / "fp32.pt").unlink()
    found = open_root(tmp_path)
    assert codes(found, Blocks.UNLESS_ALLOWED) == {"missing-tensor"} and found.tensors["b.bias"].layout is None


def test_universal_weights_with_a_slash_in_their_name_lie_in_folders_of_folders(tmp_path: Path) -> None:
    run = ZeroRun(2, 2, [{"heads.x-y/z.weight": (3, 2), "heads.x-y": (4,)}])
    write_universal(tmp_path, run)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.mergeable, found.findings
    assert differences(found.tensors, run.answers(), options.handles) == []


def test_buffers_of_a_universal_folder_that_are_another_ranks_are_told_of(tmp_path: Path) -> None:
    tag = write_universal(tmp_path, ZeroRun(3, 2, [WEIGHTS], buffers={"positions": (4,)}), shaped=False)
    (tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"")
    assert any(f.message.startswith("Buffers are those of rank 1") for f in open_root(tmp_path).findings)


def test_a_universal_moment_that_is_damaged_is_a_name_without_data(tmp_path: Path) -> None:
    tag = write_universal(tmp_path, ZeroRun(2, 2, [WEIGHTS]))
    write_torch(tag / "zero" / "a.weight" / "exp_avg.pt", dictionary(param=whole(np.zeros(WEIGHTS["a.weight"], np.float32))))
    (tag / "zero" / "b.bias" / "exp_avg.pt").write_bytes(b"")
    found = open_root(tmp_path)
    assert found.mergeable and not found.findings
    moments = found.parts["optimizer"].tensors
    assert moments["a.weight.exp_avg"].layout is not None
    assert moments["b.bias.exp_avg"].layout is None and moments["b.bias.exp_avg"].shape == WEIGHTS["b.bias"]
    assert [f.severity for f in found.findings] == [Severity.WARNING]


def test_a_universal_weight_of_another_size_is_refused(tmp_path: Path) -> None:
    tag = write_universal(tmp_path, ZeroRun(3, 2, [WEIGHTS]), shaped=False)
    write_torch(tag / "zero" / "a.weight" / "fp32.pt", whole(np.zeros(34, np.float32)))
    assert "unknown-layout" in codes(open_root(tmp_path), Blocks.MERGE)


# Stage 0


def write_stage_0(folder: Path, optimizer: object, values: dict[str, np.ndarray]) -> None:
    tag = folder / "global_step1"
    tag.mkdir(parents=True)
    module = ordered_dict((n, whole(v.astype(np.float16))) for n, v in values.items())
    fields = dictionary(module=module, buffer_names=[], optimizer=optimizer, param_shapes=None, dp_world_size=2, mp_world_size=1)
    write_torch(tag / "mp_rank_00_model_states.pt", fields)


def stage_0_values() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in WEIGHTS.items()}


def test_a_fused_stage_0_optimizer_keeps_its_masters_in_one_vector(tmp_path: Path) -> None:
    values = stage_0_values()
    flat = np.concatenate([v.reshape(-1) for v in values.values()])
    write_stage_0(tmp_path, dictionary(fp32_groups_flat=[whole(flat)]), values)
    options = OpenOptions(part="masters")
    found = open_root(tmp_path, options=options)
    truth = {n: Answer("F32", v.shape, v.tobytes()) for n, v in values.items()}
    assert found.kind is CheckpointKind.ZERO0 and differences(found.tensors, truth, options.handles) == []
    assert open_root(tmp_path).part == "model"


@pytest.mark.parametrize(("groups", "told"), [([["a.weight", "c"], ["b.bias"]], True), ([["b.bias"], ["d.bias"]], False)])
def test_stage_0_masters_of_several_groups_are_named_only_where_shapes_tell(
    groups: list[list[str]], told: bool, tmp_path: Path
) -> None:
    values = stage_0_values() | {"d.bias": np.ones(3, np.float32)}
    values = {n: values[n] for n in values if any(n in g for g in groups)}
    masters = [[whole(values[n]) for n in g] for g in groups]
    write_stage_0(tmp_path, dictionary(fp32_groups=masters), values)
    assert ("masters" in open_root(tmp_path).parts) is told


# Tensor-parallel sets


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_tensor_parallel_zero_run_is_shown_and_not_merged(stage: int, recorded: bool, tmp_path: Path) -> None:
    settings = parallel(1, 2) if recorded else {"mp_world_size": 2}
    runs = [ZeroRun(stage, 2, [WEIGHTS], settings=settings, seed=i) for i in range(2)]
    write_ranks(runs, tmp_path)
    options = OpenOptions()
    found = open_root(tmp_path, options=options)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and found.complete and not found.mergeable
    assert "2 tensor-parallel ranks" in found.merge_note and found.world_size == 4
    truth = {f"mp_rank_{r:02d}/{n}": a for r, run in enumerate(runs) for n, a in run.answers().items()}
    assert differences(found.tensors, truth, options.handles) == []


def test_one_piece_of_a_tensor_parallel_run_says_what_it_is(tmp_path: Path) -> None:
    write_ranks([ZeroRun(1, 2, [WEIGHTS], settings=parallel(1, 8))], tmp_path)
    found = open_root(tmp_path)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and "piece" in codes(found, Blocks.MERGE)
    assert any("piece 1 of 8" in f.message for f in found.findings)
    write_ranks([ZeroRun(1, 2, [WEIGHTS], settings=parallel(1, 8)) for _ in range(3)], tmp_path / "three")
    assert "missing-rank" in codes(open_root(tmp_path / "three"), Blocks.MERGE)


def test_stage_0_pieces_are_pieces_too(tmp_path: Path) -> None:
    tag = tmp_path / "global_step1"
    tag.mkdir()
    for rank in range(2):
        fields = dictionary(module=ordered_dict([("w", whole(np.ones((2, 2), np.float16)))]), buffer_names=[], optimizer=None)
        fields.pairs += [("param_shapes", None), *parallel(1, 2).items()]
        write_torch(tag / f"mp_rank_{rank:02d}_model_states.pt", fields)
    found = open_root(tmp_path)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and set(found.tensors) == {"mp_rank_00/w", "mp_rank_01/w"}


def test_layer_files_of_several_tensor_ranks_are_pieces(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    tag = tmp_path / "global_step7"
    write_torch(tag / "layer_01-model_01-model_states.pt", ordered_dict([("weight", whole(np.ones(3, np.float16)))]))
    found = open_root(tmp_path)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and found.merge_note
    assert "layer_01-model_01/weight" in found.tensors


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"ds_config": dictionary(zero_optimization=dictionary(stage=3, mics_shard_size=2))}, "MiCS"),
        ({"ds_autoep_layers": [dictionary(moe_layer_id=0)]}, "AutoEP"),
    ],
)
def test_mics_and_autoep_runs_are_shown_and_not_merged(settings: dict[str, object], word: str, tmp_path: Path) -> None:
    ZeroRun(3, 4, [WEIGHTS], settings=settings, buffers={"positions": (3,)}).write(tmp_path)
    found = open_root(tmp_path)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and word in found.merge_note and not found.mergeable


def test_a_stale_model_rank_is_no_tensor_parallel_set(tmp_path: Path) -> None:
    write_ranks([ZeroRun(2, 2, [WEIGHTS]), ZeroRun(2, 2, [WEIGHTS])], tmp_path)
    found = open_root(tmp_path)
    assert found.kind is CheckpointKind.ZERO2 and codes(found, Blocks.MERGE) == {"stale-file"}
