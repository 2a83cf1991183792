"""Stage 0: whole weights under `module`, and for 16-bit runs fp32 masters without names inside `optimizer`.

The unfused wrapper keeps `fp32_groups`, shaped; the fused one `fp32_groups_flat`, one flat tensor a group.  They are in the order
of the trainable weights, group by group: named only where counts and shapes leave one reading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardyard.checkpoint import CheckpointKind, Role, Tensor, Tie
from shardyard.errors import DamagedError
from shardyard.formats.deepspeed import moe
from shardyard.formats.deepspeed.flat import flat_vector
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.moments import without_data
from shardyard.formats.deepspeed.names import FileKind
from shardyard.formats.deepspeed.step import Step
from shardyard.formats.deepspeed.weights import Stored, same_views
from shardyard.formats.deepspeed.zero_step import stored_names
from shardyard.formats.pickles import lookup, pairs, sequence
from shardyard.formats.torch.tensors import TensorValue
from shardyard.layouts import OneRun
from shardyard.text import printable


def fill(step: Step, model: ModelFile) -> None:
    """Put the parts of a stage-0 step together."""
    if not model.module_stored:
        text = f"{printable(model.name)} has no `module`: the weights are not in it."
        step.reading.missing("missing-tensor", text, [model.name])
    stored = Stored(model.file.path, stored_names(step.reading, model, 0), frozenset(model.buffers or ()))
    if step.files.of(FileKind.EXPERT):
        moe.add_experts(step, model, stored)
        step.kind = CheckpointKind.MOE
    tensors = stored.tensors()
    step.world = model.settings.data_ranks
    step.ties = [Tie(tuple(names), "storage") for names in same_views(tensors)]
    step.add_part("model", tensors, model=True)
    step.part = "model"
    aliases = {name for tie in step.ties for name in tie.names[1:]}
    owners = [t for n, t in tensors.items() if n in model.module and t.role is not Role.BUFFER and n not in aliases]
    experts = [t for n, t in tensors.items() if n not in model.module]
    named = masters(model, owners) if not experts else None
    if named is not None:
        for tie in step.ties:
            named |= {alias: replace(named[tie.names[0]], name=alias) for alias in tie.names[1:] if tie.names[0] in named}
        rest = {n: t for n, t in tensors.items() if t.role is Role.BUFFER}
        step.add_part("masters", {n: {**named, **rest}[n] for n in tensors if n in named or n in rest}, model=True)
    step.add_lazy_part("optimizer", lambda: _moments(model, owners))
    step.checked |= {"ranks", "shapes", "ties"}


def masters(model: ModelFile, owners: Sequence[Tensor]) -> dict[str, Tensor] | None:
    """The fp32 masters by name; None where there are none, or the disk does not say which is which."""
    state = model.optimizer
    groups = sequence(lookup(state, "fp32_groups"))
    if groups is not None:
        return _shaped(model, [sequence(g) or [] for g in groups], owners)
    flat = sequence(lookup(state, "fp32_groups_flat"))
    return _flat(model, flat, owners) if flat is not None else None


def _shaped(model: ModelFile, groups: Sequence[Sequence[object]], owners: Sequence[Tensor]) -> dict[str, Tensor] | None:
    values = [v for group in groups for v in group]
    if len(values) != len(owners) or not all(isinstance(v, TensorValue) for v in values):
        return None
    found: dict[str, Tensor] = {}
    for order in assignments([[v.shape for v in g if isinstance(v, TensorValue)] for g in groups], [o.shape for o in owners]):
        if found:
            return None
        for owner, index in zip(owners, order, strict=True):
            value = values[index]
            assert isinstance(value, TensorValue)
            tensor = model.file.tensor(owner.name, value, Role.MASTER)
            tensor.storage, tensor.copy16, tensor.trainable = None, owner, True
            found[owner.name] = tensor
    return found or None


def assignments(groups: Sequence[Sequence[tuple[int, ...]]], owners: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Ways, at most two, to hand weights in order to groups of shapes in order: for each weight its index in the joined groups.

    A weight goes to the group whose next shape it has.  With one group there is at most one way.
    """
    starts = [sum(len(g) for g in groups[:i]) for i in range(len(groups))]
    states: dict[tuple[int, ...], list[list[int]]] = {(0,) * len(groups): [[]]}
    for shape in owners:
        following: dict[tuple[int, ...], list[list[int]]] = {}
        for taken, ways in states.items():
            for i, group in enumerate(groups):
                if taken[i] < len(group) and group[taken[i]] == shape:
                    after = (*taken[:i], taken[i] + 1, *taken[i + 1 :])
                    kept = following.setdefault(after, [])
                    kept.extend([*way, starts[i] + taken[i]] for way in ways)
                    del kept[2:]
        if len(following) > 1000:
            return []
        states = following
    return [way for ways in states.values() for way in ways]


def _flat(model: ModelFile, groups: Sequence[object], owners: Sequence[Tensor]) -> dict[str, Tensor] | None:
    """One flat tensor: the weights in order. Several groups do not tell which weight is in which."""
    if len(groups) != 1:
        return None
    try:
        vector = flat_vector(model.file, groups[0], "fp32_groups_flat[0]")
    except DamagedError:
        return None
    if vector.numel != sum(o.numel for o in owners):
        return None
    found: dict[str, Tensor] = {}
    position, item = vector.offset, vector.dtype.itemsize
    for owner in owners:
        nbytes = math.prod(owner.shape) * item
        layout = OneRun(vector.record, position, nbytes)
        found[owner.name] = Tensor(owner.name, vector.dtype, owner.shape, layout, Role.MASTER, trainable=True, copy16=owner)
        position += nbytes
    return found


def _moments(model: ModelFile, owners: Sequence[Tensor]) -> dict[str, Tensor]:
    """The moments, by the weights' names where their number tells, else by their own."""
    state = lookup(model.optimizer, "optimizer_state_dict", model.optimizer)
    entries = pairs(lookup(state, "state")) or []
    found: dict[str, Tensor] = {}
    for position, (index, values) in enumerate(entries):
        head = owners[position].name if len(entries) == len(owners) else f"state.{index if isinstance(index, int) else position}"
        for key, value in pairs(values) or ():
            if isinstance(key, str) and isinstance(value, TensorValue) and value.shape:
                try:
                    found[f"{head}.{key}"] = model.file.tensor(f"{head}.{key}", value, Role.OPTIMIZER)
                except DamagedError as error:
                    found[f"{head}.{key}"] = without_data(f"{head}.{key}", value, error)
    return found
