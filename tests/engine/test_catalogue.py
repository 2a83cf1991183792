"""Layouts, clipping and gathering against a naive model in numpy: every byte where it belongs, holes and overlaps refused."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import DamagedError, IncompleteError
from shardyard.files import FileHandles
from shardyard.layouts import Boxes, EvenRuns, OneRun, Runs, Strided
from shardyard.operations import gather
from shardyard.pieces import InlineRecord, Ops, Piece, box, clip, row_major

WORDS = {1: "uint8", 2: "int16", 4: "float32", 8: "int64", 16: "complex128"}


def record(data: bytes) -> InlineRecord:
    return InlineRecord("/inline", len(data), 0, data=data)


def noise(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


def read(tensor: Tensor, lo: int = 0, hi: int | None = None) -> bytes:
    hi = tensor.nbytes if hi is None else hi
    buffer = bytearray(hi - lo)
    gather.read_range(tensor, lo, hi, memoryview(buffer), FileHandles(4))
    return bytes(buffer)


def targets(piece: Piece) -> list[int]:
    """Every target byte of a piece, in order of its indices."""
    starts = (
        piece.target_offset + sum(i * s for i, s in zip(index, piece.target_strides, strict=True))
        for index in product(*map(range, piece.shape))
    )
    return [start + k for start in starts for k in range(piece.word)]


@st.composite
def cut_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, int], ...]]]:
    """A shape, and boxes (ranges by dimension) that tile it: cut in two again and again along any dimension."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    tiles = [tuple((0, n) for n in shape)]
    for _ in range(draw(st.integers(0, 6))):
        k = draw(st.integers(0, len(tiles) - 1))
        d = draw(st.integers(0, len(shape) - 1))
        a, b = tiles[k][d]
        if b - a < 2:
            continue
        at = draw(st.integers(a + 1, b - 1))
        tile = tiles.pop(k)
        tiles += [(*tile[:d], (a, at), *tile[d + 1 :]), (*tile[:d], (at, b), *tile[d + 1 :])]
    return shape, tiles


def tile_pieces(array: np.ndarray, tiles: list[tuple[tuple[int, int], ...]]) -> list[Piece]:
    """Each tile stored in a record of its own."""
    item, strides = array.itemsize, row_major(array.shape, array.itemsize)
    pieces = []
    for tile in tiles:
        stored = np.ascontiguousarray(array[tuple(slice(a, b) for a, b in tile)])
        offset = sum(a * s for (a, _), s in zip(tile, strides, strict=True))
        piece = box(record(stored.tobytes()), item, stored.shape, 0, row_major(stored.shape, item), offset, strides)
        if piece is not None:
            pieces.append(piece)
    return sorted(pieces, key=lambda p: p.target_offset)


@settings(max_examples=200, deadline=None)
@given(cut_boxes(), st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_tiles_gather_to_the_whole(cut: tuple, word: int, data: st.DataObject) -> None:
    shape, tiles = cut
    dtype = BY_NAME[WORDS[word]]
    want = noise(word * math.prod(shape))
    array = np.frombuffer(want, f"V{word}").reshape(shape)
    tensor = Tensor("t", dtype, shape, Boxes(tile_pieces(array, tiles), len(want)))
    tensor.layout.prove(tensor.nbytes)
    lo = data.draw(st.integers(0, len(want)))
    hi = data.draw(st.integers(lo, len(want)))
    assert read(tensor) == want
    assert read(tensor, lo, hi) == want[lo:hi]


@settings(max_examples=200, deadline=None)
@given(cut_boxes(), st.data())
def test_a_missing_or_doubled_tile_is_refused(cut: tuple, data: st.DataObject) -> None:
    shape, tiles = cut
    array = np.zeros(shape, np.int16)
    pieces = tile_pieces(array, tiles)
    gone = data.draw(st.integers(0, len(pieces) - 1))
    with pytest.raises(DamagedError):
        Boxes(pieces[:gone] + pieces[gone + 1 :], array.nbytes).prove(array.nbytes)
    # One tile moved onto the others: the count is right, a hole and an overlap are not.
    if len(pieces) > 1:
        other = data.draw(st.integers(0, len(pieces) - 1).filter(lambda k: k != gone))
        p, q = pieces[gone], pieces[other]
        if p.nbytes == q.nbytes:
            twice = sorted([*(x for k, x in enumerate(pieces) if k != gone), q], key=lambda x: x.target_offset)
            with pytest.raises(DamagedError):
                Boxes(twice, array.nbytes).prove(array.nbytes)


@st.composite
def random_boxes(draw: st.DrawFn) -> tuple[int, list[Piece]]:
    """Any boxes of one row-major tensor, meeting or not."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    strides = row_major(shape, 2)
    pieces = []
    for _ in range(draw(st.integers(1, 4))):
        ranges = []
        for n in shape:
            a = draw(st.integers(0, n - 1))
            ranges.append((a, draw(st.integers(a + 1, n))))
        sizes = [b - a for a, b in ranges]
        offset = sum(a * s for (a, _), s in zip(ranges, strides, strict=True))
        piece = box(record(bytes(2 * math.prod(sizes))), 2, sizes, 0, row_major(sizes, 2), offset, strides)
        assert piece is not None
        pieces.append(piece)
    return 2 * math.prod(shape), sorted(pieces, key=lambda p: p.target_offset)


@settings(max_examples=400, deadline=None)
@given(random_boxes())
def test_prove_agrees_with_counting_every_byte(drawn: tuple[int, list[Piece]]) -> None:
    nbytes, pieces = drawn
    count = np.zeros(nbytes, int)
    for piece in pieces:
        np.add.at(count, targets(piece), 1)
    exact = bool((count == 1).all())
    try:
        Boxes(pieces, nbytes).prove(nbytes)
        proven = True
    except DamagedError:
        proven = False
    assert proven == exact


@settings(max_examples=300, deadline=None)
@given(random_boxes(), st.data())
def test_clip_keeps_exactly_the_bytes_inside(drawn: tuple[int, list[Piece]], data: st.DataObject) -> None:
    nbytes, pieces = drawn
    piece = pieces[0]
    lo = data.draw(st.integers(0, nbytes // 2)) * 2
    hi = data.draw(st.integers(lo // 2, nbytes // 2)) * 2
    wanted = {t: s for t, s in zip(targets(piece), _sources(piece), strict=True) if lo <= t < hi}
    got = {t: s for part in clip(piece, lo, hi) for t, s in zip(targets(part), _sources(part), strict=True)}
    assert got == wanted


def _sources(piece: Piece) -> list[int]:
    starts = (
        piece.source_offset + sum(i * s for i, s in zip(index, piece.source_strides, strict=True))
        for index in product(*map(range, piece.shape))
    )
    return [start + k for start in starts for k in range(piece.word)]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.data(),
)
def test_any_view_of_a_storage(word: int, base: list[int], data: st.DataObject) -> None:
    stored = noise(word * math.prod(base))
    array = np.frombuffer(stored, f"V{word}").reshape(base)
    view = array.transpose(data.draw(st.permutations(range(len(base)))))
    steps = data.draw(st.tuples(*(st.sampled_from([1, 2, -1]) for _ in base)))
    view = view[tuple(slice(None, None, s) for s in steps)]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    offset = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    tensor = Tensor("t", BY_NAME[WORDS[word]], view.shape, Strided(record(stored), offset, view.shape, view.strides, word))
    tensor.layout.prove(tensor.nbytes)
    assert read(tensor) == view.tobytes()
    lo = data.draw(st.integers(0, tensor.nbytes))
    hi = data.draw(st.integers(lo, tensor.nbytes))
    assert read(tensor, lo, hi) == view.tobytes()[lo:hi]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.integers(1, 6), st.data())
def test_runs_and_even_runs(numel: int, world: int, data: st.DataObject) -> None:
    want = noise(4 * numel, seed=numel)
    per = max(1, -(-numel // world)) * 4
    padded = want + bytes(per * world - len(want))
    ranks = [record(bytes(8) + padded[r * per : (r + 1) * per]) for r in range(world)]
    even = Tensor("t", BY_NAME["float32"], (numel,), EvenRuns(ranks, 8, per, len(want), 4))
    cuts = sorted(data.draw(st.lists(st.integers(0, numel), max_size=4)))
    borders = [0, *(4 * c for c in cuts)]
    runs = Tensor(
        "t",
        BY_NAME["float32"],
        (numel,),
        Runs([(b, record(b"xyz" + want[b:e]), 3) for b, e in zip(borders, [*borders[1:], len(want)], strict=True)], len(want), 4),
    )
    for tensor in (even, runs):
        tensor.layout.prove(len(want))
        assert read(tensor) == want
        lo = data.draw(st.integers(0, len(want)))
        hi = data.draw(st.integers(lo, len(want)))
        assert read(tensor, lo, hi) == want[lo:hi]


def test_runs_that_leave_a_hole_are_refused() -> None:
    data = record(bytes(64))
    for bad in (
        Runs([(0, data, 0), (32, data, 40)], 64),
        Runs([(4, data, 0)], 64),
        EvenRuns([data], 0, 64, 65),
        EvenRuns([data, record(bytes(8))], 0, 16, 32),
        OneRun(data, 8, 64),
        Strided(data, 0, (17,), (4,), 4),
    ):
        with pytest.raises(DamagedError):
            bad.prove(bad.word * math.prod(bad.shape) if isinstance(bad, Strided) else bad.nbytes)


@pytest.mark.parametrize("name", ["complex64", "complex128", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("ops", [Ops.SWAP, Ops.CONJ, Ops.NEG, Ops.SWAP | Ops.CONJ | Ops.NEG, Ops.CONJ | Ops.NEG])
def test_value_operations(name: str, ops: Ops) -> None:
    dtype = BY_NAME[name]
    shape, half = (5, 3), dtype.word
    parts = dtype.itemsize // half
    bits = np.frombuffer(noise(15 * dtype.itemsize), f"u{half}").reshape(3, 5, parts)
    stored = bits.tobytes()
    want = bits.transpose(1, 0, 2).copy()
    if ops & Ops.SWAP:
        want = want.byteswap()
    sign = want.dtype.type(1 << (8 * half - 1))
    if ops & Ops.NEG:
        want ^= sign
    if ops & Ops.CONJ and parts == 2:
        want[..., 1] ^= sign
    item = dtype.itemsize
    tensor = Tensor("t", dtype, shape, Strided(record(stored), 0, shape, (item, 5 * item), item, ops))
    assert read(tensor) == want.tobytes()


def test_absent_data_is_named() -> None:
    with pytest.raises(IncompleteError, match="layer\\.weight"):
        read(Tensor("layer.weight", BY_NAME["float32"], (2,), None))


def test_a_transposed_source_is_read_in_larger_blocks(tmp_path) -> None:
    side = 1500
    array = np.arange(side * side * 4, dtype=np.float32).reshape(side, side * 4)
    path = tmp_path / "data"
    array.tofile(path)
    from shardyard.pieces import Record

    stored = Record(str(path), array.nbytes, 0)
    tensor = Tensor("t", BY_NAME["float32"], (side * 4, side), Strided(stored, 0, (side * 4, side), (4, side * 16), 4))
    with FileHandles(4) as handles:
        got = b"".join(bytes(view) for _, view in gather.blocks(tensor, handles, 1 << 18))
        assert handles.bytes_read < 4 * array.nbytes
    assert got == array.T.tobytes()


def test_columns_come_together_from_large_files(tmp_path) -> None:
    """Rows longer than a direct read, spans longer than a scratch buffer: all paths of the gathering."""
    from shardyard.pieces import Record

    rows, columns = 300, 40_000
    whole = np.random.default_rng(1).integers(0, 2**16, (rows, columns), np.uint16)
    pieces = []
    for k, (a, b) in enumerate(((0, 100), (100, 39_000), (39_000, columns))):
        part = np.ascontiguousarray(whole[:, a:b])
        part.tofile(tmp_path / f"{k}")
        source = Record(str(tmp_path / f"{k}"), part.nbytes, 0)
        piece = box(source, 2, part.shape, 0, row_major(part.shape, 2), a * 2, (columns * 2, 2))
        assert piece is not None
        pieces.append(piece)
    tensor = Tensor("t", BY_NAME["int16"], (rows, columns), Boxes(pieces, whole.nbytes))
    tensor.layout.prove(whole.nbytes)
    with FileHandles(4) as handles:
        assert b"".join(bytes(v) for _, v in gather.blocks(tensor, handles)) == whole.tobytes()
        assert handles.bytes_read == whole.nbytes
