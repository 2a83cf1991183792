"""Tensors that were saved without their data, and where the real data is."""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint, CheckpointKind, Tensor
from shardyard.findings import Blocks, Finding, Severity
from shardyard.health import facts
from shardyard.health.neighbours import training_steps
from shardyard.health.words import listing, plural

_KINDS = (
    CheckpointKind.SAFETENSORS,
    CheckpointKind.SAFETENSORS_SHARDED,
    CheckpointKind.TORCH,
    CheckpointKind.TORCH_SHARDED,
)
_PARAMETER = (".weight", ".bias")
MOST_NAMED = 20


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Empty or one-element stand-ins of ZeRO-3, and meta tensors."""
    if checkpoint.kind not in _KINDS or any(f.code == "placeholder" for f in checkpoint.findings):
        return
    tensors = facts.model_tensors(checkpoint)
    empty = [n for n, t in tensors.items() if _stands_in(n, t)]
    if empty and 2 * len(empty) >= len(tensors):
        yield _partitioned(checkpoint, empty, len(tensors))
        return
    meta = [n for n, t in tensors.items() if t.layout is None and "meta tensor" in t.note]
    if meta:
        were = "was" if len(meta) == 1 else "were"
        text = f"{plural(len(meta), 'tensor')} such as {listing(meta[:1])} {were} saved from the meta device, without data."
        severity = Severity.ERROR if 2 * len(meta) >= len(tensors) > 1 and _named_like_a_model(meta) else Severity.INFO
        remedy = "Save the model again from a device that holds it."
        yield Finding("placeholder", severity, text, remedy, tensors=tuple(meta[:MOST_NAMED]), blocks=Blocks.UNLESS_ALLOWED)


def _stands_in(name: str, tensor: Tensor) -> bool:
    """ZeRO-3 leaves `empty(0)` in place of a partitioned parameter, its first versions `ones(1)`."""
    return tensor.shape in ((0,), (1,)) and name.endswith(_PARAMETER)


def _named_like_a_model(names: list[str]) -> bool:
    return sum(n.endswith(_PARAMETER) for n in names) * 2 >= len(names)


def _partitioned(checkpoint: Checkpoint, empty: list[str], total: int) -> Finding:
    steps = training_steps(checkpoint)
    text = (
        f"Placeholder weights: {len(empty):,} of {plural(total, 'tensor')} such as {listing(empty[:1])} hold no data, "
        "because ZeRO-3 had the parameters spread over the ranks when this was saved."
    )
    remedy = "The real data is in the training checkpoint (global_step…): merge that, and do not delete it."
    if steps:
        remedy = f"The real data is in {steps[-1]}: merge that, and do not delete it."
    return Finding("placeholder", Severity.ERROR, text, remedy, tuple(steps[-1:]), tuple(empty[:MOST_NAMED]), blocks=Blocks.MERGE)
