"""Where an output goes: what OUT means, whether it may be written, and the staging folder beside it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardyard.errors import NoRoomError, OutputExistsError, ShardyardError, UsageError
from shardyard.files import FileHandles
from shardyard.formats.sniff import Content, sniff_file
from shardyard.text import printable

MARKER = ".shardyard.json"
PARTIAL, OLD = ".shardyard-partial", ".shardyard-old"
RESERVED = (PARTIAL, OLD)
"""Endings of what lies beside an output while it is made: healing removes such folders, so no output may be called so."""
FILE_SUFFIXES = {".safetensors": "safetensors", ".bin": "torch", ".pt": "torch", ".pth": "torch"}


@dataclass(frozen=True, slots=True)
class Place:
    """The places that an output has while it is made. OUT is a folder unless its ending says a file."""

    out: Path
    """Absolute; the final name."""
    single: bool
    """OUT is one file."""

    @classmethod
    def of(cls, out: str | os.PathLike[str]) -> Place:
        path = Path(os.path.abspath(out))
        if not path.name:
            raise UsageError("The output cannot be the root folder.")
        if path.name.endswith(RESERVED):
            text = f"{printable(path.name)} ends like the places of unfinished and replaced outputs; choose another name."
            raise UsageError(text, path=str(path))
        # A link to a folder means the folder it leads to: the rename must happen on that file system.
        if path.is_symlink():
            path = Path(os.path.realpath(path))
        return cls(path, path.suffix.lower() in FILE_SUFFIXES)

    @property
    def staging(self) -> Path:
        """Everything that is unfinished; one deterministic folder for each output."""
        return self.out.with_name(self.out.name + PARTIAL)

    @property
    def files(self) -> Path:
        """The folder in staging that the output's files are made in."""
        return self.staging / "out"

    @property
    def old(self) -> Path:
        """Where an output that is replaced waits until the new one is in place."""
        return self.out.with_name(self.out.name + OLD)

    @property
    def format(self) -> str | None:
        """The format that the ending says."""
        return FILE_SUFFIXES[self.out.suffix.lower()] if self.single else None


def check_free(place: Place, *, overwrite: bool, sources: list[str]) -> None:
    """Refuse an OUT that is there and may not be replaced, or whose folder cannot be written.

    Raises:
        OutputExistsError: it is there.
        UsageError: it is a source, or lies where nothing can be made.
    """
    out = place.out
    if not out.exists() and place.old.exists():
        out = place.old  # a crash between two renames left it there; it is put back before anything is written
    if os.path.lexists(out):
        check_existing(place, out, overwrite=overwrite)
        real = os.path.realpath(out)
        read = {os.path.realpath(s) for s in sources}
        if any(s == real or s.startswith(real + os.sep) for s in read):
            raise UsageError(f"{printable(str(out))} holds what is to be read; choose another output.", path=str(out))
        if place.single and any(real.startswith(s + os.sep) for s in read):
            raise UsageError(f"{printable(str(out))} lies in what is to be read; choose another output.", path=str(out))
        if os.path.ismount(out):
            raise UsageError(f"{printable(str(out))} is a mount point; choose a folder in it.", path=str(out))
    folder = place.out.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"{printable(str(folder))} is not a folder; choose another output.", path=str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NoRoomError(f"{printable(str(folder))} cannot be written to; choose another output.", path=str(folder))


def check_existing(place: Place, out: Path, *, overwrite: bool) -> None:
    """Refuse what is in the output's place and may not be replaced.

    Raises:
        OutputExistsError: it holds something, and replacing was not asked for, or would take what is not ours.
    """
    shown = printable(str(place.out))
    if place.single:
        if out.is_dir():
            raise OutputExistsError(f"{shown} is a folder; give a file in it, or another name.", path=str(out))
        if not overwrite:
            raise OutputExistsError(f"{shown} is there already; choose another name or add --overwrite.", path=str(out))
        if not _is_weights(out):
            raise OutputExistsError(f"{shown} holds no weights that this program wrote; choose another name.", path=str(out))
        return
    if not out.is_dir():
        raise OutputExistsError(f"{shown} is a file; choose a folder that is missing or empty.", path=str(out))
    there = set(os.listdir(out))
    if not there:
        return
    ours = written_files(out)
    if not overwrite:
        hint = " or add --overwrite" if ours is not None else ""
        raise OutputExistsError(f"{shown} is there already and not empty; choose another folder{hint}.", path=str(out))
    others = sorted(there - (ours or set()) - {MARKER}) if ours is not None else sorted(there)
    if others:
        raise OutputExistsError(
            f"{shown} holds files that this program did not write, such as {printable(others[0], 80)}; choose another folder.",
            path=str(out),
        )


def _is_weights(path: Path) -> bool:
    """Whether a file is of a container that this program writes; one file has no marker that tells more."""
    try:
        with FileHandles() as handles:
            return sniff_file(handles, str(path)).content in (Content.SAFETENSORS, Content.ZIP)
    except ShardyardError:
        return False


def written_files(folder: Path) -> set[str] | None:
    """Top-level names that a folder's marker says were written there; None if it has no marker of ours."""
    marker = read_marker(folder)
    files = marker.get("files") if marker is not None else None
    return {str(name).partition("/")[0] for name in files} if isinstance(files, dict) else None


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The folder's `.shardyard.json`; None if there is none that can be read."""
    try:
        found = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
