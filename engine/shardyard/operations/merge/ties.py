"""Tied weights in the output: which names are one tensor, which of them is kept, and which copies must be compared.

A name is dropped only where a loader will bring it back (config.json declares the tie) or the person asked for `once`.  Copies
that are stored separately are dropped on config.json's word alone, so the transfer compares their bytes with the owner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import DamagedError
from shardyard.formats.declared_ties import declared_ties, embedding_rank
from shardyard.text import printable


@dataclass(frozen=True, slots=True)
class TieGroup:
    """Names that are one tensor, by their stored names."""

    owner: str
    aliases: tuple[str, ...]
    declared: bool
    """config.json says so: a loader will restore the aliases."""
    compare: tuple[str, ...]
    """Aliases that are stored separately: their bytes must be shown to be equal before they are dropped."""


def tie_groups(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> list[TieGroup]:
    """All ties among these tensors: recorded ones, shared storages, and those that config.json declares."""
    declared = declared_ties(checkpoint.config, {name: t.shape for name, t in tensors.items()})
    parent: dict[str, str] = {}
    recorded_owner: set[str] = set()
    config_names: set[str] = {name for group in declared for name in group}
    for tie in checkpoint.ties:
        names = [n for n in tie.names if n in tensors]
        _join(parent, names)
        if tie.source == "recorded" and len(names) > 1:
            recorded_owner.add(names[0])
        if tie.source == "config":
            config_names.update(names)
    for group in declared:
        _join(parent, group)
    members: dict[str, list[str]] = {}
    for name in tensors:
        if name in parent:
            members.setdefault(_root(parent, name), []).append(name)
    embeds_tied = bool(declared)
    return [_group(names, tensors, recorded_owner, config_names, embeds_tied) for names in members.values() if len(names) > 1]


def _group(
    names: list[str], tensors: Mapping[str, Tensor], recorded: set[str], config_names: set[str], embeds_tied: bool
) -> TieGroup:
    owner = owner_of(names, recorded)
    # A recorded group around the input embedding is what config.json means, whatever the head is called.
    by_embedding = embeds_tied and any(embedding_rank(n) is not None for n in names)
    declared = by_embedding or all(n in config_names for n in names)
    shape, dtype = tensors[owner].shape, tensors[owner].dtype
    for name in names:
        if tensors[name].shape != shape or tensors[name].dtype != dtype:
            raise DamagedError(
                f"{printable(owner, 120)} and {printable(name, 120)} are tied but differ in shape or dtype; "
                "exclude one of them, or write both with --tied both.",
                code="tie-disagrees",
                tensors=[owner, name],
            )
    aliases = tuple(n for n in names if n != owner)
    compare = tuple(n for n in aliases if not same_bytes(tensors[owner], tensors[n]))
    return TieGroup(owner, aliases, declared, compare)


def owner_of(names: Iterable[str], recorded: Iterable[str] = ()) -> str:
    """The name that is kept: the recorded owner, else the input embedding, else the first in module order."""
    names = list(names)
    known = set(recorded)
    for name in names:
        if name in known:
            return name
    ranked = [(rank, k) for k, n in enumerate(names) if (rank := embedding_rank(n)) is not None]
    return names[min(ranked)[1]] if ranked else names[0]


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether both names read the very same stored bytes, so that nothing needs comparing."""
    if a.layout is b.layout or a is b:
        return True
    if a.storage is not None and b.storage is not None:
        x, y = a.storage, b.storage
        return (x.key, x.offset, x.strides, x.ops) == (y.key, y.offset, y.strides, y.ops)
    return False


def _root(parent: dict[str, str], name: str) -> str:
    while parent[name] != name:
        name = parent[name]
    return name


def _join(parent: dict[str, str], names: Iterable[str]) -> None:
    names = list(names)
    if len(names) < 2:
        return
    for name in names:
        parent.setdefault(name, name)
    first = _root(parent, names[0])
    for name in names[1:]:
        parent[_root(parent, name)] = first
