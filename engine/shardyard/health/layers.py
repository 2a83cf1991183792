"""Whether the numbered layers are all there: a gap, or fewer than config.json says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Finding, Severity
from shardyard.formats.model_config import text_part
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS
from shardyard.health.words import listing

_LAYER = re.compile(r"(?P<head>(?:[^.]+\.)*?(?:layers?|h|blocks?))\.(?P<number>\d{1,5})\.")
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_KINDS = (*HUB_KINDS, CheckpointKind.DCP, CheckpointKind.HF_DCP, CheckpointKind.FSDP_RANKS)


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Gaps in the numbers of a stack of layers."""
    if checkpoint.kind not in _KINDS or checkpoint.config is None or not checkpoint.complete:
        return
    stacks: dict[str, set[int]] = {}
    for name in facts.model_tensors(checkpoint):
        match = _LAYER.match(name)
        if match is not None:
            stacks.setdefault(match["head"], set()).add(int(match["number"]))
    expected = _expected(checkpoint)
    for head, numbers in stacks.items():
        gaps = sorted(set(range(max(numbers) + 1)) - numbers)
        if gaps:
            yield _finding(f"{listing([head])} lacks layer {listing([str(g) for g in gaps], 8)} of {max(numbers) + 1}.")
        elif expected is not None and len(stacks) == 1 and len(numbers) < expected:
            yield _finding(f"{listing([head])} has {len(numbers)} layers; config.json says {expected}.")


def _expected(checkpoint: Checkpoint) -> int | None:
    config = text_part(checkpoint.config or {})
    values = [config.get(key) for key in _COUNTS]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)


def _finding(text: str) -> Finding:
    return Finding("missing-tensor", Severity.WARNING, text, "Fetch the missing part, or the right config.json.", sure=False)
