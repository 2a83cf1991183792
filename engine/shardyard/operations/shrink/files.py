"""Which files a shrink looks at: weights by their names, never what addresses bytes, and a run's own state only when named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from shardyard.errors import UsageError
from shardyard.formats.side_files import is_training_file
from shardyard.text import printable

PATTERNS = (
    "pytorch_model*.bin", "adapter_model.bin", "*.pt", "*.pth", "*.ckpt", "*.safetensors", "layer_*-model_states.pt",
)  # fmt: skip
_NEVER = re.compile(r".*\.distcp|\.metadata|.*\.shardyard-partial|.*\.shardyard-old")
_STEP = re.compile(r"(?:global_step|step[-_]?)\d+\w*|iter_\d+")
_STATES = re.compile(r"(?:.*_)?mp_rank_\d+.*_(?:model|optim)_states\.pt|zero_pp_rank_.*\.pt")
_LAYER = re.compile(r"layer_\d+-model_(?:\d+-)?(?:model_)?states\.pt")
MOST_FILES = 200_000


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file of a source, or a link to one."""

    path: str
    """Absolute, links not resolved."""
    name: str
    """Relative to its source's folder, as the output has it."""
    wanted: bool
    """Whether its name is one that is shrunk."""
    is_link: bool


def files_of(sources: Sequence[str], pattern: str | None) -> list[Found]:
    """All files of the sources, the wanted ones marked.

    Raises:
        UsageError: a source is not there, or two have one name.
    """
    found: list[Found] = []
    names: dict[str, str] = {}
    for source in sources:
        path = os.path.abspath(source)
        if not os.path.exists(path):
            raise UsageError(f"There is no file or folder {printable(path)}.", path=path)
        base = os.path.basename(path)
        if len(sources) > 1 and names.setdefault(base, path) != path:
            raise UsageError(f"Two of the sources are called {printable(base)}; shrink them one by one.", path=path)
        prefix = f"{base}/" if len(sources) > 1 and os.path.isdir(path) else ""
        if os.path.isdir(path):
            found.extend(_walk(path, prefix, pattern))
        else:
            found.append(Found(path, base, True, os.path.islink(path)))
    return found


def _walk(root: str, prefix: str, pattern: str | None) -> Iterator[Found]:
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not _NEVER.fullmatch(f))
        inside = os.path.relpath(folder, root)
        parts = () if inside == "." else Path(inside).parts
        stepped = any(_STEP.fullmatch(part) for part in parts) or (bool(parts) and _holds_states(names))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            count += 1
            if count > MOST_FILES:
                raise UsageError(f"{printable(root)} holds more than {MOST_FILES} files; name a folder in it.", path=root)
            relative = os.path.join(inside, name) if parts else name
            wanted = _wanted(name, relative, pattern, stepped=stepped)
            yield Found(path, prefix + relative, wanted, os.path.islink(path))


def linked_folders(sources: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(path, name in the output) of links to folders: they are not followed, and stay links."""
    for source in sources:
        prefix = f"{os.path.basename(source)}/" if len(sources) > 1 else ""
        for folder, folders, _ in os.walk(source):
            for name in folders:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    yield path, prefix + os.path.relpath(path, source)


def _holds_states(names: Sequence[str]) -> bool:
    """Whether a folder is a step of DeepSpeed's, or one that torch.distributed.checkpoint addresses by bytes."""
    return ".metadata" in names or any(_STATES.fullmatch(name) for name in names)


def _wanted(name: str, relative: str, pattern: str | None, *, stepped: bool) -> bool:
    if _NEVER.fullmatch(name):
        return False
    if pattern is not None:
        return fnmatch(name, pattern) or fnmatch(relative, pattern)
    if is_training_file(name):
        return False
    if stepped:
        return _LAYER.fullmatch(name) is not None
    return any(fnmatch(name, p) for p in PATTERNS)
