"""Where one rank's share of a distributed tensor lies: DTensor with its mesh and placements, and the older ShardedTensor.

A `Shard` placement cuts the current extent as torch.chunk does: pieces of ceil(extent / ranks), the last ones short or empty.
FSDP over tensor parallelism cuts the same dimension twice, the tensor-parallel way first, and writes that down as a
`_StridedShard` left of a `Shard`; read as plain shards it would permute rows silently.  So the order of the cuts is worked out
from the split factors, as torch does.  Where no order explains them, a rank holds several runs of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardyard.dtypes import DType
from shardyard.errors import UnsupportedError
from shardyard.formats.coverage import Block
from shardyard.formats.pickles import Call, attribute, integers, lookup, sequence
from shardyard.formats.tensors import TensorValue, WrapperValue, dtype_of

DTENSORS = frozenset(
    {"torch.distributed.tensor.DTensor", "torch.distributed._tensor.api.DTensor", "torch.distributed._tensor.DTensor"}
)
SHARDED_TENSORS = frozenset({"torch.distributed._shard.sharded_tensor.api.ShardedTensor"})
MOST_BLOCKS = 4096
"""Blocks of one tensor on one rank; a strided shard has as many as its split factor."""

Run = tuple[int, int]
"""(first index, length) along one dimension of the whole tensor."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh as one rank pickled it."""

    shape: tuple[int, ...]
    coordinate: tuple[int, ...] | None
    """Of the rank that wrote the file; None: it is no member."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How a mesh dimension treats the tensor."""

    dim: int | None
    """The tensor dimension that is cut; None: replicated."""
    split_factor: int = 1


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


def share_of(value: object, rank: int) -> Share | None:
    """The share that a pickled value is; None if it is no tensor.

    Raises:
        UnsupportedError: it is distributed in a way that cannot be put together, or contradicts itself.
    """
    if isinstance(value, TensorValue):
        zeros = (0,) * len(value.shape)
        return Share(value.dtype, value.shape, [LocalBlock(value, zeros, (zeros, value.shape))], plain=True)
    if isinstance(value, WrapperValue):
        if value.subclass in DTENSORS:
            return _dtensor(value, rank)
        if value.subclass in SHARDED_TENSORS:
            return _sharded_tensor(value)
        raise _unknown(f"it is of the tensor class {value.subclass or 'unknown'}, which cannot be put together")
    return None


def _unknown(what: str) -> UnsupportedError:
    return UnsupportedError(what, code="unknown-layout")


# DTensor


def _dtensor(value: WrapperValue, rank: int) -> Share:
    state = _slots(value.state)
    local, spec = lookup(state, "_local_tensor"), lookup(state, "_spec")
    shape = integers(value.args[2]) if len(value.args) > 2 else None
    dtype = dtype_of(value.args[1]) if len(value.args) > 1 else None
    if not isinstance(local, TensorValue) or shape is None or dtype is None or local.dtype != dtype:
        raise _unknown("its local tensor is not a plain one of its own type")
    mesh = mesh_of(attribute(spec, "mesh"), rank)
    placements = [_placement(p, len(shape)) for p in sequence(attribute(spec, "placements")) or ()]
    if not placements or len(placements) != len(mesh.shape):
        raise _unknown("its placements do not fit its device mesh")
    total = math.prod(mesh.shape)
    if mesh.coordinate is None:
        return Share(dtype, shape, [], total)
    runs = local_runs(shape, mesh.shape, mesh.coordinate, placements, _given_order(spec))
    extents = tuple(sum(n for _, n in of_dim) for of_dim in runs)
    if extents != local.shape and not (0 in extents and 0 in local.shape):
        raise _unknown(f"rank {rank} holds shape {list(local.shape)} where its placements give {list(extents)}")
    return Share(dtype, shape, list(_blocks(local, runs)), total)


def _slots(state: object) -> object:
    """The dict of a (dict, slots) pair, or the state itself."""
    return state[1] if isinstance(state, tuple) and len(state) == 2 else state


def mesh_of(mesh: object, rank: int) -> Mesh:
    """A pickled DeviceMesh: its layout since torch 2.9, its tensor of ranks before."""
    shape = _mesh_shape(mesh)
    given = attribute(mesh, "_coordinate_on_dim", False)
    coordinate = integers(given)
    if coordinate is None and given is not None:
        coordinate = _coordinate(mesh, shape, rank)
    if coordinate is not None and (
        len(coordinate) != len(shape) or not all(0 <= c < n for c, n in zip(coordinate, shape, strict=True))
    ):
        raise _unknown(f"its device mesh of shape {list(shape)} does not contain position {list(coordinate)}")
    return Mesh(shape, coordinate)


def _mesh_shape(mesh: object) -> tuple[int, ...]:
    layout = attribute(mesh, "_layout")
    axes = sequence(attribute(layout, "axes"))
    if axes is not None:
        sizes = [_product(attribute(axis, "shape")) for axis in axes]
    elif layout is not None:
        whole = attribute(layout, "shape")
        sizes = [_product(size) for size in (sequence(whole) if sequence(whole) is not None else [whole]) or ()]
    else:
        ranks = attribute(mesh, "mesh")
        sizes = list(ranks.shape) if isinstance(ranks, TensorValue) else []
    shape = tuple(size for size in sizes if size is not None and size > 0)
    if not shape or len(shape) != len(sizes):
        raise _unknown("its device mesh is of a kind that is not known")
    return shape


def _product(size: object) -> int | None:
    """The number of ranks along a mesh dimension, which may itself be several joined."""
    if isinstance(size, int):
        return size
    items = sequence(size)
    if items is None:
        return None
    total = 1
    for item in items:
        n = _product(item)
        if n is None:
            return None
        total *= n
    return total


def _coordinate(mesh: object, shape: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
    """The rank's position by the mesh's list of ranks, for pickles without the position itself."""
    ranks = integers(attribute(mesh, "_flatten_mesh_list"))
    if ranks is None or len(ranks) != math.prod(shape):
        raise _unknown("its device mesh does not say which rank sits where")
    if rank not in ranks:
        return None
    index, found = ranks.index(rank), []
    for n in reversed(shape):
        index, position = divmod(index, n)
        found.append(position)
    return tuple(reversed(found))


def _placement(value: object, dimensions: int) -> Placement:
    name = value.path.rpartition(".")[2] if isinstance(value, Call) else ""
    if name == "Replicate":
        return Placement(None)
    if name not in ("Shard", "_StridedShard") or not isinstance(value, Call):
        what = "holds partial sums that were never added up" if "Partial" in name else "has a placement that is not known"
        raise _unknown(f"it {what} ({name or 'no class'})")
    dim, factor = _field(value, "dim", 0), _field(value, "split_factor", 1)
    if not isinstance(dim, int) or not -dimensions <= dim < dimensions:
        raise _unknown("it is cut along a dimension that it does not have")
    if name == "Shard":
        return Placement(dim % dimensions)
    if not isinstance(factor, int) or not 1 <= factor <= MOST_BLOCKS:
        raise _unknown("its strided shards have no usable split factor")
    return Placement(dim % dimensions, factor)


def _field(call: Call, name: str, position: int) -> object:
    """A field of a placement, which some versions pickle as attributes and others as arguments."""
    found = attribute(call, name)
    if found is None and call.kwargs is not None:
        found = lookup(call.kwargs, name)
    if found is None and isinstance(call.args, tuple) and len(call.args) > position:
        found = call.args[position]
    return found


def _given_order(spec: object) -> dict[int, tuple[int, ...]]:
    """The order of cuts that the spec itself records, by tensor dimension."""
    found: dict[int, tuple[int, ...]] = {}
    for entry in sequence(attribute(spec, "shard_order")) or ():
        fields = entry.args if isinstance(entry, Call) else entry
        if isinstance(fields, tuple) and len(fields) == 2 and isinstance(fields[0], int):
            dims = integers(fields[1])
            if dims is not None:
                found[fields[0]] = dims
    return found


def local_runs(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
    given: dict[int, tuple[int, ...]] | None = None,
) -> list[list[Run]]:
    """For each tensor dimension, the runs of it that the rank at `coordinate` holds, in the order it holds them."""
    found: list[list[Run]] = []
    for dim, extent in enumerate(shape):
        cutting = [i for i, p in enumerate(placements) if p.dim == dim]
        strided = any(placements[i].split_factor > 1 for i in cutting)
        order = decode_order(cutting, mesh, placements) if strided else (given or {}).get(dim, tuple(cutting))
        runs = [(0, extent)]
        if order is not None:
            if sorted(order) != cutting:
                raise _unknown("the recorded order of its cuts does not fit its placements")
            for i in order:
                runs = _cut(runs, mesh[i], coordinate[i])
        else:
            for i in cutting:
                runs = _interleaved(runs, placements[i].split_factor, mesh[i], coordinate[i])
        found.append(_joined(runs))
    return found


def decode_order(cutting: Sequence[int], mesh: Sequence[int], placements: Sequence[Placement]) -> tuple[int, ...] | None:
    """The mesh dimensions in the order in which they cut, if the split factors tell one.

    A split factor is the number of pieces there were already, made by mesh dimensions further right.
    """
    order: list[int] = []
    for i in reversed(cutting):
        pieces = 1
        for position in range(len(order) + 1):
            if pieces == placements[i].split_factor:
                order.insert(position, i)
                break
            if position < len(order):
                pieces *= mesh[order[position]]
        else:
            return None
    return tuple(order)


def _cut(runs: list[Run], pieces: int, which: int) -> list[Run]:
    """Piece `which` of the runs cut as torch.chunk does."""
    extent = sum(n for _, n in runs)
    size = -(-extent // pieces)
    return _slice(runs, min(which * size, extent), min((which + 1) * size, extent))


def _slice(runs: list[Run], lo: int, hi: int) -> list[Run]:
    found = []
    position = 0
    for start, n in runs:
        a, b = max(lo, position), min(hi, position + n)
        if a < b:
            found.append((start + a - position, b - a))
        position += n
    return found


def _interleaved(runs: list[Run], factor: int, pieces: int, which: int) -> list[Run]:
    """Piece `which` of each of `factor` groups."""
    extent = sum(n for _, n in runs)
    size = -(-extent // factor)
    found: list[Run] = []
    for group in range(factor):
        found += _cut(_slice(runs, min(group * size, extent), min((group + 1) * size, extent)), pieces, which)
        if len(found) > MOST_BLOCKS:
            raise _unknown("its strided shards are in too many pieces")
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for start, n in runs:
        if found and found[-1][0] + found[-1][1] == start:
            found[-1] = (found[-1][0], found[-1][1] + n)
        elif n:
            found.append((start, n))
    return found


def _blocks(local: TensorValue, runs: list[list[Run]]) -> Iterable[LocalBlock]:
    """The rectangles that the runs of all dimensions make."""
    if math.prod(len(of_dim) for of_dim in runs) > MOST_BLOCKS:
        raise _unknown("its strided shards are in too many pieces")
    placed = [list(zip(itertools.accumulate((n for _, n in d), initial=0), d, strict=False)) for d in runs]
    for chosen in itertools.product(*placed):
        offsets = tuple(start for _, (start, _) in chosen)
        sizes = tuple(n for _, (_, n) in chosen)
        yield LocalBlock(local, tuple(at for at, _ in chosen), (offsets, sizes))


# ShardedTensor


def _sharded_tensor(value: WrapperValue) -> Share:
    state = value.state
    if not isinstance(state, tuple) or len(state) < 2:
        raise _unknown("it is a ShardedTensor of a form that is not known")
    shards, metadata = sequence(state[0]), state[1]
    shape, everywhere = integers(attribute(metadata, "size")), sequence(attribute(metadata, "shards_metadata"))
    dtype = dtype_of(value.args[1]) if len(value.args) > 1 else None
    if shards is None or shape is None or everywhere is None or dtype is None:
        raise _unknown("it is a ShardedTensor without metadata")
    blocks = []
    for shard in shards:
        local, where = attribute(shard, "tensor"), attribute(shard, "metadata")
        offsets, sizes = integers(attribute(where, "shard_offsets")), integers(attribute(where, "shard_sizes"))
        if not isinstance(local, TensorValue) or offsets is None or sizes is None or local.dtype != dtype:
            raise _unknown("one of its shards has no place or no plain tensor")
        if local.shape != sizes:
            raise _unknown(f"one of its shards has shape {list(local.shape)} where its metadata says {list(sizes)}")
        blocks.append(LocalBlock(local, (0,) * len(sizes), (offsets, sizes)))
    world = state[2] if len(state) > 2 else None
    ranks = attribute(world, "global_world_size")
    return Share(dtype, shape, blocks, ranks if isinstance(ranks, int) else max(1, len(everywhere)))
