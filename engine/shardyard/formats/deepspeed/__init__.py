"""DeepSpeed checkpoints of every stage and version: a folder of rank files as one catalogue of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardyard.checkpoint import Checkpoint
from shardyard.errors import UnsupportedError
from shardyard.formats.folder import Folder
from shardyard.formats.registry import Candidate, OpenOptions


class DeepSpeed:
    """The reader of DeepSpeed folders."""

    name = "deepspeed"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        return ()

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        raise UnsupportedError("This is no DeepSpeed folder.", code="unsupported", path=str(candidate.path))


FORMAT = DeepSpeed()
