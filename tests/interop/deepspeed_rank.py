"""One rank of a DeepSpeed run: train two steps, save, and write down the truth that the live engine tells.

Arguments: folder, ZeRO stage, dtype, model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch

sys.path.insert(0, str(Path(__file__).parent))
import launch
import models

# Without this the first use compiles a C++ extension for half a minute; gloo needs none of it.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def settings(stage: int, dtype: str) -> dict[str, object]:
    zero: dict[str, object] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    found: dict[str, object] = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }
    if dtype == "bfloat16":
        found["bf16"] = {"enabled": True}
    elif dtype == "float16":
        found["fp16"] = {"enabled": True, "initial_scale_power": 4}
    return found


def main() -> None:
    folder, stage, dtype, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    deepspeed.init_distributed("gloo", verbose=False)
    rank = torch.distributed.get_rank()
    model = models.build(name)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(stage, dtype))
    for step in range(2):
        loss = engine(**models.inputs(model, seed=10 * step + rank)).loss
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(folder))
    if rank == 0:
        model.config.save_pretrained(folder)

    from shardyard.torch import consolidate

    live = truth(engine)
    gathered = consolidate(engine)
    consolidate(engine, dtype="bfloat16", folder=folder / "streamed")
    if rank == 0:
        assert gathered is not None
        torch.save(live, folder / "live.pt")
        torch.save(gathered, folder / "consolidated.pt")
    else:
        assert gathered is None
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def truth(engine: object) -> dict[str, torch.Tensor]:
    """What DeepSpeed itself says the fp32 weights are."""
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    for name, parameter in engine.module.named_parameters(remove_duplicate=False):  # type: ignore[attr-defined]
        master = safe_get_full_fp32_param(parameter)
        if master is None:
            master = parameter.detach()
        found[name] = master.detach().clone().reshape(getattr(parameter, "ds_shape", parameter.shape)).cpu()
    return found


main()
launch.leave()
