"""Torch files of every container and content give the names, shapes and values that torch itself gives."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardyard.checkpoint import CheckpointKind, Tensor
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Severity
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.pickles.writer import dump
from shardyard.formats.torch import sharing
from shardyard.formats.torch.file import open_torch
from shardyard.formats.zip_directory import DeflatedRecord
from shardyard.operations import gather
from support.checkpoints import cases, fixture_root
from support.torch_answers import everything, open_file, torch_files

FILES = list(torch_files())
MORE_SHOWN = ("a3_numpy", "a3_hf_trainer_checkpoint-12", "a3_quantized", "a3_python_objects")
"""Cases in which more is shown than torch lists: numpy arrays, scales of quantisers, arguments of unknown calls."""


def values(tensor: Tensor) -> str:
    digest = hashlib.sha256()
    with FileHandles() as handles:
        for _, block in gather.blocks(tensor, handles):
            digest.update(block)
    return digest.hexdigest()[:16]


def label(value: object) -> str:
    return f"{value.parent.name}/{value.name}" if isinstance(value, Path) else ""


def facts(tensor: Tensor) -> tuple[str, list[int], str | None]:
    return tensor.dtype.name, list(tensor.shape), values(tensor) if tensor.layout is not None else None


@pytest.mark.parametrize(("path", "entry"), FILES, ids=label)
def test_tensors_have_their_names_shapes_and_values(path: Path, entry: dict[str, Any]) -> None:
    found = everything(path)
    wanted = [part for row in entry["tensors"] for part in row.get("parts") or [row]]
    for row in wanted:
        assert (row["dtype"], row["shape"], row.get("sha256_16")) in [facts(t) for t in found if t.name == row["name"]], row[
            "name"
        ]
    if path.parent.name not in MORE_SHOWN:
        assert len(found) == len(wanted)


@pytest.mark.parametrize(("path", "entry"), FILES, ids=label)
def test_stored_touched_and_ideal_bytes_are_exact(path: Path, entry: dict[str, Any]) -> None:
    uses = sharing.analyse(t for t in everything(path) if not t.name.endswith(("::scales", "::zero_points", ".(1)")))
    assert sum(u.stored for u in uses) == entry["storage_bytes"]
    assert sum(u.touched for u in uses) == entry["touched_bytes"]
    assert sum(u.ideal for u in uses) == entry["ideal_keep_sharing_bytes"]
    assert sum(u.distinct for u in uses) == entry["distinct_view_bytes"]
    assert all(c.exact for u in uses for c in u.clusters)


def test_ties_are_the_names_of_one_view() -> None:
    for path, entry in FILES:
        checkpoint = open_file(path)
        if checkpoint.part is not None and "optimizer" not in checkpoint.parts:
            listed = {row["name"] for row in entry["tensors"]}
            full = [[f"{checkpoint.part}.{n}" for n in tie.names] for tie in checkpoint.ties]
            got = [
                names if listed.issuperset(names) else list(tie.names) for names, tie in zip(full, checkpoint.ties, strict=True)
            ]
            assert sorted(map(sorted, got)) == entry["tied_groups"], path


def test_undamaged_files_have_no_warnings() -> None:
    said = {
        str(path.relative_to(fixture_root())): f.message
        for path, _ in FILES
        for f in open_file(path).findings
        if f.severity is not Severity.INFO
    }
    # A meta tensor has no data, two names collide, and one file was written without its values.
    assert {key.split("/")[1] for key in said} == {"a3_meta_device", "a3_root_kinds", "a3_skip_data"}


def test_other_containers_are_read_too() -> None:
    for case, names in (
        ("a3_legacy_tar", ["a", "a_again", "row1"]),
        ("a3_torch_package", ["w", "v"]),
        ("a3_torchscript", ["0.weight", "0.bias"]),
    ):
        (folder,) = cases("files", case)
        (path,) = folder.glob("*.pt")
        checkpoint = open_file(path)
        assert sorted(checkpoint.tensors) == sorted(names)
        assert all(values(t) for t in checkpoint.tensors.values())
    (folder,) = cases("files", "a3_legacy_tar")
    tar = open_file(folder / "model.pt").tensors
    assert values(tar["row1"]) == hashlib.sha256(struct.pack("<3f", 3, 4, 5)).hexdigest()[:16]


def test_a_jagged_tensor_shows_its_parts() -> None:
    (folder,) = cases("files", "a3_nested_jagged")
    checkpoint = open_file(folder / "model.pt")
    assert {"nt::values", "nt::offsets"} <= set(checkpoint.tensors)
    assert checkpoint.composites[0].kind == "nested_jagged"


def test_parts_are_models_optimizers_and_the_rest() -> None:
    (folder,) = cases("files", "a2_training_checkpoint")
    checkpoint = open_file(folder / "checkpoint.pt")
    assert checkpoint.part == "model" and set(checkpoint.parts) == {"model", "fp32_master", "optimizer", "other"}
    assert list(checkpoint.tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert checkpoint.step == 1234
    assert checkpoint.usage.weights == 1352 and checkpoint.usage.optimizer and not checkpoint.usage.wasted


def test_a_file_with_two_models_has_no_default(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "both.pt"
    torch.save(
        {"model": {"w": torch.ones(3)}, "ema": {"w": torch.zeros(3)}, "optimizer": {"state": {}, "param_groups": []}}, path
    )
    checkpoint = open_file(path)
    assert checkpoint.part is None and [p.name for p in checkpoint.parts.values() if p.model] == ["model", "ema"]
    assert set(open_file(path, part="ema").tensors) == {"w"}


def test_dicts_under_names_that_say_nothing_stay_together(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "two.pt"
    torch.save({"encoder": {"w": torch.ones(3)}, "decoder": {"w": torch.zeros(3)}}, path)
    assert set(open_file(path).tensors) == {"encoder.w", "decoder.w"}


def test_modules_leave_out_what_a_state_dict_leaves_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module.register_buffer("mask", torch.ones(4), persistent=False)
    path = tmp_path / "module.pt"
    torch.save(module, path)
    checkpoint = open_file(path)
    assert set(checkpoint.tensors) == set(module.state_dict())
    assert list(checkpoint.parts["other"].tensors) == ["mask"]
    assert checkpoint.usage.wasted == 0


def test_deflated_records_decode_to_their_values(tmp_path: Path) -> None:
    path = fixture_root() / "hostile" / "zip" / "deflated.pt"
    checkpoint = open_file(path)
    layout = checkpoint.tensors["w"].layout
    assert layout is not None
    (record,) = layout.records()
    assert isinstance(record, DeflatedRecord)
    with FileHandles() as handles:
        assert b"".join(record.decode(handles)) == struct.pack("<4f", 1, 2, 3, 4)


def test_a_damaged_deflated_record_is_refused(tmp_path: Path) -> None:
    source = fixture_root() / "hostile" / "zip" / "deflated.pt"
    path = tmp_path / "deflated.pt"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            new.writestr(item.filename, old.read(item) if "data/0" not in item.filename else bytes(range(200)) * 9)
    raw = bytearray(path.read_bytes())
    at = raw.find(b"archive/data/0") + 14
    raw[at + 20] ^= 0xFF
    path.write_bytes(raw)
    with FileHandles() as handles:
        record = open_torch(handles, str(path)).storages["0"]
        assert isinstance(record, DeflatedRecord)
        with pytest.raises(DamagedError):
            list(record.decode(handles))


def test_a_legacy_file_is_read_only_as_far_as_its_pickles(tmp_path: Path) -> None:
    numel = 1 << 32
    name = Global("torch", "FloatStorage")
    storage = ("storage", name, "7", "cpu", numel, None)

    class Stored:
        pass

    stored = Stored()
    call = Call("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), (stored, 0, (numel,), (1,), False, None))
    pickles = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}]
    data = b"".join(dump(p) for p in pickles)
    data += (
        dump(Dict([("w", call)]), persistent_id=lambda v: storage if v is stored else None)
        + dump(["7"])
        + struct.pack("<q", numel)
    )
    path = tmp_path / "large.pt"
    path.write_bytes(data)
    os.truncate(path, len(data) + 4 * numel)
    with FileHandles() as handles:
        file = open_torch(handles, str(path))
        assert file.storages["7"].start == len(data) and file.storages["7"].nbytes == 4 * numel
        assert handles.bytes_read < 1 << 20


def test_numpy_arrays_are_shown_with_their_values(tmp_path: Path) -> None:
    (folder,) = cases("files", "a3_numpy")
    shown = {p.name: {t.name: t for t in everything(p)} for p in sorted(folder.glob("*.pt"))}
    for tensors in shown.values():
        assert tensors["arr"].shape == (3, 4) and tensors["arrF"].dtype.name == "float64" and tensors["empty"].shape == (0, 3)
        assert values(tensors["big"]) == hashlib.sha256(struct.pack("<3i", 0, 1, 2)).hexdigest()[:16]
    first, *others = ({n: values(t) for n, t in tensors.items()} for tensors in shown.values())
    assert all(other == first for other in others)


def test_a_tensor_of_a_newer_torch_is_said_to_be_unreadable() -> None:
    checkpoint = open_file(fixture_root() / "hostile" / "pickle" / "unknown_rebuild.pt")
    assert checkpoint.tensors["w"].layout is None and checkpoint.tensors["ok"].layout is not None
    assert not checkpoint.complete


def test_training_state_is_no_model() -> None:
    (folder,) = cases("files", "a3_hf_trainer_checkpoint-12")
    for name in ("optimizer.pt", "rng_state.pth", "scheduler.pt"):
        checkpoint = open_file(folder / name)
        assert checkpoint.kind is CheckpointKind.TORCH and checkpoint.part is None and not checkpoint.mergeable


def test_what_is_whole_in_a_hostile_file_is_read() -> None:
    listed = json.loads((fixture_root() / "hostile" / "expected.json").read_text())["cases"]
    asked = [c for c in listed if c.get("tensors") and c["path"].endswith((".pt", "zip_named.safetensors"))]
    one_to_four = hashlib.sha256(struct.pack("<4f", 1, 2, 3, 4)).hexdigest()[:16]
    for case in asked:
        if case["path"].startswith("mislabelled/safetensors"):
            continue
        tensors = open_file(fixture_root() / "hostile" / case["path"]).tensors
        for name in case["tensors"]:
            layout = tensors[name].layout
            assert layout is not None
            if not any(isinstance(r, DeflatedRecord) for r in layout.records()):
                assert values(tensors[name]) == one_to_four
    assert len(asked) > 35


def test_values_of_four_bits_are_packed_two_to_a_byte(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.0, 1.0, 2.0])
    path = tmp_path / "q.pt"
    torch.save({"q": torch.quantize_per_channel(torch.randn(3, 6), scales, zeros, 0, torch.quint4x2)}, path)
    checkpoint = open_file(path)
    assert checkpoint.tensors["q"].nbytes == 9 and values(checkpoint.tensors["q"])
    assert checkpoint.usage.wasted == 0 and not checkpoint.findings


def test_views_of_old_legacy_storages_are_followed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    cls = Global("torch", "FloatStorage")
    whole, part = object(), object()
    ids = {id(whole): ("storage", cls, "7", "cpu", 6, None), id(part): ("storage", cls, "7", "cpu", 6, ("9", 2, 3))}

    def tensor(storage: object, offset: int, size: int) -> Call:
        args = (storage, offset, (size,), (1,), False, Call("REDUCE", Global("collections", "OrderedDict"), ()))
        return Call("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), args)

    root = Dict([("all", tensor(whole, 0, 6)), ("view", tensor(part, 1, 2))])
    data = b"".join(dump(p) for p in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}))
    data += dump(root, persistent_id=lambda v: ids.get(id(v))) + dump(["7"]) + struct.pack("<q6f", 6, *range(6))
    path = tmp_path / "old.pt"
    path.write_bytes(data)
    found = open_file(path).tensors
    loaded = torch.load(path)
    for name in ("all", "view"):
        assert values(found[name]) == hashlib.sha256(loaded[name].numpy().tobytes()).hexdigest()[:16]
    assert loaded["view"].tolist() == [3.0, 4.0]
