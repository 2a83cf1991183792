"""Stored bytes that no tensor uses: torch saves whole storages behind views, once for each file.

Told in three numbers: stored, touched, and what a shrink that keeps all sharing would leave.  Views that share a storage without
waste are sharing, not bloat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from shardyard.checkpoint import Checkpoint, CheckpointKind, Tensor
from shardyard.findings import Finding, Severity
from shardyard.formats.torch.sharing import StorageUse, analyse
from shardyard.health.words import listing, share, size

_KINDS = (CheckpointKind.TORCH, CheckpointKind.TORCH_SHARDED, CheckpointKind.LORA)
_NOTICED = 0.02
_NOTICED_BYTES = 1 << 10
"""Less than this, or than that share of a file, is not worth a warning."""
MOST_NAMED = 20


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """One finding a file whose storages hold more than its tensors use."""
    if checkpoint.kind not in _KINDS:
        return
    by_file: dict[str, list[StorageUse]] = {}
    for use in analyse(_everything(checkpoint)):
        by_file.setdefault(use.key[0], []).append(use)
    behind_views = 0
    for path, uses in by_file.items():
        behind_views += sum(u.wasted for u in uses)
        finding = _of_file(os.path.basename(path), uses)
        if finding is not None:
            yield finding
    unread = checkpoint.usage.wasted - behind_views
    if unread > 0:
        text = f"{size(unread)} are stored that nothing in the checkpoint refers to."
        yield Finding(
            "bloat", _severity(unread, unread + checkpoint.usage.weights), text, "`shardyard shrink` drops them.", nbytes=unread
        )
    checkpoint.checked.add("ties")


def _everything(checkpoint: Checkpoint) -> Iterable[Tensor]:
    seen: set[int] = set()
    for part in checkpoint.parts.values():
        for tensor in part.tensors.values():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _of_file(name: str, uses: list[StorageUse]) -> Finding | None:
    stored = sum(u.stored for u in uses)
    touched = sum(u.touched for u in uses)
    wasted = stored - touched
    if wasted <= 0:
        return None
    ideal = sum(u.ideal for u in uses)
    worst = sorted((u for u in uses if u.wasted), key=lambda u: -u.wasted)
    tensors = [n for u in worst for n in u.names][:MOST_NAMED]
    text = (
        f"{listing([name])} stores {size(stored)} for tensors that use {size(touched)}: {size(wasted)} ({share(wasted, stored)}) "
        f"is wasted, because whole storages were saved behind views such as {listing(tensors[:1])}."
    )
    remedy = f"`shardyard shrink` writes it again in {size(ideal)}, values and ties unchanged."
    return Finding("bloat", _severity(wasted, stored), text, remedy, (name,), tuple(tensors), wasted)


def _severity(wasted: int, stored: int) -> Severity:
    return Severity.WARNING if wasted >= max(_NOTICED_BYTES, _NOTICED * stored) else Severity.INFO
