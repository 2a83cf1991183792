"""What a training checkpoint holds beside the weights, in bytes: most of it is not needed for inference."""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Finding, Severity
from shardyard.health import facts
from shardyard.health.words import share, size

_WORTH_SAYING = 1 << 10


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """The optimizer's share of the bytes, and a missing format tag."""
    yield from _format_tag(checkpoint)
    optimizer = checkpoint.usage.optimizer
    if optimizer < _WORTH_SAYING or not facts.is_model(checkpoint):
        return
    total = facts.bytes_by_use(checkpoint)["files"]
    text = f"{size(optimizer)} of {size(total)} ({share(optimizer, max(total, optimizer))}) are the optimizer's state, "
    text += "which only training needs; a merge neither reads nor writes it."
    yield Finding("optimizer-state", Severity.INFO, text, nbytes=optimizer)


def _format_tag(checkpoint: Checkpoint) -> Iterator[Finding]:
    kinds = (CheckpointKind.SAFETENSORS, CheckpointKind.SAFETENSORS_SHARDED)
    if checkpoint.kind in kinds and checkpoint.config is not None and checkpoint.parts and "format" not in checkpoint.metadata:
        text = "The safetensors metadata lacks the tag `format`, without which some loaders refuse the file."
        yield Finding("no-format-tag", Severity.INFO, text, "Merging writes it with the tag.")
