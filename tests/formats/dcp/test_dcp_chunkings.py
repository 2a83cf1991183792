"""Folders of torch.distributed.checkpoint with chunkings, codecs, protocols and contradictions that no fixture has."""

from __future__ import annotations

import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.checkpoint import Checkpoint
from shardyard.errors import Cancelled, DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding
from shardyard.formats import pickles
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.dcp import opening as dcp
from shardyard.formats.dcp.metadata import read_metadata
from shardyard.formats.dcp.rows import COLLAPSE
from shardyard.formats.folder import Folder
from shardyard.operations.gather import read_range
from support.dcp_writer import DcpWriter
from support.truth import contents

Block = tuple[int, tuple[int, ...], tuple[int, ...]]
WEIGHT = np.arange(6 * 4, dtype=np.float32).reshape(6, 4)
ROWS: list[Block] = [(0, (0, 0), (3, 4)), (1, (3, 0), (3, 4))]


def open_folder(*folders: Path, options: OpenOptions | None = None) -> Checkpoint:
    listing = Folder(*folders)
    (candidate,) = dcp.FORMAT.recognise(listing, dict.fromkeys(listing.entries))
    return candidate.open(options)


def find(checkpoint: Checkpoint, code: str) -> Finding:
    (finding,) = (f for f in checkpoint.findings if f.code == code)
    return finding


def values(checkpoint: Checkpoint, name: str = "w") -> bytes:
    with FileHandles() as handles:
        return contents(checkpoint.tensors[name], handles).data


@st.composite
def _chunked(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Block], bool]:
    """A shape cut at random places, the blocks on random ranks in random order, row-major or not."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=3)))
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5)) if shape else 0):
        offsets, sizes = blocks.pop(draw(st.integers(0, len(blocks) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[dim]))
        first = (*sizes[:dim], at, *sizes[dim + 1 :])
        rest = (*sizes[:dim], sizes[dim] - at, *sizes[dim + 1 :])
        blocks += [(offsets, first), ((*offsets[:dim], offsets[dim] + at, *offsets[dim + 1 :]), rest)]
    # Two empty blocks at one place have one key: a writer stores one of them.
    unique = {offsets: (offsets, sizes) for offsets, sizes in sorted(blocks, key=lambda b: math.prod(b[1]))}
    mixed = draw(st.permutations(list(unique.values())))
    return shape, [(draw(st.integers(0, 3)), o, s) for o, s in mixed], draw(st.booleans())


@settings(max_examples=100, deadline=None)
@given(_chunked(), st.data())
def test_any_chunking_comes_back_whole_and_in_any_range(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[tuple[int, ...], list[Block], bool], data: st.DataObject
) -> None:
    shape, blocks, fortran = case
    array = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    writer = DcpWriter(tmp_path_factory.mktemp("dcp"))
    writer.tensor(("model", "w"), array, blocks, fortran=fortran)
    tensor = open_folder(writer.write()).tensors["w"]
    with FileHandles() as handles:
        assert contents(tensor, handles).data == array.tobytes()
        lo = data.draw(st.integers(0, array.nbytes // 2)) * 2
        hi = data.draw(st.integers(lo // 2, array.nbytes // 2)) * 2
        part = memoryview(bytearray(hi - lo))
        read_range(tensor, lo, hi, part, handles)
        assert bytes(part) == array.tobytes()[lo:hi]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_pickle_protocol_gives_the_same_rows(tmp_path: Path, protocol: int) -> None:
    writer = DcpWriter(tmp_path)
    for number in range(300):
        writer.tensor(("model", f"layers.{number}.w"), WEIGHT, ROWS)
    writer.write(protocol=protocol)
    quick = read_metadata(FileHandles(), str(tmp_path / ".metadata"))
    assert list(quick.tensors) == [f"model.layers.{n}.w" for n in range(300)]
    starts: dict[str, int] = {}
    for tensor in quick.tensors.values():
        assert tensor.dtype is not None and (tensor.dtype.name, tensor.shape) == ("float32", (6, 4))
        assert [(c.offsets, c.sizes) for c in tensor.chunks] == [((0, 0), (3, 4)), ((3, 0), (3, 4))]
        for chunk in tensor.chunks:
            assert chunk.place is not None
            assert chunk.place.start == starts.get(chunk.place.file, 0)
            starts[chunk.place.file] = chunk.place.start + chunk.place.nbytes


def test_the_quick_way_through_a_pickle_ends_where_the_long_way_does(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(
        ("big",),
        np.zeros((2, 3, 1, 2, 2), np.uint8),
        [(0, (0, 0, 0, 0, 0), (1, 3, 1, 2, 2)), (1, (1, 0, 0, 0, 0), (1, 3, 1, 2, 2))],
    )
    writer.tensor(("scalar",), np.zeros((), np.float32), [(0, (), ())])
    for name in ("near", "far", "further"):
        writer.sparse((name,), "bfloat16", (1 << 20, 1 << 14), 1 << 4)
    data = writer.metadata()

    def rows(loaded: pickles.Loaded) -> Any:
        entries = pickles.pairs(pickles.attribute(loaded.root, "state_dict_metadata"))
        places = pickles.pairs(pickles.attribute(loaded.root, "storage_data"))
        assert entries is not None and places is not None
        tensors: list[Any] = [(name, t.shape, [(c.offsets, c.sizes) for c in t.chunks]) for name, t in entries]  # type: ignore[attr-defined]
        return tensors, [(k.name, k.offsets, p.file, p.start, p.nbytes) for k, p in places]  # type: ignore[attr-defined]

    from shardyard.formats.dcp.shortcuts import Shortcuts

    quick = pickles.load(data, collapse=COLLAPSE, shortcuts=Shortcuts().by_class())
    long = pickles.load(data, collapse=COLLAPSE)
    assert rows(quick) == rows(long)
    assert quick.end == long.end == len(data)
    assert max(start for *_, start, _ in rows(quick)[1]) > 1 << 32


def test_compressed_slices_decode_as_they_are_read(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path, ("stream.zstd/1",), zstandard.ZstdCompressor(write_content_size=False).compress)
    noise = np.random.default_rng(5).standard_normal((700, 600)).astype(np.float32)
    writer.tensor(("w",), noise, [(0, (0, 0), (300, 600)), (1, (300, 0), (400, 600))], fortran=True)
    writer.tensor(("zeros",), np.zeros(1 << 20, np.float32), [(0, (0,), (1 << 20,))])
    writer.value(("step",), 12)
    checkpoint = open_folder(writer.write())
    assert checkpoint.step == 12
    assert values(checkpoint) == noise.tobytes()
    assert values(checkpoint, "zeros") == bytes(4 << 20)


def test_a_damaged_compressed_slice_is_found_while_it_is_decoded(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path, ("stream.zstd/1",), zstandard.ZstdCompressor(level=1).compress)
    noise = np.random.default_rng(5).integers(0, 255, 300_000).astype(np.uint8)
    writer.tensor(("w",), noise, [(0, (0,), noise.shape)])
    writer.write()
    path = tmp_path / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[150_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        values(open_folder(tmp_path))


def test_an_unknown_transform_is_refused_by_name(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path, ("stream.lzma/1",))
    writer.tensor(("w",), WEIGHT, ROWS)
    finding = find(open_folder(writer.write()), "unsupported")
    assert "stream.lzma/1" in finding.message
    assert finding.tensors == ("w",)


@pytest.mark.parametrize(
    ("blocks", "code", "words"),
    [
        (ROWS[:1], "missing-tensor", "12 of its 24 elements"),
        ([ROWS[0], (1, (2, 0), (4, 4))], "corrupt", "same elements"),
        ([(0, (0, 0), (3, 4)), (1, (0, 0), (3, 4))], "corrupt", ""),
    ],
)
def test_chunks_that_do_not_fill_a_tensor_are_told(tmp_path: Path, blocks: list[Block], code: str, words: str) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(("w",), WEIGHT, blocks)
    checkpoint = open_folder(writer.write())
    finding = find(checkpoint, code)
    assert words in finding.message
    assert finding.blocks is not Blocks.NOTHING
    assert not checkpoint.mergeable


def test_a_slice_of_another_shape_than_promised_is_refused(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(("w",), WEIGHT, ROWS)
    writer.tensor(("v",), WEIGHT.T.copy(), [(0, (0, 0), (4, 3)), (1, (0, 3), (4, 3))])
    places = {key.fqn: place for key, place in writer.places.items() if key.offset == (0, 0)}
    swapped = vars(places["w"]).copy(), vars(places["v"]).copy()
    vars(places["v"]).update(swapped[0])
    vars(places["w"]).update(swapped[1])
    checkpoint = open_folder(writer.write())
    with pytest.raises(DamagedError, match=r"float32 tensor of shape \[4, 3\]"):
        values(checkpoint)


@pytest.mark.parametrize("file", ["/etc/passwd", "../__0_0.distcp", "a/../../x", ".."])
def test_a_place_outside_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(("w",), WEIGHT, ROWS)
    writer.write()
    for place in writer.places.values():
        place.relative_path = file
    (tmp_path / ".metadata").write_bytes(writer.metadata())
    checkpoint = open_folder(tmp_path)
    assert "outside its folder" in find(checkpoint, "corrupt").message
    assert not checkpoint.mergeable


def test_an_attribute_that_could_change_how_bytes_are_read_is_refused(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(("w",), WEIGHT, ROWS)
    writer.write()
    for place in writer.places.values():
        place.encryption = "aes"
    (tmp_path / ".metadata").write_bytes(writer.metadata())
    assert "encryption" in find(open_folder(tmp_path), "corrupt").message


@pytest.mark.parametrize("data", [b"", b"\x80\x04N.", pickle.dumps({"a": 1}), b"\x80\x04" + b"\x94" * 50, b"PK\x03\x04"])
def test_what_is_no_metadata_is_one_finding(tmp_path: Path, data: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    checkpoint = open_folder(tmp_path)
    assert [(f.paths, f.blocks) for f in checkpoint.findings] == [((".metadata",), Blocks.MERGE)]


def test_ranks_with_metadata_of_their_own_are_united(tmp_path: Path) -> None:
    for rank in range(2):
        writer = DcpWriter(tmp_path)
        writer.tensor(("w",), WEIGHT, [ROWS[rank]])
        writer.tensor(("plain",), WEIGHT[0], [(rank, (0,), (4,))])
        writer.value(("note",), f"rank {rank}", rank)
        writer.write(name=f"__{rank}.metadata")
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert values(checkpoint) == WEIGHT.tobytes()
    assert len(checkpoint.tensors["plain"].replicas) == 1
    assert checkpoint.objects[0].text == "'rank 0'"
    (tmp_path / "__1.metadata").unlink()
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-metadata").paths == ("__1.metadata",)
    assert checkpoint.tensors["w"].layout is None


def test_a_copy_stands_in_for_a_chunk_whose_file_is_missing(tmp_path: Path) -> None:
    for rank in range(2):
        writer = DcpWriter(tmp_path)
        writer.tensor(("plain",), WEIGHT, [(rank, (0, 0), (6, 4))])
        writer.write(name=f"__{rank}.metadata")
    (tmp_path / "__0_0.distcp").unlink()
    checkpoint = open_folder(tmp_path)
    assert find(checkpoint, "missing-shard").paths == ("__0_0.distcp",)
    assert values(checkpoint, "plain") == WEIGHT.tobytes()
    assert checkpoint.tensors["plain"].replicas == ()


def test_a_save_that_was_stopped_over_an_older_one_is_suspected(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor(("w",), WEIGHT, ROWS)
    writer.write()
    assert open_folder(tmp_path).findings == []
    os.utime(tmp_path / "__1_0.distcp", (time.time() + 3600,) * 2)
    finding = find(open_folder(tmp_path), "stale-file")
    assert finding.paths == ("__1_0.distcp",)
    assert not finding.sure
    # All of them later is how a copy looks that began with the hidden file.
    os.utime(tmp_path / "__0_0.distcp", (time.time() + 3600,) * 2)
    assert open_folder(tmp_path).findings == []
    (tmp_path / ".metadata.tmp").write_bytes(b"")
    assert find(open_folder(tmp_path), "stale-file").paths == (".metadata.tmp",)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_data_file_that_is_another_over_again_is_suspected(tmp_path: Path, compressed: bool) -> None:
    codec = (("stream.zstd/1",), zstandard.ZstdCompressor(write_content_size=False).compress) if compressed else ()
    writer = DcpWriter(tmp_path, *codec)
    noise = np.random.default_rng(7).integers(0, 255, (8, 500)).astype(np.uint8)
    # Compressed alike in length too: what is exchanged unnoticed has the same size.
    noise[4:] = noise[:4] if compressed else noise[4:]
    writer.tensor(("w",), noise, [(0, (0, 0), (4, 500)), (1, (4, 0), (4, 500))])
    opened = open_folder(writer.write())
    if not compressed:
        assert not opened.findings
        (tmp_path / "__1_0.distcp").write_bytes((tmp_path / "__0_0.distcp").read_bytes())
        opened = open_folder(tmp_path)
    found = find(opened, "duplicate-copy")
    assert (found.severity.value, found.sure, found.blocks, found.tensors) == ("warning", False, Blocks.NOTHING, ("w",))
    assert set(found.paths) == {"__0_0.distcp", "__1_0.distcp"}


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("rows", [2, 4000])
def test_equal_files_of_one_value_are_as_they_should_be(tmp_path: Path, value: float, rows: int) -> None:
    writer = DcpWriter(tmp_path)
    state = np.full((rows, 4), value, np.float32)
    for name in ("exp_avg", "exp_avg_sq"):
        writer.tensor((name,), state, [(r, (r * rows // 2, 0), (rows // 2, 4)) for r in range(2)])
    opened = open_folder(writer.write())
    assert (tmp_path / "__0_0.distcp").read_bytes() == (tmp_path / "__1_0.distcp").read_bytes()
    assert not [f for f in opened.findings if f.code == "duplicate-copy"]


def test_copies_of_one_chunk_are_not_suspected(tmp_path: Path) -> None:
    for rank in range(2):
        writer = DcpWriter(tmp_path)
        writer.tensor(("w",), WEIGHT, [(rank, (0, 0), (6, 4))])
        writer.write(name=f"__{rank}.metadata")
    opened = open_folder(tmp_path)
    assert opened.complete and not [f for f in opened.findings if f.code == "duplicate-copy"]


def test_metadata_and_data_on_different_disks_are_one_checkpoint(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path / "a")
    writer.tensor(("w",), WEIGHT, ROWS)
    writer.write()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / ".metadata").rename(tmp_path / "b" / ".metadata")
    (tmp_path / "a" / "__1_0.distcp").rename(tmp_path / "b" / "__1_0.distcp")
    assert values(open_folder(tmp_path / "a", tmp_path / "b")) == WEIGHT.tobytes()
    assert find(open_folder(tmp_path / "a"), "missing-metadata").blocks is Blocks.MERGE
    assert find(open_folder(tmp_path / "b"), "missing-shard").paths == ("__0_0.distcp",)


def test_opening_stops_when_asked_and_tells_how_far_it_is(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    for number in range(400):
        writer.sparse(("model", f"layers.{number}.w"), "bfloat16", (64, 64), 64)
    writer.write()
    steps: list[int] = []
    options = OpenOptions(progress=lambda name, done, total: steps.append(done * 100 // total))
    open_folder(tmp_path, options=options)
    assert len(steps) > 3 and steps == sorted(steps) and steps[-1] <= 100
    steps.clear()
    options.cancelled = lambda: len(steps) == 2
    with pytest.raises(Cancelled):
        open_folder(tmp_path, options=options)


def test_many_values_are_listed_and_only_some_are_read(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    for number in range(700):
        writer.value(("optim", "param_groups", number, "lr"), number)
    writer.value(("step",), 31)
    checkpoint = open_folder(writer.write())
    assert checkpoint.step == 31
    assert len(checkpoint.objects) == 701
    assert sum(o.text.startswith("not read") for o in checkpoint.objects) == 701 - 512


@pytest.mark.parametrize(
    ("paths", "parts", "default"),
    [
        ([("model", "w"), ("optim", "state", "w", "exp_avg")], {"model": ["w"], "optim": ["state.w.exp_avg"]}, "model"),
        ([("MODEL", "w")], {"MODEL": ["w"]}, "MODEL"),
        ([("w",), ("model.layers.0.v",)], {"model": ["model.layers.0.v", "w"]}, "model"),
        ([("app", "model", "w"), ("app", "optim", "state", "w")], {"app.model": ["w"], "app.optim": ["state.w"]}, "app.model"),
        ([("state_dict", "net.w")], {"state_dict": ["net.w"]}, "state_dict"),
        ([("state_dict", "model", "w")], {"state_dict.model": ["w"]}, "state_dict.model"),
        ([("models", 0, "w"), ("models", 1, "w")], {"models.0": ["w"], "models.1": ["w"]}, None),
        ([("model", "w"), ("ema", "w")], {"ema": ["w"], "model": ["w"]}, None),
        ([("actor", "w"), ("critic", "w")], {"actor": ["w"], "critic": ["w"]}, None),
        ([("model", "w"), ("extra", "a", "x"), ("mean",)], {"model": ["w"], "extra": ["a.x"], "other": ["mean"]}, "model"),
        ([("encoder", "w"), ("decoder", "w")], {"model": ["decoder.w", "encoder.w"]}, "model"),
        ([("model", "model.embed.w"), ("model", "lm_head.w")], {"model": ["lm_head.w", "model.embed.w"]}, "model"),
        ([("w",), ("dataloader", "state")], {"model": ["w"], "other": ["dataloader.state"]}, "model"),
        ([("state", "w", "exp_avg"), ("param_groups", 0, "lr")], {"optimizer": ["param_groups.0.lr", "state.w.exp_avg"]}, None),
    ],
)
def test_components_are_found_at_any_depth(
    tmp_path: Path, paths: list[tuple[str | int, ...]], parts: dict[str, list[str]], default: str | None
) -> None:
    writer = DcpWriter(tmp_path)
    for path in paths:
        writer.tensor(path, WEIGHT, ROWS)
    checkpoint = open_folder(writer.write())
    assert {name: sorted(part.tensors) for name, part in checkpoint.parts.items()} == parts
    assert checkpoint.part == default


def test_a_tensor_without_a_name_is_the_model_like_any_other(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path)
    writer.tensor((), WEIGHT, ROWS)
    assert values(open_folder(writer.write()), "") == WEIGHT.tobytes()


def test_names_stay_whole_where_no_paths_are_recorded(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path, paths=None)
    for path in (("model.w",), ("optimizer.state.exp_avg.model.w",), ("rng_state.x",)):
        writer.tensor(path, WEIGHT, ROWS)
    checkpoint = open_folder(writer.write())
    assert {name: list(part.tensors) for name, part in checkpoint.parts.items()} == {
        "model": ["model.w"],
        "optimizer": ["state.exp_avg.model.w"],
        "other": ["rng_state.x"],
    }
