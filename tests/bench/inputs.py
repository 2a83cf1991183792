"""The checkpoints that are measured on, made as the trainers make them: run as `python -m tests.bench.inputs KIND FOLDER GB`.

Layouts are the real ones; the optimizer's moments are left out, so that the input is as large as the weights.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from pathlib import Path

WORLD = 4
HIDDEN, FEED_FORWARD, VOCABULARY = 2048, 5504, 32_000


def shapes(gb: float) -> OrderedDict[str, tuple[int, ...]]:
    """Names and shapes of a Llama-like model of about `gb` GB in float32."""
    found: OrderedDict[str, tuple[int, ...]] = OrderedDict()
    wanted = gb * 1e9 / 4
    if gb >= 1:
        found["model.embed_tokens.weight"] = (VOCABULARY, HIDDEN)
        found["lm_head.weight"] = (VOCABULARY, HIDDEN)
        wanted -= 2 * VOCABULARY * HIDDEN
    per_layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FEED_FORWARD + 2 * HIDDEN
    for i in range(max(1, round(wanted / per_layer))):
        prefix = f"model.layers.{i}."
        found.update({f"{prefix}self_attn.{q}_proj.weight": (HIDDEN, HIDDEN) for q in "qkvo"})
        found.update({f"{prefix}mlp.{n}_proj.weight": (FEED_FORWARD, HIDDEN) for n in ("gate", "up")})
        found[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, FEED_FORWARD)
        found.update({f"{prefix}{n}_layernorm.weight": (HIDDEN,) for n in ("input", "post_attention")})
    return found


def _numel(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def _model_file(module: object, found: OrderedDict[str, tuple[int, ...]]) -> dict[str, object]:
    import torch

    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [OrderedDict((name, torch.Size(shape)) for name, shape in found.items())],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "global_steps": 10,
        "dp_world_size": WORLD,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": "0.19.8",
    }


def _scaling() -> dict[str, object]:
    return {"loss_scaler": None, "dynamic_loss_scale": False, "overflow": False}


def zero3(folder: Path, gb: float) -> None:
    """Each parameter cut over the ranks."""
    import torch

    found = shapes(gb)
    tag = folder / "global_step10"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    per_rank = sum(-(-_numel(shape) // WORLD) for shape in found.values())
    module = OrderedDict((name, torch.zeros(0, dtype=torch.bfloat16)) for name in found)
    for rank in range(WORLD):
        torch.manual_seed(rank)
        state = {
            "zero_stage": 3,
            "partition_count": WORLD,
            "fp32_flat_groups": [torch.randn(per_rank) * 0.02],
            "optimizer_state_dict": {"state": {}, "param_groups": []},
            **_scaling(),
        }
        whole = {"optimizer_state_dict": state, "ds_config": {}, "ds_version": "0.19.8"}
        torch.save(whole, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save(_model_file(module, found), tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def zero2(folder: Path, gb: float) -> None:
    """One flat vector cut over the ranks, and the 16-bit weights beside it."""
    import torch

    found = shapes(gb)
    tag = folder / "global_step10"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    total = sum(map(_numel, found.values()))
    part = -(-total // (2 * WORLD)) * 2
    torch.manual_seed(0)
    flat = torch.randn(total) * 0.02
    module, at = OrderedDict(), 0
    for name, shape in found.items():
        module[name] = flat[at : at + _numel(shape)].view(shape).to(torch.bfloat16)
        at += _numel(shape)
    torch.save(_model_file(module, found), tag / "mp_rank_00_model_states.pt")
    for rank in range(WORLD):
        state = {
            "zero_stage": 2,
            "partition_count": [WORLD],
            "group_paddings": [part * WORLD - total if rank == WORLD - 1 else 0],
            "single_partition_of_fp32_groups": [flat[rank * part : min(total, (rank + 1) * part)].clone()],
            "base_optimizer_state": {"state": {}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
            "clip_grad": 0.0,
            "ds_version": "0.19.8",
            **_scaling(),
        }
        whole = {"optimizer_state_dict": state, "ds_config": {}, "ds_version": "0.19.8"}
        torch.save(whole, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def dcp_rows(folder: Path, gb: float) -> None:
    """torch.distributed.checkpoint, each weight cut by rows."""
    _dcp(folder, gb, 0)


def dcp_columns(folder: Path, gb: float) -> None:
    """torch.distributed.checkpoint, each matrix cut by columns, as tensor parallelism does."""
    _dcp(folder, gb, 1)


def _dcp(folder: Path, gb: float, dimension: int) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_dcp_rank, (str(folder), gb, dimension), nprocs=WORLD)


def _dcp_rank(rank: int, folder: str, gb: float, dimension: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(rank)
    state = {}
    for name, shape in shapes(gb).items():
        cut = dimension if len(shape) > 1 else 0
        local = [n // WORLD if i == cut else n for i, n in enumerate(shape)]
        state[name] = DTensor.from_local(torch.randn(local) * 0.02, mesh, [Shard(cut)], run_check=False)
    checkpoint.save({"model": state}, checkpoint_id=folder)
    dist.destroy_process_group()


def bin_shards(folder: Path, gb: float) -> None:
    """A model of pytorch_model-*.bin shards with an index."""
    _shards(folder, gb, bloat=1)


def bloated(folder: Path, gb: float) -> None:
    """The same, each shard's tensors being views of a storage three times as large."""
    _shards(folder, gb, bloat=3)


def _shards(folder: Path, gb: float, *, bloat: int) -> None:
    import json

    import torch

    folder.mkdir(parents=True)
    found = list(shapes(gb).items())
    count = 4
    weight_map = {}
    for k in range(count):
        mine = found[k * len(found) // count : (k + 1) * len(found) // count]
        torch.manual_seed(k)
        total = sum(_numel(shape) for _, shape in mine)
        if bloat > 1:
            flat = torch.randn(total * bloat) * 0.02
            state, at = {}, 0
            for name, shape in mine:
                state[name] = flat[at : at + _numel(shape)].view(shape)
                at += _numel(shape)
        else:
            state = {name: torch.randn(shape) * 0.02 for name, shape in mine}
        name = f"pytorch_model-{k + 1:05d}-of-{count:05d}.bin"
        torch.save(state, folder / name)
        weight_map.update(dict.fromkeys(state, name))
    index = {"metadata": {"total_size": 4 * sum(_numel(s) for _, s in found)}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2))


KINDS = {f.__name__: f for f in (zero3, zero2, dcp_rows, dcp_columns, bin_shards, bloated)}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]))
