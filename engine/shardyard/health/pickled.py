"""What a checkpoint's pickles refer to, where the reader has not said it: nothing was imported or called."""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint
from shardyard.findings import Finding
from shardyard.formats.pickle_globals import unsafe_findings


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Names that would run code, and classes of other software."""
    if not checkpoint.globals or any(f.code == "unsafe-pickle" for f in checkpoint.findings):
        return
    names: dict[tuple[str, str], int] = {}
    for path, count in checkpoint.globals.items():
        module, _, name = path.rpartition(".")
        names[(module, name)] = count
    yield from unsafe_findings(names, checkpoint.path.name)
