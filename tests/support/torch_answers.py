"""The torch fixtures with their right answers, and a torch file opened by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardyard.checkpoint import Checkpoint, CheckpointKind, Tensor
from shardyard.files import FileHandles
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.names import names_of
from shardyard.formats.torch.single import FORMAT
from shardyard.formats.torch.tensors import TensorValue
from support.checkpoints import cases


def torch_files(prefix: str = "a") -> Iterator[tuple[Path, dict[str, Any]]]:
    """(file, its entry in expected.json) for each torch file whose tensors are listed."""
    for case in cases("files", prefix):
        files = json.loads((case / "expected.json").read_text()).get("files")
        for name, entry in files.items() if isinstance(files, dict) else ():
            if entry.get("container") in ("zip", "legacy") and "tensors" in entry:
                yield case / name, entry


def open_file(path: Path, part: str | None = None) -> Checkpoint:
    """The file as a checkpoint, through its own format alone."""
    candidate = Candidate(FORMAT, Folder(path.parent), path, CheckpointKind.TORCH, (path.name,))
    return FORMAT.open(candidate, OpenOptions(part=part))


def everything(path: Path) -> list[Tensor]:
    """All tensors of the file by their full names; a name may come twice."""
    with FileHandles() as handles:
        file = open_torch(handles, str(path))
        return [file.tensor(leaf.name, leaf.value) for leaf in names_of(file.root).leaves if isinstance(leaf.value, TensorValue)]
