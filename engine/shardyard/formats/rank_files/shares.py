"""What one rank's file holds of a tensor, and where in the whole tensor that belongs.

Three kinds of values: DTensor, the older ShardedTensor, and plain tensors, of which every rank has its own copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardyard.dtypes import DType
from shardyard.formats.coverage import Block
from shardyard.formats.pickles import attribute, integers, lookup, sequence
from shardyard.formats.rank_files.dtensor import (
    MOST_BLOCKS,
    Mesh,
    Placement,
    Run,
    given_order,
    local_runs,
    mesh_of,
    placement_of,
    unknown_layout,
)
from shardyard.formats.torch.tensors import TensorValue, WrapperValue, dtype_of

_DTENSORS = frozenset(
    {"torch.distributed.tensor.DTensor", "torch.distributed._tensor.api.DTensor", "torch.distributed._tensor.DTensor"}
)
_SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
_Order = tuple[tuple[int, tuple[int, ...]], ...]
_Cuts = tuple[tuple[int, ...], Mesh, tuple[Placement, ...], _Order]
"""All that decides which part a rank holds: many tensors of a model have it in common."""


@dataclass(slots=True, eq=False)
class LocalBlock:
    """A rectangle of a rank's local tensor and where it belongs."""

    value: TensorValue
    local: tuple[int, ...]
    """Offsets in the local tensor."""
    block: Block
    """Offsets and sizes in the whole tensor."""


@dataclass(slots=True, eq=False)
class Share:
    """What one rank's file holds of a tensor."""

    dtype: DType
    shape: tuple[int, ...]
    """Of the whole tensor."""
    blocks: list[LocalBlock]
    ranks: int = 1
    """How many ranks the layout speaks of."""
    plain: bool = False
    """Not distributed: every rank should hold the same."""


class ShareReader:
    """Reads the values of one rank's file; what they have in common is worked out once."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._meshes: dict[int, tuple[object, Mesh]] = {}
        """By identity of the pickled mesh, which is kept so that no other takes its place."""
        self._runs: dict[_Cuts, list[list[Run]]] = {}

    def read(self, value: object) -> Share | None:
        """The share that a pickled value is; None if it is no tensor.

        Raises:
            UnsupportedError: it is distributed in a way that cannot be put together, or contradicts itself.
        """
        if isinstance(value, TensorValue):
            zeros = (0,) * len(value.shape)
            return Share(value.dtype, value.shape, [LocalBlock(value, zeros, (zeros, value.shape))], plain=True)
        if not isinstance(value, WrapperValue):
            return None
        if value.subclass in _DTENSORS:
            return self._dtensor(value)
        if value.subclass == _SHARDED_TENSOR:
            return _sharded_tensor(value)
        raise unknown_layout(f"it is of the tensor class {value.subclass or 'unknown'}, which cannot be put together")

    def _dtensor(self, value: WrapperValue) -> Share:
        # The state of a class with slots is a pair.
        state = value.state[1] if isinstance(value.state, tuple) and len(value.state) == 2 else value.state
        local, spec = lookup(state, "_local_tensor"), lookup(state, "_spec")
        shape = integers(value.args[2]) if len(value.args) > 2 else None
        dtype = dtype_of(value.args[1]) if len(value.args) > 1 else None
        if not isinstance(local, TensorValue) or shape is None or dtype is None or local.dtype != dtype:
            raise unknown_layout("its local tensor is not a plain one of its own type")
        mesh = self._mesh(attribute(spec, "mesh"))
        placements = tuple(placement_of(p, len(shape)) for p in sequence(attribute(spec, "placements")) or ())
        if not placements or len(placements) != len(mesh.shape):
            raise unknown_layout("its placements do not fit its device mesh")
        ranks = math.prod(mesh.shape)
        if mesh.coordinate is None:
            return Share(dtype, shape, [], ranks)
        runs = self._held((shape, mesh, placements, given_order(spec)), mesh.coordinate)
        extents = tuple(sum(n for _, n in of_dim) for of_dim in runs)
        if extents != local.shape and not (0 in extents and 0 in local.shape):
            raise unknown_layout(f"rank {self.rank} holds shape {list(local.shape)} where its placements give {list(extents)}")
        return Share(dtype, shape, list(_blocks(local, runs)), ranks)

    def _mesh(self, pickled: object) -> Mesh:
        known = self._meshes.get(id(pickled))
        if known is None:
            known = self._meshes[id(pickled)] = (pickled, mesh_of(pickled, self.rank))
        return known[1]

    def _held(self, cuts: _Cuts, coordinate: tuple[int, ...]) -> list[list[Run]]:
        runs = self._runs.get(cuts)
        if runs is None:
            shape, mesh, placements, order = cuts
            runs = self._runs[cuts] = local_runs(shape, mesh.shape, coordinate, placements, dict(order))
        return runs


def _blocks(local: TensorValue, runs: list[list[Run]]) -> Iterator[LocalBlock]:
    """The rectangles that the runs of all dimensions make."""
    if math.prod(len(of_dim) for of_dim in runs) > MOST_BLOCKS:
        raise unknown_layout("its strided shards are in too many pieces")
    placed = [list(zip(itertools.accumulate((n for _, n in d), initial=0), d, strict=False)) for d in runs]
    for chosen in itertools.product(*placed):
        offsets = tuple(start for _, (start, _) in chosen)
        sizes = tuple(n for _, (_, n) in chosen)
        yield LocalBlock(local, tuple(at for at, _ in chosen), (offsets, sizes))


def _sharded_tensor(value: WrapperValue) -> Share:
    state = value.state
    if not isinstance(state, tuple) or len(state) < 2:
        raise unknown_layout("it is a ShardedTensor of a form that is not known")
    shards, metadata = sequence(state[0]), state[1]
    shape, everywhere = integers(attribute(metadata, "size")), sequence(attribute(metadata, "shards_metadata"))
    dtype = dtype_of(value.args[1]) if len(value.args) > 1 else None
    if shards is None or shape is None or everywhere is None or dtype is None:
        raise unknown_layout("it is a ShardedTensor without metadata")
    blocks = []
    for shard in shards:
        local, where = attribute(shard, "tensor"), attribute(shard, "metadata")
        offsets, sizes = integers(attribute(where, "shard_offsets")), integers(attribute(where, "shard_sizes"))
        if not isinstance(local, TensorValue) or offsets is None or sizes is None or local.dtype != dtype:
            raise unknown_layout("one of its shards has no place or no plain tensor")
        if local.shape != sizes:
            raise unknown_layout(f"one of its shards has shape {list(local.shape)} where its metadata says {list(sizes)}")
        blocks.append(LocalBlock(local, (0,) * len(sizes), (offsets, sizes)))
    world = state[2] if len(state) > 2 else None
    ranks = attribute(world, "global_world_size")
    return Share(dtype, shape, blocks, ranks if isinstance(ranks, int) else max(1, len(everywhere)))
