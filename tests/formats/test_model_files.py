"""safetensors, model folders, adapters, GGUF and NumPy files: every tensor as the libraries that wrote them have it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.discover import open_checkpoint
from shardyard.dtypes import BY_NAME, BY_SAFETENSORS
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Severity
from shardyard.formats.safetensors.file import open_safetensors
from shardyard.operations.gather import blocks
from support.checkpoints import cases, fixture_root


def expected(case: Path) -> dict[str, Any]:
    found = json.loads((case / "expected.json").read_text())
    assert isinstance(found, dict)
    return found


def digest(tensor: Tensor, handles: FileHandles) -> str:
    found = hashlib.sha256()
    for _, block in blocks(tensor, handles):
        found.update(block)
    return found.hexdigest()[:16]


def matches(tensor: Tensor, row: dict[str, Any], handles: FileHandles) -> bool:
    """Name, dtype, shape, bytes and values of one tensor."""
    dtype = BY_SAFETENSORS.get(row["dtype"]) or BY_NAME[row["dtype"]]
    shape = tuple(row["shape"])
    if row["dtype"] == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    facts = (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes)
    return facts == (row["name"], dtype, shape, row["nbytes"]) and digest(tensor, handles) == row["sha256_16"]


def rows_of(case: Path) -> dict[str, list[dict[str, Any]]]:
    """The expected tensors by file."""
    return {name: file["tensors"] for name, file in expected(case).get("files", {}).items() if "tensors" in file}


@pytest.mark.parametrize("prefix", ["a1_", "a4_peft_lora", "a4_diffusers", "a6_"])
def test_every_tensor_is_as_its_writer_has_it(prefix: str) -> None:
    checked = 0
    with FileHandles() as handles:
        for case in cases("files", prefix):
            for name, rows in rows_of(case).items():
                folder = case / Path(name).parent if Path(name).parent != Path() else case
                tensors = open_checkpoint(folder).tensors
                wrong = [r["name"] for r in rows if not matches(tensors[r["name"]], r, handles)]
                assert not wrong, f"{case.name}/{name}"
                checked += len(rows)
    assert checked >= {"a1_": 350, "a4_peft_lora": 16, "a4_diffusers": 112, "a6_": 60}[prefix]


def test_ties_are_one_tensor_and_parameters_count_them_once() -> None:
    from shardyard.health import facts

    for case in cases("files", "a1_"):
        answers = expected(case)
        checkpoint = open_checkpoint(case)
        assert facts.parameters(checkpoint) == answers["parameters_counting_tied_once"], case.name
        names = set(checkpoint.tensors)
        groups = [sorted(g) for g in answers["tied_in_memory"] if len(set(g) & names) > 1]
        assert sorted(sorted(g) for g in facts.tied_groups(checkpoint)) == sorted(sorted(set(g) & names) for g in groups)


def test_fifty_thousand_tensors_have_their_values() -> None:
    tensors = open_checkpoint(fixture_root() / "files" / "a6_50000_tensors").tensors
    assert len(tensors) == 50_000
    with FileHandles() as handles:
        for i in (0, 1, 255, 256, 31_337, 49_999):
            assert [bytes(b) for _, b in blocks(tensors[f"t{i}"], handles)] == [bytes([i % 256])]


def test_gguf_tensors_lie_where_the_library_puts_them() -> None:
    case = fixture_root() / "files" / "a4_gguf"
    checkpoint = open_checkpoint(case / "model.gguf")
    for row in expected(case)["tensors"]:
        tensor = checkpoint.tensors[row["name"]]
        assert (
            tensor.shape == tuple(reversed(row["ne"])) and tensor.nbytes == row["n_bytes"] and tensor.numel == row["n_elements"]
        )
        piece = next(tensor.pieces(0, tensor.nbytes))
        assert piece.record.start + piece.source_offset == row["data_offset"]
    assert checkpoint.metadata["general.architecture"] == "llama" and not checkpoint.mergeable


@pytest.mark.parametrize("name", ["weights.npz", "weights_compressed.npz"])
def test_numpy_archives_give_what_numpy_loads(name: str) -> None:
    path = fixture_root() / "files" / "a4_npz" / name
    tensors = open_checkpoint(path).tensors
    with np.load(path) as arrays, FileHandles() as handles:
        assert set(tensors) == set(arrays.files)
        for key in arrays.files:
            array = np.ascontiguousarray(arrays[key])
            assert b"".join(bytes(b) for _, b in blocks(tensors[key], handles)) == array.tobytes(), key
            assert tensors[key].shape == arrays[key].shape


def test_arrays_of_objects_are_listed_and_never_loaded() -> None:
    checkpoint = open_checkpoint(fixture_root() / "files" / "a4_npz" / "with_objects.npz")
    assert checkpoint.tensors["o"].layout is None and checkpoint.tensors["w"].layout is not None


def test_an_adapter_knows_its_rank_alpha_and_base() -> None:
    for name in ("a4_peft_lora", "a4_peft_lora_bin"):
        checkpoint = open_checkpoint(fixture_root() / "files" / name)
        settings = {k: checkpoint.metadata[k] for k in ("rank", "alpha", "base model")}
        assert settings == {"rank": "4", "alpha": "8", "base model": "example-org/tiny-llama"}


def refused(path: Path) -> bool:
    """Whether the reference library refuses a file."""
    try:
        with safe_open(path, framework="np") as file:
            file.keys()
    except (SafetensorError, OSError):
        return True
    return False


def clean(path: Path) -> bool:
    """Whether our reader finds nothing wrong with it."""
    try:
        with FileHandles() as handles:
            file = open_safetensors(handles, str(path))
    except DamagedError:
        return False
    return not any(f.severity is Severity.ERROR or f.code == "unsupported" for f in file.findings)


def test_what_the_reference_refuses_is_refused_here_and_nothing_else() -> None:
    files = list((fixture_root() / "hostile" / "safetensors").iterdir())
    files += [f for case in cases("files", "a6_") for f in case.glob("*.safetensors")]
    # A repeated name with equal offsets is the one thing that the reference lets pass.
    differ = {p.name for p in files if clean(p) == refused(p)}
    assert differ == {"dup_keys_same.safetensors"} and len(files) > 70


def test_a_tensor_beyond_the_end_is_listed_without_its_data(tmp_path: Path) -> None:
    whole = (fixture_root() / "files" / "a1_llama_safetensors" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    checkpoint: Checkpoint = open_checkpoint(tmp_path)
    missing = [n for n, t in checkpoint.tensors.items() if t.layout is None]
    assert len(checkpoint.tensors) == 21 and len(missing) == 1 and not checkpoint.complete


def test_settings_of_an_adapter_beside_a_model_that_holds_it_make_no_empty_adapter(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    alone = open_checkpoint(tmp_path)
    assert [f.code for f in alone.findings] == ["missing-shard"]
    save_file({"base_model.model.w.base_layer.weight": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    whole = open_checkpoint(tmp_path)
    assert (whole.kind.value, whole.complete, len(whole.tensors)) == ("safetensors", True, 1)
