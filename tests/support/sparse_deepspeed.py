"""ZeRO-3 folders of any size that take no room: true headers and pickles, and holes where the weights would be.

For measuring what opening and planning cost.  Run as a program: `python -m support.sparse_deepspeed FOLDER 70B|671B`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from shardyard.dtypes import BY_NAME, STORAGE_CLASSES, DType
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch import zip_layout
from shardyard.formats.torch.writer import instance, ordered_dict, size

FLOAT, BF16 = BY_NAME["float32"], BY_NAME["bfloat16"]
_CLASS_OF = {dtype.name: name for name, dtype in STORAGE_CLASSES.items()}


@dataclass(eq=False, slots=True)
class Hole:
    """A storage whose bytes are a hole in the file."""

    dtype: DType
    numel: int


def tensor(hole: Hole, shape: tuple[int, ...]) -> Call:
    """A packed tensor over a whole hole."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    args = (hole, 0, shape, tuple(reversed(strides)), False, ordered_dict(()))
    return Call("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), args)


def flat(numel: int, dtype: DType = FLOAT) -> Call:
    return tensor(Hole(dtype, numel), (numel,))


def dictionary(items: dict[object, object]) -> Dict:
    """A plain dict of a pickle."""
    made = Dict()
    made.pairs.extend(items.items())
    return made


def write_sparse_torch(path: Path, root: object) -> None:
    """A torch file whose storages are holes."""
    keys: dict[int, str] = {}
    holes: list[Hole] = []

    def persistent_id(value: object) -> object:
        if not isinstance(value, Hole):
            return None
        if id(value) not in keys:
            keys[id(value)] = str(len(holes))
            holes.append(value)
        return ("storage", Global("torch", _CLASS_OF[value.dtype.name]), keys[id(value)], "cpu", value.numel)

    data = pickle_writer.dump(root, persistent_id=persistent_id)
    small = {"data.pkl": data, "byteorder": b"little", "version": b"3\n", ".storage_alignment": b"64"}
    sizes = [(name, len(content)) for name, content in small.items()]
    sizes += [(f"data/{i}", hole.numel * hole.dtype.itemsize) for i, hole in enumerate(holes)]
    stem = path.name.rpartition(".")[0]
    placed = zip_layout.place([(f"{stem}/{name}", nbytes) for name, nbytes in sizes])
    import zlib

    crcs = [zlib.crc32(content) for content in small.values()] + [0] * len(holes)
    with open(path, "wb") as file:
        for place in placed:
            file.seek(place.header_offset)
            file.write(place.header)
            file.write(small.get(place.name.partition("/")[2], b""))
        file.seek(placed[-1].end)
        file.write(zip_layout.directory(placed, crcs))


def zero3(folder: Path, shapes: dict[str, tuple[int, ...]], world: int, *, version: str = "0.19.8", step: int = 100) -> None:
    """A ZeRO-3 root of `world` ranks with one group of weights."""
    tag = folder / f"global_step{step}"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    per_rank = 0
    for shape in shapes.values():
        numel = 1
        for n in shape:
            numel *= n
        per_rank += -(-numel // world)
    config = dictionary({"zero_optimization": dictionary({"stage": 3}), "bf16": dictionary({"enabled": True})})
    for rank in range(world):
        write_sparse_torch(
            tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", _optimizer(per_rank, world, config, version)
        )
    model = _model(shapes, world, config, version, step)
    write_sparse_torch(tag / "zero_pp_rank_0_mp_rank_00_model_states.pt", model)
    for rank in range(1, world):
        # All ranks' model files are alike, and nobody should look into them: links keep large folders quick to write.
        (tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").hardlink_to(tag / "zero_pp_rank_0_mp_rank_00_model_states.pt")


def _optimizer(per_rank: int, world: int, config: Dict, version: str) -> Dict:
    moments = dictionary({"step": tensor(Hole(FLOAT, 1), ()), "exp_avg": flat(per_rank), "exp_avg_sq": flat(per_rank)})
    group = dictionary({"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]})
    stage = Call("REDUCE", Global("deepspeed.runtime.zero.config", "ZeroStageEnum"), (3,))
    scaler = instance("deepspeed.runtime.fp16.loss_scaler", "LossScaler", dictionary({"cur_scale": 1.0, "dynamic": False}))
    state = dictionary(
        {
            "zero_stage": stage,
            "loss_scaler": scaler,
            "dynamic_loss_scale": False,
            "overflow": False,
            "partition_count": world,
            "optimizer_state_dict": dictionary({"state": dictionary({0: moments}), "param_groups": [group]}),
            "fp32_flat_groups": [flat(per_rank)],
        }
    )
    return dictionary({"optimizer_state_dict": state, "ds_config": config, "ds_version": version})


def _model(shapes: dict[str, tuple[int, ...]], world: int, config: Dict, version: str, step: int) -> Dict:
    module = ordered_dict((name, tensor(Hole(BF16, 0), (0,))) for name in shapes)
    return dictionary(
        {
            "module": module,
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": [ordered_dict((name, size(shape)) for name, shape in shapes.items())],
            "frozen_param_shapes": ordered_dict(()),
            "shared_params": dictionary({}),
            "frozen_param_fragments": ordered_dict(()),
            "global_steps": step,
            "dp_world_size": world,
            "mp_world_size": 1,
            "ds_config": config,
            "ds_version": version,
        }
    )


def shapes_70b(tensors: int = 1000) -> dict[str, tuple[int, ...]]:
    """About 70 billion elements in a thousand weights."""
    return {f"model.layers.{i}.mlp.weight": (8192, 8545) for i in range(tensors)}


def shapes_671b(tensors: int = 90_000) -> dict[str, tuple[int, ...]]:
    """About 671 billion elements in 90,000 weights, most of them experts'."""
    return {f"model.layers.{i // 1500}.mlp.experts.{i % 1500 // 3}.w{i % 3}.weight": (2048, 3641) for i in range(tensors)}


if __name__ == "__main__":
    shapes, world = {"70B": (shapes_70b(), 64), "671B": (shapes_671b(), 1024)}[sys.argv[2]]
    zero3(Path(sys.argv[1]), shapes, world)
