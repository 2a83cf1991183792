"""From masters to the whole set of names: frozen weights, buffers and aliases, each from where it is stored.

The state dict under `module` has every name of the model.  A name is, in this order: a master; a frozen weight with its own
pieces; a buffer; an alias, recorded in `shared_params` or seen as the same view of the same storage; or, at stages 0 to 2,
what `module` itself holds.  A placeholder that nothing explains is a name without data, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardyard.checkpoint import Role, Tensor, Tie
from shardyard.dtypes import BY_NAME
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.deepspeed.flat import layout_error
from shardyard.formats.deepspeed.reading import Reading, listed
from shardyard.text import printable

FROM_COPY = "from the 16-bit weights: the masters do not hold it"


@dataclass(slots=True)
class Stored:
    """What the model files hold beside the masters."""

    path: str
    """The model file to name in a refusal."""
    names: dict[str, Tensor | None]
    """Every name of the model, in its order; None for a placeholder of stage 3."""
    buffers: frozenset[str] | None
    """None: the version does not record them."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Alias to owner, as recorded."""
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    """Frozen weights that have pieces of their own."""
    left_out: bool = False
    """That frozen weights were left out on purpose: the placeholder of another name of one is not a loss."""

    def tensors(self) -> dict[str, Tensor]:
        """The names that have data, buffers marked."""
        buffers = self.buffers or frozenset()
        return {n: replace(t, role=Role.BUFFER) if n in buffers else t for n, t in self.names.items() if t is not None}


@dataclass(slots=True)
class Weights:
    """A whole set of names, with what ties them."""

    tensors: dict[str, Tensor]
    ties: list[Tie]


def assemble(reading: Reading, stored: Stored, masters: Mapping[str, Tensor]) -> Weights:
    """All names of the model with their data.

    Raises:
        DamagedError: the 16-bit weights and the masters are of different shapes.
    """
    found: dict[str, Tensor] = {}
    for name in {**stored.names, **masters, **stored.frozen}:
        copy = stored.names.get(name)
        if name in masters:
            found[name] = _with_copy(masters[name], copy, stored)
        elif name in stored.frozen:
            found[name] = stored.frozen[name]
        elif copy is not None and stored.buffers is not None and name in stored.buffers:
            found[name] = replace(copy, role=Role.BUFFER)
    groups = _aliases(reading, stored, found)
    _rest(reading, stored, found)
    lost = sorted((stored.buffers or frozenset()) - set(found))
    for name in _missing(reading, lost, "a buffer that the model file names and does not hold"):
        found[name] = _without_data(name)
    order = {name: i for i, name in enumerate({**stored.names, **found})}
    tensors = {name: found[name] for name in sorted(found, key=order.__getitem__)}
    return Weights(tensors, [Tie((owner, *names), source) for (owner, source), names in groups.items()])


def _with_copy(master: Tensor, copy: Tensor | None, stored: Stored) -> Tensor:
    """The master, with the 16-bit weight that it must round to."""
    if copy is None:
        return master
    if [n for n in copy.shape if n != 1] != [n for n in master.shape if n != 1]:
        name, one, other = printable(master.name, 80), list(master.shape), list(copy.shape)
        raise layout_error(f"{name} is of shape {one} in the masters and {other} in the model file.", stored.path)
    if not copy.dtype.castable or copy.layout is None:
        return master
    # A single value may be of shape [] in one place and [1] in the other.
    same = copy if copy.shape == master.shape else replace(copy, shape=master.shape, storage=None)
    return replace(master, copy16=same)


def _aliases(reading: Reading, stored: Stored, found: dict[str, Tensor]) -> dict[tuple[str, str], list[str]]:
    """Give aliases their owner's data; the groups by (owner, source)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for alias in stored.shared:
        owner = _owner(alias, stored.shared)
        if alias in found or owner not in found:
            continue
        copy = stored.names.get(alias)
        if copy is not None and copy.shape != found[owner].shape:
            reading.add(
                Finding(
                    "tie-disagrees",
                    Severity.WARNING,
                    f"{printable(alias, 80)} is recorded as {printable(owner, 80)} by another name, with another shape: "
                    "both stay.",
                    tensors=(alias, owner),
                )
            )
            continue
        found[alias] = _as_alias(found[owner], alias, copy)
        groups.setdefault((owner, "recorded"), []).append(alias)
    _tie_by_storage(stored, found, groups)
    return groups


def _owner(alias: str, shared: Mapping[str, str]) -> str:
    """The end of a chain of aliases."""
    seen = {alias}
    name = shared[alias]
    while name in shared and name not in seen:
        seen.add(name)
        name = shared[name]
    return name


def _as_alias(owner: Tensor, alias: str, copy: Tensor | None) -> Tensor:
    """The owner's data under another name, to be checked against the 16-bit weight stored under that name."""
    return replace(owner, name=alias, copy16=copy if copy is not None and owner.copy16 is not None else owner.copy16)


def _tie_by_storage(stored: Stored, found: dict[str, Tensor], groups: dict[tuple[str, str], list[str]]) -> None:
    """Names of `module` that are one view of one storage are one weight: how versions before `shared_params` show it."""
    tied = {alias for names in groups.values() for alias in names}
    for names in same_views({n: t for n, t in stored.names.items() if t is not None}):
        free = [n for n in names if n not in tied]
        owner = next((n for n in free if n in found), free[0] if free else "")
        for alias in free:
            if alias == owner or (alias in found and found[alias].role is Role.MASTER):
                continue
            if alias not in found and owner in found:
                found[alias] = _as_alias(found[owner], alias, stored.names[alias])
            groups.setdefault((owner, "storage"), []).append(alias)


def same_views(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Groups of two or more names that are one view of one storage, in order."""
    views: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors.items():
        look = tensor.storage
        if look is not None and tensor.numel:
            views.setdefault((look.key, look.offset, look.strides, look.ops, tensor.shape, tensor.dtype.name), []).append(name)
    return [names for names in views.values() if len(names) > 1]


def _rest(reading: Reading, stored: Stored, found: dict[str, Tensor]) -> None:
    """Names that neither masters nor records explain: real data is taken as it is, a placeholder is a name without data."""
    lost: list[str] = []
    for name, copy in stored.names.items():
        if name in found:
            continue
        if copy is None:
            if not stored.left_out or name not in stored.shared:
                lost.append(name)
        elif stored.buffers is None:
            found[name] = replace(copy, role=Role.BUFFER, note="a buffer or a frozen weight: this version does not say which")
        else:
            found[name] = replace(copy, trainable=False, note=FROM_COPY)
    for name in _missing(reading, lost, "its owner or its pieces are not recorded"):
        found[name] = _without_data(name)


def _missing(reading: Reading, names: list[str], why: str) -> list[str]:
    if names:
        subject = "has no data" if len(names) == 1 else "have no data"
        reading.add(
            Finding(
                "missing-tensor",
                Severity.ERROR,
                f"{listed(names)} {subject} in this step: {why}.",
                "Take the missing weights from the base model, or merge the rest with --allow-incomplete.",
                tensors=tuple(names),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
    return names


def _without_data(name: str) -> Tensor:
    return Tensor(name, BY_NAME["float32"], (0,), None, note="only a placeholder is stored; the shape is not known")
