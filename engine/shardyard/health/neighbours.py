"""What lies beside a checkpoint: a second set of weights, training steps, a staging folder with the missing half."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Finding, Severity
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face.index_file import INDEX_NAME, SHARD_NAME
from shardyard.health.words import listing

HUB_KINDS = (
    CheckpointKind.SAFETENSORS,
    CheckpointKind.SAFETENSORS_SHARDED,
    CheckpointKind.TORCH,
    CheckpointKind.TORCH_SHARDED,
)
"""Weights as a model loader opens them by their folder."""
_STEP = re.compile(r"(?:global_step|step[_-]?|iter_?)\d+")
_SETS = (
    ("model.safetensors", "model", ".safetensors"),
    ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model", ".safetensors"),
    ("pytorch_model.bin", "pytorch_model", ".bin"),
    ("diffusion_pytorch_model.bin", "diffusion_pytorch_model", ".bin"),
)
"""Sets of weights that one loader would look for, the one it takes first at the top: single files, then shards."""
MOST_SIBLINGS = 200


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Competing sets of weights, and staging folders that hold what is missing."""
    folder = folder_of(checkpoint)
    if checkpoint.kind in HUB_KINDS:
        yield from _competing(folder)
    missing = [p for f in checkpoint.findings if f.code in ("missing-rank", "missing-shard", "missing-metadata") for p in f.paths]
    if missing or any(f.code in ("missing-rank", "missing-shard") for f in checkpoint.findings):
        yield from _staging(checkpoint, folder, missing)


def folder_of(checkpoint: Checkpoint) -> Folder:
    """The folder that a checkpoint is, or lies in."""
    path = checkpoint.path
    return Folder(path if path.is_dir() else path.parent)


def training_steps(checkpoint: Checkpoint) -> list[str]:
    """Names of the folders of training steps beside the weights, the newest last."""
    names = [n for n in folder_of(checkpoint).folders if _STEP.fullmatch(n)]
    return sorted(names, key=lambda n: (len(n), n))


def holds_masters(checkpoint: Checkpoint, step: str) -> bool:
    """Whether a step folder beside the weights holds the optimizer's files, by their names alone."""
    folder = folder_of(checkpoint).sub(step)
    return "zero" in folder.folders or any(n.endswith("_optim_states.pt") for n in folder.files)


def weight_sets(folder: Folder) -> list[str]:
    """The sets of weights that loaders would consider here, the one they take first; sharded ones by their index."""
    single: list[tuple[str, str]] = []
    for name, stem, suffix in _SETS:
        kind = "safetensors" if suffix == ".safetensors" else "torch"
        if name in folder.files:
            single.append((kind, name))
        index = next((n for n in folder.files if (m := INDEX_NAME.fullmatch(n)) and m["base"] == name), None)
        shards = [n for n in folder.files if (m := SHARD_NAME.fullmatch(n)) and m["stem"] == stem and m["suffix"] == suffix]
        # An index without one shard on disk is a left-over, not a set.
        if shards:
            single.append((kind, index or shards[0]))
    return [name for _, name in sorted(single, key=lambda s: s[0] != "safetensors")]


def _competing(folder: Folder) -> Iterator[Finding]:
    sets = weight_sets(folder)
    if len(sets) < 2:
        return
    text = f"{listing(sets, 4)} are rival sets of weights in one folder; loaders take {listing(sets[:1])} and ignore the rest."
    remedy = "`shardyard compare` tells whether they hold the same; delete the one that is not meant."
    others = sum(folder.files[n].nbytes for n in sets[1:])
    yield Finding("competing-weights", Severity.WARNING, text, remedy, tuple(sets), nbytes=others)


def _staging(checkpoint: Checkpoint, folder: Folder, missing: list[str]) -> Iterator[Finding]:
    """A save that was interrupted before its last rename leaves part of its files in a folder beside the final one."""
    for root in (folder.path, folder.path.parent):
        for sibling in _siblings(root):
            inside = _files_below(sibling)
            held = sorted(inside & {Path(m).name for m in missing})
            if held:
                name = sibling.name
                text = f"{listing([name])} beside {listing([root.name])} holds {listing(held)}, which is missing here: "
                text += "an interrupted save left part of its files in its staging folder."
                remedy = f"Give both folders: shardyard merge {_quoted(checkpoint.path)} {_quoted(sibling)} -o OUT."
                yield Finding("staging-sibling", Severity.WARNING, text, remedy, (name,))
                return


def _quoted(path: Path) -> str:
    return listing([path.name or str(path)])


def _siblings(root: Path) -> list[Path]:
    """Folders that a saver would have staged `root` in."""
    name = re.escape(root.name)
    staged = re.compile(rf"(?:\.?_?tmp[-_.]?{name}|{name}[-_.](?:tmp|temp|partial|staging|incomplete)|\.{name}.*)", re.IGNORECASE)
    around = Folder(root.parent)
    return [around.path / n for n in list(around.folders)[: MOST_SIBLINGS * 10] if n != root.name and staged.fullmatch(n)][:5]


def _files_below(path: Path) -> set[str]:
    """Names of files in a folder and one level below."""
    folder = Folder(path)
    names = set(folder.files)
    for name in list(folder.folders)[:MOST_SIBLINGS]:
        names.update(folder.sub(name).files)
    return names
