"""One rank of an accelerate FSDP run: train two steps, save_state, and write down the full state dict that torch gathers.

accelerate has no CPU flavour of FSDP, so its state is told the type after it was set up; the writers are its own and torch's.
Arguments: folder, FSDP version, model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint.state_dict as distributed_state

sys.path.insert(0, str(Path(__file__).parent))
import launch
import models


def main() -> None:
    folder, version, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ.update(ACCELERATE_USE_CPU="true")
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, state_dict_type="SHARDED_STATE_DICT", use_orig_params=True, auto_wrap_policy="NO_WRAP",
        cpu_ram_efficient_loading=False, sync_module_states=False,
    )  # fmt: skip
    accelerator = Accelerator(cpu=True)
    for shared in (PartialState._shared_state, AcceleratorState._shared_state):
        shared["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION=str(version))

    net = models.build(name)
    config = net.config
    model = wrap(net, version, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(2):
        loss = model(**models.inputs(net, seed=10 * step + rank)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    accelerator._models.append(model)
    accelerator._optimizers.append(optimizer)
    accelerator.save_state(str(folder / "checkpoint-2"), safe_serialization=True)

    from shardyard.torch import consolidate

    live = full_state(model, version)
    gathered = consolidate(model)
    if rank == 0:
        assert gathered is not None
        config.save_pretrained(folder / "checkpoint-2")
        torch.save(live, folder / "live.pt")
        torch.save(gathered, folder / "consolidated.pt")
    else:
        assert gathered is None
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def wrap(net: torch.nn.Module, version: int, world: int) -> torch.nn.Module:
    blocks = next(m for m in net.modules() if isinstance(m, torch.nn.ModuleList))
    if version == 2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(blocks[0])})
    return FullyShardedDataParallel(net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)


def full_state(model: torch.nn.Module, version: int) -> dict[str, torch.Tensor]:
    if version == 2:
        options = distributed_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
        return dict(distributed_state.get_model_state_dict(model, options=options))
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(False, False)):
        return {name: value.clone() for name, value in model.state_dict().items()}


main()
launch.leave()
