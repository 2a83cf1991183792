"""Weights as model hubs lay them out: one safetensors file, or shards with or without an index, safetensors or torch.

The index is the authority on which file holds a tensor, and the files' own headers are checked against it both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Usage
from shardyard.files import FileHandles
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face.index_file import INDEX_NAME, MOST_INDEX_BYTES, SHARD_NAME, shard_names_in
from shardyard.formats.hugging_face.sharded_set import open_set
from shardyard.formats.model_config import find_config
from shardyard.formats.safetensors.file import open_safetensors
from shardyard.formats.side_files import TRAINING_STATE

_SINGLE = re.compile(r".*\.safetensors", re.IGNORECASE)


class ModelFolder:
    """Single safetensors files and sharded sets of a folder."""

    name = "model folder"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """Sharded sets first, then each safetensors file that is in none."""
        left = {n for n in unclaimed if not folder.entries[n].is_dir}
        for candidate in (*_indexed(folder, left), *_numbered(folder, left)):
            left.difference_update(candidate.files)
            yield candidate
        for name in sorted(left):
            if _SINGLE.fullmatch(name) and not TRAINING_STATE.fullmatch(name):
                path = folder.entries[name].path
                yield Candidate(self, folder, Path(path), CheckpointKind.SAFETENSORS, (name,))

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the headers of all files of the set."""
        if candidate.kind is CheckpointKind.SAFETENSORS:
            return _open_single(candidate, options.handles)
        return open_set(candidate, options)


FORMAT = ModelFolder()


def _kind_of(name: str) -> CheckpointKind:
    return CheckpointKind.SAFETENSORS_SHARDED if name.endswith(".safetensors") else CheckpointKind.TORCH_SHARDED


def _indexed(folder: Folder, left: set[str]) -> Iterator[Candidate]:
    """One candidate for each index, with the files that it names and the numbered files of the same name."""
    for name in sorted(left):
        match = INDEX_NAME.fullmatch(name)
        entry = folder.files.get(name)
        if match is None or entry is None:
            continue
        base = match["base"]
        stem, _, suffix = base.rpartition(".")
        numbered = [n for n in left if _same_set(n, stem, f".{suffix}")]
        named: list[str] = []
        if entry.nbytes <= MOST_INDEX_BYTES:
            named = [n for n in shard_names_in(folder.small_file(name, MOST_INDEX_BYTES) or b"") if n in left]
        files = tuple(dict.fromkeys((name, *named, *sorted(numbered))))
        left.difference_update(files)
        yield Candidate(FORMAT, folder, folder.path, _kind_of(base), files, details={"index": name, "base": base})


def _same_set(name: str, stem: str, suffix: str) -> bool:
    match = SHARD_NAME.fullmatch(name)
    return match is not None and match["stem"] == stem and match["suffix"] == suffix


def _numbered(folder: Folder, left: set[str]) -> Iterator[Candidate]:
    """One candidate for each group of numbered files that no index names."""
    groups: dict[tuple[str, int, str], list[str]] = {}
    for name in sorted(left):
        match = SHARD_NAME.fullmatch(name)
        if match is not None and not TRAINING_STATE.fullmatch(name):
            groups.setdefault((match["stem"], int(match["count"]), match["suffix"]), []).append(name)
    for (stem, count, suffix), names in groups.items():
        details = {"base": stem + suffix, "count": count}
        yield Candidate(FORMAT, folder, folder.path, _kind_of(suffix), tuple(names), details=details)


def _open_single(candidate: Candidate, handles: FileHandles) -> Checkpoint:
    name = candidate.files[0]
    entry = candidate.folder.entries[name]
    file = open_safetensors(handles, entry.path)
    weights = sum(e.end - e.begin for e in file.header.entries.values() if e.end >= e.begin)
    config, config_folder = find_config(candidate.folder, above=False)
    return Checkpoint(
        candidate.path,
        CheckpointKind.SAFETENSORS,
        [FileEntry(name, file.header.nbytes, "weights")],
        {"model": Part("model", lambda: file.tensors, model=True)},
        "model",
        findings=list(file.findings),
        usage=Usage(weights=weights, other=max(0, file.header.nbytes - weights)),
        config=config,
        config_folder=config_folder,
        checked={"headers", "shapes"},
        metadata=file.metadata,
    )
