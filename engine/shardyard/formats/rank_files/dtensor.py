"""How a DTensor was cut: its device mesh, its placements, and the rows and columns that they give to a rank.

A `Shard` placement cuts the current extent as torch.chunk does: pieces of ceil(extent / ranks), the last ones short or empty.
FSDP over tensor parallelism cuts the same dimension twice, the tensor-parallel way first, and writes that down as a
`_StridedShard` left of a `Shard`; read as plain shards it would permute rows silently.  So the order of the cuts is worked out
from the split factors, as torch does.  Where no order explains them, a rank holds several runs of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardyard.errors import UnsupportedError
from shardyard.formats.pickles import Call, attribute, integers, lookup, sequence
from shardyard.formats.torch.tensors import TensorValue

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


def unknown_layout(what: str) -> UnsupportedError:
    """A refusal; the message goes after the tensor's name."""
    return UnsupportedError(what, code="unknown-layout")


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
        raise unknown_layout(f"its device mesh of shape {list(shape)} does not contain position {list(coordinate)}")
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
        raise unknown_layout("its device mesh is of a kind that is not known")
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
        raise unknown_layout("its device mesh does not say which rank sits where")
    if rank not in ranks:
        return None
    index, found = ranks.index(rank), []
    for n in reversed(shape):
        index, position = divmod(index, n)
        found.append(position)
    return tuple(reversed(found))


def placement_of(value: object, dimensions: int) -> Placement:
    name = value.path.rpartition(".")[2] if isinstance(value, Call) else ""
    if name == "Replicate":
        return Placement(None)
    if name not in ("Shard", "_StridedShard") or not isinstance(value, Call):
        what = "holds partial sums that were never added up" if "Partial" in name else "has a placement that is not known"
        raise unknown_layout(f"it {what} ({name or 'no class'})")
    dim, factor = _field(value, "dim", 0), _field(value, "split_factor", 1)
    if not isinstance(dim, int) or not -dimensions <= dim < dimensions:
        raise unknown_layout("it is cut along a dimension that it does not have")
    if name == "Shard":
        return Placement(dim % dimensions)
    if not isinstance(factor, int) or not 1 <= factor <= MOST_BLOCKS:
        raise unknown_layout("its strided shards have no usable split factor")
    return Placement(dim % dimensions, factor)


def _field(call: Call, name: str, position: int) -> object:
    """A field of a placement, which some versions pickle as attributes and others as arguments."""
    found = attribute(call, name)
    if found is None and call.kwargs is not None:
        found = lookup(call.kwargs, name)
    if found is None and isinstance(call.args, tuple) and len(call.args) > position:
        found = call.args[position]
    return found


def given_order(spec: object) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The order of cuts that the spec itself records: (tensor dimension, mesh dimensions) pairs."""
    found = []
    for entry in sequence(attribute(spec, "shard_order")) or ():
        fields = entry.args if isinstance(entry, Call) else entry
        if isinstance(fields, tuple) and len(fields) == 2 and isinstance(fields[0], int):
            dims = integers(fields[1])
            if dims is not None:
                found.append((fields[0], dims))
    return tuple(found)


def local_runs(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
    given: Mapping[int, tuple[int, ...]] | None = None,
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
                raise unknown_layout("the recorded order of its cuts does not fit its placements")
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
            raise unknown_layout("its strided shards are in too many pieces")
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for start, n in runs:
        if found and found[-1][0] + found[-1][1] == start:
            found[-1] = (found[-1][0], found[-1][1] + n)
        elif n:
            found.append((start, n))
    return found
