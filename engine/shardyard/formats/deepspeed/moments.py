"""The optimizer's moments by parameter name: read only when somebody asks for the part `optimizer`.

They are flat vectors cut like the masters, so the same walk finds them.  What is no flat vector (step counts) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardyard.checkpoint import Role, Tensor
from shardyard.dtypes import unknown
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.formats.deepspeed.flat import FlatVector, flat_vector
from shardyard.formats.deepspeed.model_file import Shapes
from shardyard.formats.deepspeed.ranks import RankSet
from shardyard.formats.deepspeed.zero import Rename, Vectors, walk
from shardyard.formats.pickles import lookup, pairs, sequence
from shardyard.formats.torch.file import TorchFile, open_torch
from shardyard.formats.torch.tensors import TensorValue

Moments = list[list[dict[str, FlatVector | None]]]
"""Of one rank: by group, by piece, by name such as `exp_avg`; None for one whose data cannot be read."""


def moments(handles: FileHandles, ranks: RankSet, shapes: Sequence[Shapes], rename: Rename | None = None) -> dict[str, Tensor]:
    """All moments as `<parameter>.<moment>`, without data where it cannot be read; those that cannot be placed are left out."""
    of_ranks = [read(open_torch(handles, r.path), len(r.groups)) if r is not None else None for r in ranks.ranks]
    first = next((m for m in of_ranks if m is not None), None)
    if first is None:
        return {}
    found: dict[str, Tensor] = {}
    for key in {k: None for group in first for piece in group for k in piece}:
        vectors: list[Vectors] = [
            [[piece.get(key) for piece in rank[g]] if rank is not None else [None] * len(first[g]) for rank in of_ranks]
            for g in range(len(first))
        ]
        try:
            for parameter, shape, layout, dtype in walk(ranks, shapes, vectors, rename):
                name = f"{parameter}.{key}"
                note = "" if layout is not None else "a rank's optimizer file that it needs is not here or damaged"
                found[name] = Tensor(name, dtype, shape, layout, Role.OPTIMIZER, note=note)
        except DamagedError:
            continue
    return found


def read(file: TorchFile, groups: int) -> Moments:
    """The flat moments of one rank's file.

    State is a torch optimizer's dict, a list by group (elastic, and 0.3.16), or there at stage 1 a list by interval inside.
    """
    state = lookup(file.root, "optimizer_state_dict")
    inner = lookup(state, "optimizer_state_dict", lookup(state, "base_optimizer_state"))
    by_group: list[object] = [None] * groups
    items = sequence(inner)
    if items is not None:
        by_group[: len(items)] = items[:groups]
    else:
        for index, value in pairs(lookup(inner, "state")) or ():
            if isinstance(index, int) and 0 <= index < groups:
                by_group[index] = value
    return [[_flat(file, piece) for piece in (sequence(group) or [group])] for group in by_group]


def _flat(file: TorchFile, state: object) -> dict[str, FlatVector | None]:
    return {
        key: _readable(file, value, key)
        for key, value in pairs(state) or ()
        if isinstance(key, str) and isinstance(value, TensorValue) and len(value.shape) == 1 and value.dtype.castable
    }


def without_data(name: str, like: Tensor | TensorValue | None, error: DamagedError) -> Tensor:
    """A moment whose data cannot be read, of the type and shape of the weight or of what the file says of it."""
    dtype, shape = (like.dtype, like.shape) if like is not None else (unknown("unknown"), (0,))
    return Tensor(name, dtype, shape, None, Role.OPTIMIZER, note=error.problem)


def _readable(file: TorchFile, value: TensorValue, key: str) -> FlatVector | None:
    try:
        return flat_vector(file, value, key)
    except DamagedError:
        return None
