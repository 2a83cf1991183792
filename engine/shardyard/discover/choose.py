"""Which checkpoint a path means.  Never a guess: one level too high or too low is found and said, several are listed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardyard.checkpoint import CheckpointKind
from shardyard.discover.look import LOADERS_TAKE, Look, look
from shardyard.discover.walk import walk
from shardyard.errors import AmbiguousError, UsageError
from shardyard.formats import gguf, npz
from shardyard.formats.candidate import Candidate, Format
from shardyard.formats.deepspeed.tags import pointer
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face import folder as hf_folder
from shardyard.formats.model_config import NAME as CONFIG_NAME
from shardyard.formats.torch import single as torch_single
from shardyard.text import printable

LEVELS_UP = 3
LEVELS_DOWN = 3
MOST_FOLDERS_DOWN = 2000
NOTE = "note"
"""Key in a candidate's details: a sentence about where it was found."""
PIECE = "piece"
"""Key in a candidate's details: a sentence about the one piece that was given."""


def find(paths: Path | str | Sequence[Path | str]) -> Candidate:
    """The checkpoint that is meant by one path, or by several folders that belong together.

    Raises:
        UsageError: there is no such path, or no checkpoint there.
        AmbiguousError: several qualify.
    """
    given = [Path(os.path.abspath(p)) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not given:
        raise UsageError("No path was given.")
    for path in given:
        if not os.path.lexists(path):
            raise UsageError(f"There is no {printable(str(path))}.", path=str(path))
    if len(given) == 1:
        path = given[0]
        return _of_folder(Folder(path)) if path.is_dir() else of_file(path)
    files = [p for p in given if not p.is_dir()]
    if files:
        text = "Several paths are one checkpoint only if all of them are folders; "
        raise UsageError(f"{text}{printable(str(files[0]))} is a file.", path=str(files[0]))
    return _of_folder(Folder(*given))


def of_file(path: Path) -> Candidate:
    """The checkpoint that a file belongs to, or is."""
    for level, parent in enumerate(list(path.parents)[: LEVELS_UP + 1]):
        inside = path.relative_to(parent).as_posix()
        for candidate in look(Folder(parent)).candidates:
            if inside in candidate.files or (level and inside.partition("/")[0] in candidate.folders):
                if candidate.kind is CheckpointKind.TENSOR_PARALLEL:
                    return enclosing(candidate.folder, look(candidate.folder)) or _piece(candidate, inside)
                return candidate if candidate.files == (inside,) or level == 0 else _note(candidate, path, "belongs to")
    return _alone(path)


def _alone(path: Path) -> Candidate:
    """A file that no format knows by its name: opened by its content."""
    folder = Folder(path.parent)
    if path.name not in folder.entries:
        raise UsageError(f"{printable(str(path))} cannot be looked at.", path=str(path))
    reader: Format = torch_single.FORMAT
    kind = _KINDS["torch"]
    for ending, (other, name) in _BY_ENDING.items():
        if path.name.lower().endswith(ending):
            reader, kind = other, _KINDS[name]
    return Candidate(reader, folder, path, kind, (path.name,))


_KINDS = {k.value: k for k in CheckpointKind}
_BY_ENDING: dict[str, tuple[Format, str]] = {
    ".safetensors": (hf_folder.FORMAT, "safetensors"),
    ".gguf": (gguf.FORMAT, "gguf"),
    ".npz": (npz.FORMAT, "npz"),
    ".npy": (npz.FORMAT, "npz"),
}


def _of_folder(folder: Folder) -> Candidate:
    seen = look(folder)
    above = enclosing(folder, seen)
    if above is not None:
        return above
    if seen.meant:
        meant = _only(seen.meant, folder)
        if meant.kind in LOADERS_TAKE:
            _refuse_closed_steps(folder, meant)
        return meant
    if seen.candidates:
        return _only(seen.candidates, folder)
    return _below(folder, seen)


_STEP = re.compile(r"global_step\d+.*|pytorch_model_fsdp_\d+|iter_\d+|dist_ckpt|sharded_state_dict")


def _refuse_closed_steps(folder: Folder, meant: Candidate) -> None:
    """A gathered copy is not what is meant beside a step folder with masters, be that one closed to this user.

    Raises:
        UsageError: such a folder cannot be listed.
    """
    named = pointer(folder)
    for name in folder.folders:
        if _STEP.fullmatch(name) or (named is not None and name == named.tag):
            step = folder.sub(name)
            if not step.entries and step.unreadable:
                raise UsageError(
                    f"{step.unreadable} It may hold the masters: make it readable, or give the path of "
                    f"{printable(meant.files[0])} itself to take that copy.",
                    path=str(step.path),
                )


def _only(candidates: Sequence[Candidate], folder: Folder) -> Candidate:
    if len(candidates) == 1:
        return candidates[0]
    paths = [_shown(c, folder) for c in candidates]
    listed = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    raise AmbiguousError(
        f"{printable(folder.name) or '.'} holds {len(paths)} checkpoints ({listed}); give the path of one.",
        paths,
        path=str(folder.path),
    )


def _shown(candidate: Candidate, folder: Folder) -> str:
    try:
        return printable(candidate.path.relative_to(folder.path).as_posix())
    except ValueError:
        return printable(str(candidate.path))


def enclosing(folder: Folder, seen: Look) -> Candidate | None:
    """The checkpoint further up that a folder is a part of, if it means none of its own or only one piece of a set."""
    pieces = [c for c in seen.meant if c.kind is CheckpointKind.TENSOR_PARALLEL]
    if seen.meant and not pieces:
        return None
    above = claimed_above(folder)
    if above is None:
        return None
    if not pieces:
        return _note(above, folder.path, "is part of")
    if above.kind is not CheckpointKind.TENSOR_PARALLEL or len(above.files) < 2:
        return None
    return _piece(above, next((f for f in above.files if f.startswith(folder.name + "/")), folder.name))


def _piece(candidate: Candidate, given: str) -> Candidate:
    """A set of which only one file was given: half a model must not pass for a whole one."""
    count = len(candidate.files)
    if count < 2 or given not in candidate.files:
        return candidate
    text = f"{printable(given)} is piece {candidate.files.index(given) + 1} of {count}: each piece holds a part of every weight."
    return replace(candidate, details={**candidate.details, PIECE: text})


def claimed_above(folder: Folder) -> Candidate | None:
    """A checkpoint further up that has this folder as its own."""
    path = folder.path
    for parent in list(path.parents)[:LEVELS_UP]:
        inside = path.relative_to(parent).as_posix()
        first = inside.partition("/")[0]
        for candidate in look(Folder(parent)).candidates:
            if first in candidate.folders or any(f.startswith(inside + "/") for f in candidate.files):
                return candidate
    return None


def _below(folder: Folder, seen: Look) -> Candidate:
    """The one checkpoint further down."""
    found: list[Candidate] = []
    for count, visit in enumerate(walk(folder, depth=LEVELS_DOWN)):
        found.extend(visit.look.candidates)
        if count >= MOST_FOLDERS_DOWN:
            break
    # A folder's own path means its first checkpoint; what lies beside it there is named by its file.
    meant = [c for c in found if c.path == c.folder.path] or found
    if meant:
        return _note(_only(meant, folder), folder.path, "was given; the checkpoint is")
    name = printable(folder.name)
    if seen.problems:
        raise UsageError(seen.problems[0], path=str(folder.path))
    if CONFIG_NAME in folder.files:
        beside = look(folder.parent()).candidates
        where = f"; the weights are one level up, in {printable(folder.path.parent.name)}" if beside else ""
        raise UsageError(f"{name} holds only a model's configuration and no weights{where}.", path=str(folder.path))
    raise UsageError(f"There is no checkpoint in {name}.", path=str(folder.path))


def _note(candidate: Candidate, given: Path, relation: str) -> Candidate:
    """The candidate, with a sentence that tells where it was found."""
    if candidate.path == given:
        return candidate
    where = printable(os.path.relpath(candidate.path, given if given.is_dir() else given.parent))
    text = f"{printable(given.name)} {relation} {printable(candidate.path.name) if where.startswith('.') else where}."
    return replace(candidate, details={**candidate.details, NOTE: text})
