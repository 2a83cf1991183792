"""Equal copies of tied weights in a folder, for `shrink --dedupe-tied`: config.json says which names are one, bytes decide.

Only safetensors files lose a copy, since a loader that follows config.json restores it.  In a torch file both names stay, on one
storage.  A copy whose bytes differ is kept, and said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardyard.errors import CheckpointError
from shardyard.files import FileHandles
from shardyard.formats.declared_ties import declared_ties
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face.index_file import MOST_INDEX_BYTES, SHARD_NAME
from shardyard.formats.model_config import find_config
from shardyard.formats.sniff import Content, sniff_file
from shardyard.operations.shrink.copying import equal_ranges
from shardyard.operations.shrink.meter import Meter
from shardyard.operations.shrink.safetensors import Whole, places
from shardyard.text import printable


@dataclass(slots=True)
class Tied:
    """What is to be done in one folder."""

    drop: dict[str, dict[str, str]] = field(default_factory=dict)
    """By file: alias to owner, for copies to leave out."""
    indexes: dict[str, bytes] = field(default_factory=dict)
    """Indexes that must be written anew, with their new bytes."""
    differing: list[tuple[str, str]] = field(default_factory=list)
    """(alias, owner) that config.json ties and whose bytes differ."""


def tied_copies(handles: FileHandles, folder: str, paths: Sequence[str], meter: Meter | None) -> Tied:
    """Find the copies among these files of one folder.

    Args:
        meter: compares the bytes and counts them; without one (a plan), equal sizes are believed for now.
    """
    found = Tied()
    config, _ = find_config(Folder(folder), above=False)
    for members in _sets(paths).values():
        stored: dict[str, Whole] = {}
        for path in members:
            stored.update(_stored(handles, path))
        shapes = {name: whole.entry.shape for name, whole in stored.items()}
        for owner, *aliases in declared_ties(config, shapes):
            for alias in aliases:
                _pair(handles, found, stored[owner], stored[alias], owner, alias, meter)
    if found.drop:
        _indexes(folder, found)
    return found


def _stored(handles: FileHandles, path: str) -> dict[str, Whole]:
    """The tensors of a safetensors file; nothing of any other file, or of a damaged one."""
    try:
        return places(handles, path) if sniff_file(handles, path).content is Content.SAFETENSORS else {}
    except CheckpointError:
        return {}


def _sets(paths: Sequence[str]) -> dict[str, list[str]]:
    """The files by the set of shards that they belong to; a file that is no shard is a set of its own."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name = os.path.basename(path)
        shard = SHARD_NAME.fullmatch(name)
        found.setdefault(f"{shard['stem']} of {shard['count']}{shard['suffix']}" if shard else name, []).append(path)
    return found


def _pair(handles: FileHandles, found: Tied, a: Whole, b: Whole, owner: str, alias: str, meter: Meter | None) -> None:
    same = (a.entry.dtype, a.run.nbytes) == (b.entry.dtype, b.run.nbytes)
    if same and meter is not None:
        same = equal_ranges(handles, a.run, b.run, meter, counted=False)
    if not same:
        found.differing.append((alias, owner))
        return
    found.drop.setdefault(b.run.path, {})[alias] = owner


def _indexes(folder: str, found: Tied) -> None:
    """New bytes for each index that names a dropped copy."""
    dropped = {alias for aliases in found.drop.values() for alias in aliases}
    sizes = _sizes(found)
    for name, entry in Folder(folder).files.items():
        if not name.endswith(".safetensors.index.json") or entry.nbytes > MOST_INDEX_BYTES:
            continue
        with open(entry.path, "rb") as file:
            raw = file.read()
        try:
            index = json.loads(raw)
            weights = index["weight_map"]
            kept = {k: v for k, v in weights.items() if k not in dropped}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if len(kept) == len(weights):
            continue
        index["weight_map"] = kept
        metadata = index.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("total_size"), int):
            # Copies were counted once or each: the sum of what is stored now is right either way.
            total = sum(size for tensor, size in sizes.items() if tensor not in dropped)
            metadata["total_size"] = min(metadata["total_size"], total) if total else metadata["total_size"]
        found.indexes[entry.path] = (json.dumps(index, indent=2) + "\n").encode()


def _sizes(found: Tied) -> dict[str, int]:
    with FileHandles() as handles:
        sizes: dict[str, int] = {}
        folder = {os.path.dirname(path) for path in found.drop}
        for place in folder:
            for name in os.listdir(place):
                if name.endswith(".safetensors") and SHARD_NAME.fullmatch(name):
                    stored = _stored(handles, os.path.join(place, name))
                    sizes.update({tensor: whole.run.nbytes for tensor, whole in stored.items()})
    return sizes


def differing_message(alias: str, owner: str) -> str:
    """What to say of a copy that is none."""
    return f"config.json ties {printable(alias, 120)} to {printable(owner, 120)}, but their values differ; both were kept."
