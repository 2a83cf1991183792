"""Opening what was found: with the files beside it, by its content where its name misleads, and with its health."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardyard import health
from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Role, Tensor
from shardyard.discover.choose import NOTE, PIECE, find
from shardyard.discover.look import SINGLES, look
from shardyard.errors import COPY_AGAIN, CheckpointError, ShardyardError, UsageError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats import gguf, npz
from shardyard.formats.candidate import Candidate, Format, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face import folder as hf_folder
from shardyard.formats.model_config import NAME, find_config, read_config
from shardyard.formats.side_files import TRAINING_STATE, side_files
from shardyard.formats.sniff import Content, sniff_file
from shardyard.formats.torch import single as torch_single
from shardyard.text import printable

_STEP = re.compile(r"(?:checkpoint|global_step|step|iter)[-_]?(\d{1,12})")
"""Folders that trainers name after the step."""
_BY_CONTENT: dict[Content, tuple[Format, CheckpointKind]] = {
    Content.SAFETENSORS: (hf_folder.FORMAT, CheckpointKind.SAFETENSORS),
    Content.ZIP: (torch_single.FORMAT, CheckpointKind.TORCH),
    Content.PICKLE: (torch_single.FORMAT, CheckpointKind.TORCH),
    Content.TAR: (torch_single.FORMAT, CheckpointKind.TORCH),
    Content.GGUF: (gguf.FORMAT, CheckpointKind.GGUF),
    Content.NPY: (npz.FORMAT, CheckpointKind.NPZ),
}
_TRAINING_KINDS = frozenset(CheckpointKind) - {
    CheckpointKind.SAFETENSORS,
    CheckpointKind.SAFETENSORS_SHARDED,
    CheckpointKind.TORCH,
    CheckpointKind.TORCH_SHARDED,
    CheckpointKind.LORA,
    CheckpointKind.GGUF,
    CheckpointKind.NPZ,
    CheckpointKind.UNREADABLE,
}


def open_checkpoint(paths: Path | str | Sequence[Path | str], options: OpenOptions | None = None) -> Checkpoint:
    """Find and open the checkpoint that is meant, its health examined.

    Raises:
        UsageError: no such path, no checkpoint there, or several (AmbiguousError).
        CheckpointError: nothing can be said about it.
    """
    options = options or OpenOptions()
    candidate = find(paths)
    checkpoint = open_candidate(candidate, options)
    if options.tag is not None and options.tag not in (checkpoint.tag, candidate.folder.name):
        text = f"{printable(candidate.path.name)} has no steps to choose from; leave --tag {printable(options.tag, 80)} out."
        raise UsageError(text, path=str(candidate.path))
    if not isinstance(paths, (str, Path)) and len(paths) > 1:
        _refuse_strangers([Path(os.path.abspath(p)) for p in paths], candidate.folder, checkpoint)
    return checkpoint


_OF_THE_SET = ("weights", "masters+optimizer", "metadata", "index")
_POINTERS = ("latest", "latest_universal")


def _refuse_strangers(given: Sequence[Path], folder: Folder, checkpoint: Checkpoint) -> None:
    """Several folders are one checkpoint: one that adds no file to it was not meant, or is of another step or run.

    Raises:
        UsageError: for the first such folder.
    """
    files = [f.path for f in checkpoint.files if f.role in _OF_THE_SET and f.path not in _POINTERS]
    for path in given:
        near = [p for p in folder.paths if p == path or path in p.parents or p in path.parents]
        if not any(os.path.lexists(p / f) for p in near for f in files):
            step = f" ({printable(checkpoint.tag)})" if checkpoint.tag else ""
            raise UsageError(
                f"{printable(str(path))} holds no file of the checkpoint in {printable(str(folder.path))}{step}; "
                "give only the folders of one checkpoint and step.",
                path=str(path),
            )


def open_candidate(candidate: Candidate, options: OpenOptions) -> Checkpoint:
    """Open a candidate; errors as `open_checkpoint`."""
    actual, mislabelled = _by_content(candidate, options)
    checkpoint = actual.open(options)
    if mislabelled is not None:
        checkpoint.findings.append(mislabelled)
    note = candidate.details.get(NOTE)
    if isinstance(note, str):
        checkpoint.findings.append(Finding("other-level", Severity.INFO, note))
    piece = candidate.details.get(PIECE)
    if isinstance(piece, str):
        remedy = "Convert the whole set with the software that wrote it."
        checkpoint.findings.append(Finding("piece", Severity.WARNING, piece, remedy, blocks=Blocks.MERGE))
    _attach(checkpoint, candidate)
    checkpoint.findings[:] = health.findings(checkpoint)
    return checkpoint


def _by_content(candidate: Candidate, options: OpenOptions) -> tuple[Candidate, Finding | None]:
    """A single file whose content is another format's than its name's goes to that format."""
    if len(candidate.files) != 1 or candidate.kind not in (*SINGLES, CheckpointKind.GGUF, CheckpointKind.NPZ):
        return candidate, None
    entry = candidate.folder.entries.get(candidate.files[0])
    if entry is None or not entry.is_file:
        return candidate, None
    content = sniff_file(options.handles, entry.path).content
    reader, kind = _BY_CONTENT.get(content, (candidate.format, candidate.kind))
    if (
        kind is candidate.kind
        or candidate.kind is CheckpointKind.LORA
        or (content is Content.ZIP and kind is not CheckpointKind.TORCH)
    ):
        return candidate, None
    if candidate.kind is CheckpointKind.NPZ and content is Content.ZIP:
        return candidate, None
    text = f"{printable(candidate.files[0])} is a {_NAMES[kind]} file, whatever its name says."
    finding = Finding("wrong-type", Severity.INFO, text, "Give it the ending of its kind.", candidate.files)
    return replace(candidate, format=reader, kind=kind), finding


_NAMES = {
    CheckpointKind.SAFETENSORS: "safetensors",
    CheckpointKind.TORCH: "torch (pickle)",
    CheckpointKind.GGUF: "GGUF",
    CheckpointKind.NPZ: "NumPy",
}


def _attach(checkpoint: Checkpoint, candidate: Candidate) -> None:
    """Add what lies beside the weights: config.json, tokenizer, the run's own state."""
    folder = candidate.folder
    if checkpoint.config is None:
        above = checkpoint.kind in _TRAINING_KINDS
        checkpoint.config, checkpoint.config_folder = find_config(folder, above=above)
    if checkpoint.step is None and (match := _STEP.fullmatch(folder.name)):
        checkpoint.step = int(match[1])
    if candidate.path != folder.path:
        return
    _add_optimizer(checkpoint, folder)
    known = {f.path for f in checkpoint.files}
    extra = [f for f in side_files(folder) if f.path not in known]
    checkpoint.files.extend(extra)
    for file in extra:
        if file.role == "masters+optimizer":
            checkpoint.usage.optimizer += file.nbytes
        else:
            checkpoint.usage.other += file.nbytes


def _add_optimizer(checkpoint: Checkpoint, folder: Folder) -> None:
    """The run's optimizer state beside the weights, as a part for browsing: read when it is looked at."""
    names = [n for n in folder.files if TRAINING_STATE.fullmatch(n) and n.startswith("optimizer.")]
    if names and "optimizer" not in checkpoint.parts and not any(f.path in names for f in checkpoint.files):
        candidate = Candidate(torch_single.FORMAT, folder, folder.path / names[0], CheckpointKind.TORCH, (names[0],))
        checkpoint.parts["optimizer"] = Part("optimizer", lambda: _state(candidate), model=False)


def _state(candidate: Candidate) -> dict[str, Tensor]:
    """The tensors of an optimizer's file; none where it cannot be read, which a finding of its own would tell."""
    try:
        opened, _ = _by_content(candidate, OpenOptions())
        parts = opened.open().parts.values()
    except ShardyardError:
        return {}
    return {name: replace(t, role=Role.OPTIMIZER) for part in parts for name, t in part.tensors.items()}


def unreadable(candidate: Candidate, error: ShardyardError) -> Checkpoint:
    """What can be said of a checkpoint that could not be opened: the error, as a finding."""
    files = []
    for name in candidate.files:
        entry = candidate.folder.entries.get(name)
        files.append(FileEntry(name, entry.nbytes if entry else 0, "weights"))
    code = error.code if isinstance(error, CheckpointError) else "unsupported"
    problem, remedy = error.problem, error.remedy or _REMEDIES.get(code, "")
    path = candidate.folder.path / candidate.files[0] if len(candidate.files) == 1 else None
    if path is not None:
        what = _not_regular(path)
        if what:
            code, problem = "wrong-type", f"{printable(path.name)} is {what}."
            remedy = _REMEDIES[code]
    names = (printable(os.path.basename(error.path)),) if error.path else candidate.files[:1]
    finding = Finding(code, Severity.ERROR, problem, remedy, names, blocks=Blocks.MERGE)
    kind = CheckpointKind.UNREADABLE
    return Checkpoint(candidate.path, kind, files, {}, None, findings=[finding], checked={"headers"})


def config_only(folder: Folder) -> Checkpoint | None:
    """A folder that looks like a model and has no weights; None if it does not look like one."""
    if NAME not in folder.files:
        return None
    near = [c for c in look(folder.parent()).candidates if c.folder.path == folder.path.parent]
    where = f" The weights are one level up, in {printable(folder.path.parent.name)}." if near else ""
    text = f"{printable(folder.name)} holds only a model's configuration and no weights.{where}"
    remedy = "Merge the training checkpoint into weights, or fetch the weight files."
    finding = Finding("config-only", Severity.WARNING, text, remedy, (NAME,), blocks=Blocks.MERGE)
    kind = CheckpointKind.UNREADABLE
    return Checkpoint(folder.path, kind, side_files(folder), {}, None, findings=[finding], config=read_config(folder))


_REMEDIES = {
    "truncated": COPY_AGAIN,
    "corrupt": "Copy it again from where it was written; if that does not help, use another step.",
    "wrong-type": "Fetch the right file.",
}


def _not_regular(path: Path) -> str:
    """What a path is that is no regular file, as the end of a sentence; empty for regular files."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a broken link: what it points at does not exist" if path.is_symlink() else ""
    except OSError as error:
        return "a link that goes round in circles" if path.is_symlink() and not isinstance(error, PermissionError) else ""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "a folder, although its name looks like a file"
    what = next((name for test, name in _SPECIAL if test(mode)), "not a regular file")
    return f"{what}, not a regular file; it was not opened"


_SPECIAL = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))

__all__ = ["UsageError", "config_only", "open_candidate", "open_checkpoint", "unreadable"]
