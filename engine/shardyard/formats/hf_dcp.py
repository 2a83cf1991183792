"""Reads folders of torch.distributed.checkpoint's Hugging Face writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardyard.checkpoint import Checkpoint
from shardyard.errors import UsageError
from shardyard.formats.folder import Folder
from shardyard.formats.registry import Candidate, OpenOptions


class _Format:
    name = "hf_dcp"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        return ()

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        raise UsageError(f"{candidate.path} is no checkpoint of this kind.", path=str(candidate.path))


FORMAT = _Format()
