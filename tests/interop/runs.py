"""Training runs that several tests look at, each made once a session."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from interop import launch


@cache
def deepspeed(stage: int, dtype: str, model: str) -> Path:
    """A DeepSpeed folder with `live.pt` and `consolidated.pt` in it."""
    folder = Path(mkdtemp(prefix=f"zero{stage}-{model}-"))
    launch.run_ranks("deepspeed_rank.py", str(folder), str(stage), dtype, model)
    return folder


@cache
def fsdp(version: int, model: str) -> Path:
    """A folder with `checkpoint-2` as accelerate saves it, and `live.pt` and `consolidated.pt` beside it."""
    folder = Path(mkdtemp(prefix=f"fsdp{version}-{model}-"))
    launch.run_ranks("fsdp_rank.py", str(folder), str(version), model)
    return folder


def sharded_bins(model: Any, folder: Path, shards: int = 3) -> Path:
    """The model as sharded torch files with an index and its config."""
    import torch

    state = model.state_dict()
    names = list(state)
    weight_map = {}
    for k in range(shards):
        file = f"pytorch_model-{k + 1:05d}-of-{shards:05d}.bin"
        mine = names[k::shards]
        torch.save({n: state[n].clone() for n in mine}, folder / file)
        weight_map.update(dict.fromkeys(mine, file))
    index = {"metadata": {"total_size": sum(v.nbytes for v in state.values())}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    model.config.save_pretrained(folder)
    return folder
