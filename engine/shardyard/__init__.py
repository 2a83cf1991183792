"""Shardyard: read, check, merge, shrink and compare training checkpoints without the training stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardyard.errors import ShardyardError
    from shardyard.library import OpenCheckpoint, StoredTensor, export, merge, open, scan

__all__ = ["OpenCheckpoint", "ShardyardError", "StoredTensor", "__version__", "export", "merge", "open", "scan"]


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use: `import shardyard` alone costs a millisecond."""
    if name == "ShardyardError":
        from shardyard.errors import ShardyardError

        return ShardyardError
    if name in __all__:
        from shardyard import library

        return getattr(library, name)
    raise AttributeError(f"module 'shardyard' has no attribute {name!r}")
