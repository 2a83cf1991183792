"""safetensors files lose what no tensor uses, and copies that config.json ties, with the index in step."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from shardyard.errors import CheckpointError
from shardyard.operations.context import Context
from shardyard.operations.shrink.planning import plan_shrink
from shardyard.operations.shrink.run import shrink

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.numpy")


def run(*args: Any, **options: Any) -> dict[str, Any]:
    return shrink(plan_shrink(*args, **options), Context())


def write(path: Path, entries: dict[str, tuple[str, list[int], int, bytes]], tail: bytes = b"") -> None:
    """Entries as (dtype, shape, offset, bytes); holes and a tail as wanted."""
    end = max(offset + len(data) for _, _, offset, data in entries.values())
    body = bytearray(end)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape, offset, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        body[offset : offset + len(data)] = data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body + tail)


def test_holes_and_trailing_bytes_go(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    a, b = np.arange(4, dtype="<f4"), np.arange(6, dtype="<i8").reshape(2, 3)
    write(path, {"b": ("I64", [2, 3], 1000, b.tobytes()), "a": ("F32", [4], 64, a.tobytes())}, b"\0" * 5000)
    result = run([path], in_place=True)
    assert result["saved"] > 5900
    loaded = safetensors.load_file(path)
    assert list(loaded) == ["a", "b"] and (loaded["a"] == a).all() and (loaded["b"] == b).all()
    with path.open("rb") as file:
        header = json.loads(file.read(8 + 400)[8:].split(b"}}")[0] + b"}}")
    assert header["__metadata__"] == {"format": "pt"}
    assert run([path], in_place=True)["saved"] == 0


def test_overlapping_or_repeated_tensors_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {"a": ("F32", [4], 0, bytes(16)), "b": ("F32", [4], 8, bytes(16))}, b"tail" * 100)
    before = path.read_bytes()
    with pytest.raises(CheckpointError):
        plan_shrink([path], in_place=True)
    (row,) = run([tmp_path], in_place=True)["files"]
    assert row["saved"] == 0 and path.read_bytes() == before


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A sharded model whose config ties the head to the embedding, with the head stored again."""
    folder = tmp_path / "model"
    folder.mkdir()
    embedding, other = np.random.default_rng(1).normal(size=(64, 16)).astype("f4"), np.ones((16, 16), "f4")
    safetensors.save_file({"model.embed_tokens.weight": embedding}, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
    second = {"lm_head.weight": embedding.copy(), "model.layers.0.w": other}
    safetensors.save_file(second, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
    places = {"model.embed_tokens.weight": 1, "lm_head.weight": 2, "model.layers.0.w": 2}
    index = {
        "metadata": {"total_size": 2 * 4096 + 1024},
        "weight_map": {n: f"model-0000{i}-of-00002.safetensors" for n, i in places.items()},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    return folder


@pytest.mark.parametrize("where", ["in place", "out"])
def test_an_equal_copy_of_a_tied_weight_goes_and_the_index_follows(tied: Path, where: str, tmp_path: Path) -> None:
    out = tmp_path / "small"
    assert not any(f.shrunk for f in plan_shrink([tied], out).files)
    result = run([tied], in_place=True, dedupe_tied=True) if where == "in place" else run([tied], out, dedupe_tied=True)
    folder = tied if where == "in place" else out
    assert result["saved"] > 3900
    assert list(safetensors.load_file(folder / "model-00002-of-00002.safetensors")) == ["model.layers.0.w"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {"model.embed_tokens.weight", "model.layers.0.w"}
    assert index["metadata"]["total_size"] == 4096 + 1024
    with (folder / "model-00002-of-00002.safetensors").open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        assert json.loads(file.read(length))["__metadata__"] == {
            "format": "pt",
            "lm_head.weight": "model.embed_tokens.weight",
        }


def test_a_copy_that_differs_is_kept_and_said(tied: Path) -> None:
    path = tied / "model-00002-of-00002.safetensors"
    tensors = safetensors.load_file(path)
    tensors["lm_head.weight"][3, 3] += 1
    safetensors.save_file(tensors, path, {"format": "pt"})
    before = {p.name: p.read_bytes() for p in tied.iterdir()}
    said: list[str] = []

    class Listen(Context):
        def finding(self, finding: Any) -> None:
            said.append(finding.code)

    result = shrink(plan_shrink([tied], in_place=True, dedupe_tied=True), Listen())
    assert said == ["tie-disagrees"] and result["saved"] == 0
    assert {p.name: p.read_bytes() for p in tied.iterdir()} == before


def test_equal_copies_in_a_torch_file_become_one_storage(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(64, 16)
    path = tmp_path / "pytorch_model.bin"
    torch.save(
        {"model.embed_tokens.weight": weight, "lm_head.weight": torch.nn.Parameter(weight.clone()), "n": torch.ones(3)}, path
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    assert run([path], in_place=True)["saved"] == 0
    assert run([path], in_place=True, dedupe_tied=True)["saved"] > 3900
    loaded = torch.load(path)
    assert loaded["lm_head.weight"].data_ptr() == loaded["model.embed_tokens.weight"].data_ptr()
    assert torch.equal(loaded["lm_head.weight"], weight) and isinstance(loaded["lm_head.weight"], torch.nn.Parameter)
