"""One folder, looked at by all formats: the checkpoints in it, and the names that belong to none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardyard.checkpoint import CheckpointKind
from shardyard.errors import ShardyardError
from shardyard.files import FileHandles
from shardyard.formats.candidate import Candidate
from shardyard.formats.folder import Folder
from shardyard.formats.registry import formats
from shardyard.formats.side_files import TRAINING_STATE, is_training_file
from shardyard.formats.sniff import HEAD, Content, sniff

SINGLES = (CheckpointKind.TORCH, CheckpointKind.SAFETENSORS, CheckpointKind.LORA)
_CALLED_BY_FOLDER = re.compile(
    r"(?:model|diffusion_pytorch_model|adapter_model|pytorch_lora_weights)\.safetensors"
    r"|(?:pytorch_model|pytorch_model_fsdp|diffusion_pytorch_model|adapter_model|pytorch_lora_weights)\.bin"
)
"""Names that stand for their folder: a model that a loader opens by the folder's path."""
_MEANT = re.compile(r"(?:pytorch_model|model|adapter|diffusion|consolidated|tf_model|weights).*", re.IGNORECASE)
LOADERS_TAKE = (
    CheckpointKind.SAFETENSORS,
    CheckpointKind.SAFETENSORS_SHARDED,
    CheckpointKind.TORCH,
    CheckpointKind.TORCH_SHARDED,
)
"""The order in which loaders look for weights in a folder: the first that is there."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one folder holds."""

    folder: Folder
    candidates: tuple[Candidate, ...]
    """Checkpoints, the one that the folder's own path means first."""
    unclaimed: tuple[str, ...]
    """Names, of files and sub folders, that belong to none of them."""
    problems: tuple[str, ...] = ()
    """Sentences about what could not be looked at."""

    @property
    def meant(self) -> tuple[Candidate, ...]:
        """The checkpoints that the folder's own path can mean."""
        return tuple(c for c in self.candidates if c.path == self.folder.path)


def look(folder: Folder) -> Look:
    """Let all formats look at a folder; names only, and a few small files."""
    unclaimed = dict.fromkeys(folder.entries)
    found: list[Candidate] = []
    problems = [folder.unreadable] if folder.unreadable else []
    for reader in formats():
        try:
            candidates = tuple(reader.recognise(folder, dict(unclaimed)))
        except ShardyardError as error:
            problems.append(error.message)
            continue
        for candidate in candidates:
            found.append(candidate)
            for name in (*(f.partition("/")[0] for f in candidate.files), *candidate.folders):
                entry = folder.entries.get(name)
                if entry is not None and (not entry.is_dir or name in candidate.folders):
                    unclaimed.pop(name, None)
    kept = _without_side_files(_without_strangers(found, folder), folder)
    dropped = {name for c in found if c not in kept for name in c.files}
    unclaimed.update(dict.fromkeys(n for n in dropped if n in folder.entries))
    return Look(folder, tuple(_called_by_folder(kept, folder)), tuple(unclaimed), tuple(problems))


def _without_side_files(candidates: Sequence[Candidate], folder: Folder) -> list[Candidate]:
    """Leave out a run's optimizer, scheduler and random state: they go with the model, and are one of their own only alone."""
    models = [c for c in candidates if not all(is_training_file(f.rpartition("/")[2]) for f in c.files) or c.kind not in SINGLES]
    if models:
        return models
    return [c for c in candidates if any(TRAINING_STATE.fullmatch(f) for f in c.files)]


def _without_strangers(candidates: Sequence[Candidate], folder: Folder) -> list[Candidate]:
    """Leave out files that have a checkpoint's ending by chance: firmware, word lists, other people's formats."""
    with FileHandles(2) as handles:
        return [c for c in candidates if c.kind not in SINGLES or len(c.files) != 1 or not _stranger(c, folder, handles)]


def _stranger(candidate: Candidate, folder: Folder, handles: FileHandles) -> bool:
    name = candidate.files[0]
    entry = folder.entries.get(name)
    if entry is None or not entry.is_file or not name.lower().endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")):
        return False
    try:
        seen = sniff(handles.read(entry.path, 0, min(HEAD, entry.nbytes)), entry.nbytes)
    except ShardyardError:
        return False
    if seen.meant_as_checkpoint or _MEANT.fullmatch(name):
        return False
    return seen.content is not Content.UNKNOWN or name.lower().endswith((".bin", ".pkl"))


def _called_by_folder(candidates: Sequence[Candidate], folder: Folder) -> list[Candidate]:
    """Give well-known single files their folder's path, unless another checkpoint there has it by right."""
    owners = [c for c in candidates if c.path == folder.path and c.kind not in LOADERS_TAKE]
    rivals = [c for c in candidates if c.kind in LOADERS_TAKE and (c.path == folder.path or _well_known(c))]
    adapters = [c for c in candidates if c.kind is CheckpointKind.LORA and _well_known(c)]
    first = owners[0] if owners else min(rivals, key=lambda c: LOADERS_TAKE.index(c.kind)) if rivals else None
    if first is None and adapters:
        first = adapters[0]
    renamed: list[Candidate] = []
    for candidate in candidates:
        if candidate is first:
            renamed.insert(0, replace(candidate, path=folder.path))
        elif candidate.path == folder.path and candidate in rivals:
            renamed.append(replace(candidate, path=_own_path(candidate, folder)))
        else:
            renamed.append(candidate)
    return renamed


def _well_known(candidate: Candidate) -> bool:
    return any(_CALLED_BY_FOLDER.fullmatch(f) for f in candidate.files)


def _own_path(candidate: Candidate, folder: Folder) -> Path:
    """A sharded set that is not the folder's main one is called by its index, else by its first file."""
    name = next((f for f in candidate.files if f.endswith(".json")), candidate.files[0])
    entry = folder.entries.get(name)
    return Path(entry.path) if entry is not None else folder.path / name
