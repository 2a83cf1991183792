"""A single torch file as a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardyard.checkpoint import Checkpoint
from shardyard.errors import UsageError
from shardyard.formats.folder import Folder
from shardyard.formats.registry import Candidate, OpenOptions


class TorchSingle:
    """Every torch file that belongs to no larger checkpoint."""

    name = "torch"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """The torch files among the unclaimed names."""
        return ()

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the file's directory and pickle."""
        raise UsageError(f"{candidate.path} is no torch file.")


FORMAT = TorchSingle()
