"""What a checkpoint's pickles refer to, where the reader has not said it: nothing was imported or called."""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint
from shardyard.findings import Finding
from shardyard.formats.pickles.globals import unsafe_findings

TRAINERS = frozenset(
    {"deepspeed", "transformers", "accelerate", "megatron", "lightning", "pytorch_lightning", "lightning_fabric", "verl"}
)
"""Software whose classes stand in every checkpoint it writes: not worth a word."""


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Names that would run code, and classes of other software."""
    if not checkpoint.globals or any(f.code == "unsafe-pickle" for f in checkpoint.findings):
        return
    names: dict[tuple[str, str], int] = {}
    for path, count in checkpoint.globals.items():
        module, _, name = path.rpartition(".")
        if module.partition(".")[0] not in TRAINERS:
            names[(module, name)] = count
    yield from unsafe_findings(names, checkpoint.path.name)
