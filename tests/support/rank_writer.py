"""Writes rank files as FSDP does, without torch: DTensors of any mesh and placements, ShardedTensors, plain tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.torch.writer import Storage, instance, ordered_dict, size, tensor, write_torch
from shardyard.pieces import row_major

Array = np.ndarray[Any, Any]
DTENSOR = ("torch.distributed.tensor", "DTensor")
OLD_DTENSOR = ("torch.distributed._tensor.api", "DTensor")
SHARDED = ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
_PLACEMENTS = "torch.distributed.tensor.placement_types"


def attributes(**fields: object) -> Dict:
    """The state of an object."""
    return Dict(list(fields.items()))


def plain(array: Array) -> Call:
    """A tensor that is the same on every rank."""
    return tensor(Storage(BY_NAME[array.dtype.name], array.tobytes()), array.shape)


def shard(dim: int) -> Call:
    return instance(_PLACEMENTS, "Shard", attributes(dim=dim))


def strided(dim: int, factor: int) -> Call:
    return instance(_PLACEMENTS, "_StridedShard", attributes(dim=dim, split_factor=factor))


def replicate() -> Call:
    return Call("NEWOBJ", Global(_PLACEMENTS, "Replicate"), ())


def partial() -> Call:
    return instance(_PLACEMENTS, "Partial", attributes(reduce_op="sum"))


def mesh(shape: Sequence[int], coordinate: Sequence[int], style: str = "layout") -> Call:
    """A device mesh of ranks 0, 1, 2, …, as it is pickled by a rank.

    `style`: `layout` since torch 2.13, `flat layout` before it, `ranks` for the older one whose ranks are a tensor.
    """
    module = "torch.distributed.device_mesh"
    total = math.prod(shape)
    ranks = np.arange(total, dtype=np.int32)
    strides = row_major(shape, 1)
    position = tuple(coordinate)
    if style == "ranks":
        state = attributes(
            device_type="cuda",
            mesh=plain(ranks.reshape(shape)),
            mesh_dim_names=None,
            _flatten_mesh_list=tuple(range(total)),
            _dim_group_names=[],
        )
        return instance(module, "DeviceMesh", state)
    if style == "flat layout":
        layout = instance("torch.distributed._mesh_layout", "_MeshLayout", attributes(shape=tuple(shape), stride=strides))
    else:
        axes = tuple(
            instance("torch.distributed._mesh_layout", "_FlatLayout", attributes(shape=(n,), stride=(s,)))
            for n, s in zip(shape, strides, strict=True)
        )
        layout = instance("torch.distributed._mesh_layout", "_MeshLayout", attributes(axes=axes))
    state = attributes(_device_type="cpu", _layout=layout, _rank_map=plain(ranks), _coordinate_on_dim=position)
    return instance(module, "DeviceMesh", state)


def dtensor(
    local: Array,
    shape: Sequence[int],
    device_mesh: Call,
    placements: Sequence[Call],
    cls: tuple[str, str] = DTENSOR,
    **more: object,
) -> Call:
    """A rank's share of a tensor."""
    spec = attributes(mesh=device_mesh, placements=tuple(placements), tensor_meta=None, **more)
    state = (
        None,
        attributes(_local_tensor=plain(local), _spec=instance("torch.distributed.tensor._dtensor_spec", "DTensorSpec", spec)),
    )
    return _wrapper(cls, local.dtype.name, shape, state)


def sharded_tensor(
    shape: Sequence[int], mine: Mapping[tuple[int, ...], Array], everywhere: Mapping[tuple[int, ...], tuple[int, ...]], world: int
) -> Call:
    """A ShardedTensor: this rank's shards, and where all ranks' shards lie, by their offsets."""

    def where(offsets: tuple[int, ...], sizes: Sequence[int]) -> Call:
        fields = attributes(shard_offsets=list(offsets), shard_sizes=list(sizes), placement=None)
        return instance("torch.distributed._shard.metadata", "ShardMetadata", (None, fields))

    shards: list[object] = [
        instance(
            "torch.distributed._shard.sharded_tensor.shard",
            "Shard",
            (None, attributes(tensor=plain(array), metadata=where(offsets, array.shape))),
        )
        for offsets, array in mine.items()
    ]
    listed: list[object] = [where(offsets, sizes) for offsets, sizes in everywhere.items()]
    metadata = instance(
        "torch.distributed._shard.sharded_tensor.metadata",
        "ShardedTensorMetadata",
        attributes(shards_metadata=listed, size=size(tuple(shape))),
    )
    group = Call("REDUCE", Global("builtins", "getattr"), (Global(*SHARDED), "ProcessGroupState"))
    state = Call("NEWOBJ", group, ())
    state.later.append(("BUILD", attributes(global_world_size=world)))
    dtype = next((a.dtype.name for a in mine.values()), "float32")
    return _wrapper(SHARDED, dtype, shape, (shards, metadata, state, None, False))


def _wrapper(cls: tuple[str, str], dtype: str, shape: Sequence[int], state: object) -> Call:
    layout = Call("REDUCE", Global("torch.serialization", "_get_layout"), ("torch.strided",))
    device = Call("REDUCE", Global("torch", "device"), ("cpu",))
    kind = Global(*cls)
    args = (kind, Global("torch", dtype), tuple(shape), row_major(shape, 1), 0, layout, device, False)
    inner = Global("torch._utils", "_rebuild_wrapper_subclass")
    return Call("REDUCE", Global("torch._tensor", "_rebuild_from_type_v2"), (inner, kind, args, state))


def coordinates(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The mesh positions of ranks 0, 1, 2, …"""
    yield from product(*(range(n) for n in shape))


def write_rank(path: Path, state: Mapping[str, object]) -> None:
    """One rank's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_torch(path, ordered_dict(state.items()))


def verl(folder: Path, rank: int, world: int, what: str = "model") -> Path:
    """The name that verl gives a rank's file."""
    return folder / f"{what}_world_size_{world}_rank_{rank}.pt"
