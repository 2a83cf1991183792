"""Placements put back together as torch cut them, for meshes and orders that no fixture has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.formats.candidate import OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.rank_files import opening as rank_files
from shardyard.formats.rank_files.dtensor import Placement, decode_order, local_runs
from support.rank_writer import DTENSOR, OLD_DTENSOR, coordinates, dtensor, mesh, replicate, shard, strided, verl, write_rank
from support.truth import contents

Array = np.ndarray[Any, Any]


def chunk(array: Array, pieces: int, dim: int) -> list[Array]:
    """torch.chunk, with empty pieces at the end so that there are as many as asked for."""
    extent = array.shape[dim]
    step = -(-extent // pieces)
    bounds = [min(i * step, extent) for i in range(pieces + 1)]
    return [np.take(array, range(a, b), axis=dim) for a, b in itertools.pairwise(bounds)]


def cut_in_order(array: Array, shape: Sequence[int], at: Sequence[int], cuts: Sequence[tuple[int, int]]) -> Array:
    """The local tensor at a mesh position: (mesh dimension, tensor dimension) cuts one after another."""
    for mesh_dim, dim in cuts:
        array = chunk(array, shape[mesh_dim], dim)[at[mesh_dim]]
    return array


def split_factors(shape: Sequence[int], cuts: Sequence[tuple[int, int]]) -> dict[int, int]:
    """What torch writes down for an order of cuts: the pieces that mesh dimensions further right had made before."""
    return {
        m: math.prod(shape[other] for other, of_dim in cuts[:i] if of_dim == dim and other > m) for i, (m, dim) in enumerate(cuts)
    }


@st.composite
def _cut_tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """(tensor shape, mesh shape, cuts in order); a mesh dimension without a cut replicates."""
    mesh_shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=3)))
    cutting = draw(st.permutations([m for m in range(len(mesh_shape)) if draw(st.booleans())]))
    return shape, mesh_shape, [(m, draw(st.integers(0, len(shape) - 1))) for m in cutting]


@settings(max_examples=300, deadline=None)
@given(_cut_tensors())
def test_any_order_of_cuts_is_undone(case: tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]) -> None:
    shape, mesh_shape, cuts = case
    whole = np.arange(math.prod(shape)).reshape(shape)
    factors = split_factors(mesh_shape, cuts)
    dims = dict(cuts)
    placements = [Placement(dims.get(m), factors.get(m, 1)) for m in range(len(mesh_shape))]
    given_order = {d: tuple(m for m, of_dim in cuts if of_dim == d) for d in set(dims.values())}
    for at in coordinates(mesh_shape):
        local = cut_in_order(whole, mesh_shape, at, cuts)
        runs = local_runs(shape, mesh_shape, at, placements, given_order)
        index = [[i for start, n in of_dim for i in range(start, start + n)] for of_dim in runs]
        assert np.array_equal(local, whole[np.ix_(*index)])


@pytest.mark.parametrize("size", range(25))
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("fsdp", [2, 3, 4])
def test_fsdp_over_tensor_parallelism_of_one_dimension(size: int, fsdp: int, tp: int) -> None:
    placements = [Placement(0, tp), Placement(0)]
    assert decode_order([0, 1], (fsdp, tp), placements) == (1, 0)
    for at in coordinates((fsdp, tp)):
        expected = chunk(chunk(np.arange(size), tp, 0)[at[1]], fsdp, 0)[at[0]]
        (runs,) = local_runs((size,), (fsdp, tp), at, placements)
        assert [i for start, n in runs for i in range(start, start + n)] == expected.tolist()


def test_a_split_factor_that_no_cut_explains_gives_several_runs() -> None:
    (runs,) = local_runs((12,), (3,), (0,), [Placement(0, 2)])
    assert runs == [(0, 2), (6, 2)]
    (runs,) = local_runs((9,), (4,), (0,), [Placement(0, 2)])
    assert runs == [(0, 2), (5, 1)]


def open_folder(folder: Path) -> tuple[Any, OpenOptions]:
    options = OpenOptions()
    listing = Folder(folder)
    (candidate,) = rank_files.FORMAT.recognise(listing, dict.fromkeys(listing.entries))
    return candidate.open(options), options


@pytest.mark.parametrize(
    ("mesh_shape", "placements", "cuts"),
    [
        ((3,), [shard(0)], [(0, 0)]),
        ((3,), [shard(1)], [(0, 1)]),
        ((2, 2), [replicate(), shard(0)], [(1, 0)]),
        ((2, 3), [shard(0), shard(1)], [(0, 0), (1, 1)]),
        ((2, 2), [shard(0), shard(0)], [(0, 0), (1, 0)]),
        ((2, 2), [strided(0, 2), shard(0)], [(1, 0), (0, 0)]),
        ((2, 2, 2), [replicate(), strided(0, 2), shard(0)], [(2, 0), (1, 0)]),
        ((2,), [replicate()], []),
    ],
)
@pytest.mark.parametrize("style", ["layout", "flat layout", "ranks"])
def test_rank_files_of_dtensors_become_the_whole_tensor(
    tmp_path: Path, mesh_shape: tuple[int, ...], placements: list[Any], cuts: list[tuple[int, int]], style: str
) -> None:
    whole = np.arange(7 * 5, dtype=np.float32).reshape(7, 5)
    world = math.prod(mesh_shape)
    cls = OLD_DTENSOR if style == "ranks" else DTENSOR
    for rank, at in enumerate(coordinates(mesh_shape)):
        local = np.ascontiguousarray(cut_in_order(whole, mesh_shape, at, cuts))
        write_rank(verl(tmp_path, rank, world), {"w": dtensor(local, whole.shape, mesh(mesh_shape, at, style), placements, cls)})
    checkpoint, options = open_folder(tmp_path)
    assert checkpoint.mergeable, checkpoint.findings
    tensor = checkpoint.tensors["w"]
    assert contents(tensor, options.handles).data == whole.tobytes()
    copies = world // math.prod(mesh_shape[m] for m, _ in cuts)
    assert len(tensor.replicas) == copies - 1


def test_a_strided_shard_alone_is_several_blocks_a_rank(tmp_path: Path) -> None:
    whole = np.arange(12 * 2, dtype=np.float32).reshape(12, 2)
    for rank in range(3):
        rows = [2 * rank, 2 * rank + 1, 6 + 2 * rank, 7 + 2 * rank]
        share = dtensor(whole[rows], whole.shape, mesh((3,), (rank,)), [strided(0, 2)])
        write_rank(verl(tmp_path, rank, 3), {"w": share})
    checkpoint, options = open_folder(tmp_path)
    assert contents(checkpoint.tensors["w"], options.handles).data == whole.tobytes()


def test_the_recorded_order_of_plain_shards_is_followed(tmp_path: Path) -> None:
    from shardyard.formats.pickles import Call, Global

    whole = np.arange(8, dtype=np.float32)
    order = (Call("NEWOBJ", Global("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"), (0, (1, 0))),)
    for rank, at in enumerate(coordinates((2, 2))):
        local = cut_in_order(whole, (2, 2), at, [(1, 0), (0, 0)])
        share = dtensor(local, whole.shape, mesh((2, 2), at), [shard(0), shard(0)], shard_order=order)
        write_rank(verl(tmp_path, rank, 4), {"w": share})
    checkpoint, options = open_folder(tmp_path)
    assert contents(checkpoint.tensors["w"], options.handles).data == whole.tobytes()
