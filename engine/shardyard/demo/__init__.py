"""A small tree of real checkpoints to try the app on, written without torch.

One tiny tied Llama in every layout that training leaves behind, each true to the bytes of the real thing.
"""

from __future__ import annotations

from pathlib import Path

from shardyard.demo import deepspeed, fsdp, hugging_face
from shardyard.demo.model import DemoModel


def write(root: Path) -> None:
    """Write the whole tree into `root`, which must be empty or absent; about 6 MB."""
    model = DemoModel()
    root.mkdir(parents=True, exist_ok=True)
    deepspeed.write_zero3(root / "zero3" / "checkpoint-2000", model, world=4, step=2000)
    deepspeed.write_zero2(root / "zero2" / "checkpoint-500", model, world=2, step=500)
    fsdp.write_dcp(root / "fsdp" / "checkpoint-2000", model, world=4)
    hugging_face.write_tied(root / "tied-model", model)
    hugging_face.write_bloated(root / "bloated-bins", model)
    deepspeed.write_zero3(root / "damaged" / "checkpoint-100", model, world=4, step=100)
    deepspeed.damage(root / "damaged" / "checkpoint-100")
