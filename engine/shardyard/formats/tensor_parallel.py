"""Sets of tensor-parallel files: each file has a part of every tensor, and the axes of the cuts are not stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardyard.checkpoint import Checkpoint
from shardyard.errors import UnsupportedError
from shardyard.formats.folder import Folder
from shardyard.formats.registry import Candidate, OpenOptions


class TensorParallel:
    """The reader of tensor-parallel sets that are not DeepSpeed's."""

    name = "tensor-parallel"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        return ()

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        raise UnsupportedError("This is no tensor-parallel set.", code="unsupported", path=str(candidate.path))


FORMAT = TensorParallel()
