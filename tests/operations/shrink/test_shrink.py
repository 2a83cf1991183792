"""Shrink reaches the ideal bytes, keeps every value, tie and object, and leaves alone what cannot be made smaller."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardyard.errors import CheckpointError, OutputExistsError, UnsupportedError, UsageError
from shardyard.files import FileHandles
from shardyard.formats.pickles import load as load_pickle
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch import graphs
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.rewrite import WORTHWHILE
from shardyard.formats.torch.tensors import StorageRef, storage_of
from shardyard.operations.context import Context
from shardyard.operations.shrink.meter import Meter
from shardyard.operations.shrink.plan import ShrinkPlan
from shardyard.operations.shrink.planning import plan_shrink
from shardyard.operations.shrink.run import shrink
from shardyard.operations.shrink.torch import TorchShrink
from support.checkpoints import cases, fixture_root
from support.torch_answers import torch_files

torch = pytest.importorskip("torch")
oracle = pytest.importorskip("support.torch_oracle")


def run(plan: ShrinkPlan) -> dict[str, Any]:
    return shrink(plan, Context())


def copy(source: Path, folder: Path) -> Path:
    """A writable copy."""
    target = folder / source.name
    target.write_bytes(source.read_bytes())
    return target


def stored(path: Path) -> int:
    with FileHandles() as handles:
        return sum(r.nbytes for r in open_torch(handles, str(path)).storages.values())


def test_every_bloated_file_reaches_its_ideal_bytes_and_means_the_same(tmp_path: Path) -> None:
    wasted = [
        (p, e)
        for p, e in torch_files("a2_")
        if e["storage_records_bytes"] - e["ideal_keep_sharing_bytes"] >= WORTHWHILE and "bare" not in str(p)
    ]
    assert len(wasted) >= 15
    for number, (path, entry) in enumerate(wasted):
        out = tmp_path / str(number) / path.name
        out.parent.mkdir()
        result = run(plan_shrink([path], out.with_suffix(".pt")))
        made = out.with_suffix(".pt")
        assert stored(made) == entry["ideal_keep_sharing_bytes"], path
        assert result["saved"] == path.stat().st_size - made.stat().st_size > 0
        oracle.Compare().same(oracle.load(path), oracle.load(made), str(path))


@pytest.mark.parametrize("case", ["z1_bloat_gpt2_2groups", "z2_bloat_llama"])
def test_shards_of_a_flat_buffer_end_at_the_size_of_a_clean_save(case: str, tmp_path: Path) -> None:
    (folder,) = (c for c in cases("deepspeed") if c.name == case)
    out = tmp_path / "small"
    result = run(plan_shrink([folder], out))
    clean = made = 0
    for path in sorted(folder.glob("*.bin")):
        before = torch.load(path)
        copies: dict[Any, Any] = {}
        for tensor in before.values():
            copies.setdefault((tensor.storage_offset(), tuple(tensor.shape), tensor.untyped_storage().data_ptr()), tensor.clone())
        tidy = tmp_path / path.name
        torch.save(
            {k: copies[v.storage_offset(), tuple(v.shape), v.untyped_storage().data_ptr()] for k, v in before.items()}, tidy
        )
        clean, made = clean + tidy.stat().st_size, made + (out / path.name).stat().st_size
        oracle.Compare().same(before, torch.load(out / path.name, weights_only=True), path.name)
    assert made <= 1.02 * clean and result["saved"] > clean // 2
    assert (out / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert (out / "pytorch_model.bin.index.json").exists() and (out / ".shardyard.json").exists()


def healthy() -> list[Path]:
    found = [p for p, _ in torch_files()]
    for family in ("deepspeed", "dcp"):
        for case in cases(family):
            found += [p for p in sorted(case.rglob("*")) if p.suffix in (".pt", ".pth", ".bin") and p.is_file()]
    return [p for p in found if "broken" not in str(p) and p.stat().st_size < 1 << 20]


def test_every_healthy_file_passes_through_the_pickler_unchanged_in_meaning(tmp_path: Path) -> None:
    def hook(pid: object) -> object:
        value = storage_of(pid)
        if isinstance(value, StorageRef) and isinstance(pid, tuple):
            value.pid = pid
        return value

    count = 0
    with FileHandles() as handles:
        for path in healthy():
            try:
                file = open_torch(handles, str(path), raw=True)
            except CheckpointError:
                continue
            data = pickle_writer.dump(
                file.root, file.protocol, persistent_id=lambda v: v.pid if isinstance(v, StorageRef) else None
            )
            graphs.compare(file.root, load_pickle(data, persistent=hook).root)
            count += 1
    assert count > 700


def test_every_healthy_file_written_anew_loads_in_torch_and_is_otherwise_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "anew.pt"
    meter = Meter(Context(), 1)
    seen: set[tuple[str, str]] = set()
    for path in healthy():
        kind = (path.parent.parent.name, path.name.translate(str.maketrans("", "", "0123456789")))
        if "/files/" not in str(path) and kind in seen:
            continue
        seen.add(kind)
        with FileHandles() as handles:
            try:
                new = TorchShrink(handles, str(path))
            except UnsupportedError:
                continue
            if "a3_skip_data" in str(path):
                continue
            fd = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            new.write(fd, meter)
            os.close(fd)
            new.prove(str(out), meter)
            if "/files/" in str(path) and "a2_" not in str(path):
                assert not new.worthwhile, path
        if "/dcp/" not in str(path):
            # Rank files hold distributed tensors, which torch only makes where a process group runs: the proof must do.
            oracle.Compare().same(oracle.load(path), oracle.load(out), str(path))
    assert len(seen) > 200


def test_what_torch_takes_with_weights_only_it_still_takes(tmp_path: Path) -> None:
    for path, entry in torch_files("a2_"):
        if entry["weights_only_load"] == "ok":
            out = tmp_path / "anew.pt"
            with FileHandles() as handles:
                fd = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                TorchShrink(handles, str(path)).write(fd, Meter(Context(), 1))
                os.close(fd)
            torch.load(out, weights_only=True)
            torch.load(out, weights_only=True, mmap=entry["container"] == "zip")


def test_files_of_other_kinds_are_refused_by_name() -> None:
    for case, name in (("a3_torchscript", "scripted.pt"), ("a3_torch_package", "pkg.pt"), ("a3_legacy_tar", "model.pt")):
        (folder,) = cases("files", case)
        with pytest.raises(UnsupportedError):
            plan_shrink([folder / name])
        plan = plan_shrink([folder])
        assert all(not f.shrunk for f in plan.files) and plan.looked_at[0].why


def test_a_damaged_record_is_refused_and_the_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1000), "b": torch.zeros(10_000)[:5]}, path)
    data = bytearray(path.read_bytes())
    with FileHandles() as handles:
        data[open_torch(handles, str(path)).storages["0"].locate(handles) + 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum"):
        run(plan_shrink([path], in_place=True))
    assert path.read_bytes() == data and os.listdir(tmp_path) == ["model.pt"]


def test_default_names_leave_out_steps_optimizers_and_files_that_are_addressed_by_bytes(tmp_path: Path) -> None:
    bloated = {"w": torch.zeros(50_000)[:10]}
    for name in (
        "pytorch_model.bin", "optimizer.pt", "rng_state.pth", "training_args.bin", "other.bin", "a.ckpt",
        "deep/adapter_model.bin",
        "global_step3/mp_rank_00_model_states.pt", "global_step3/layer_00-model_00-model_states.pt", "dcp/__0_0.distcp",
        "dcp/.metadata",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            torch.save(bloated, file)
    named = {f.found.name for f in plan_shrink([tmp_path]).files if f.shrunk}
    assert named == {"pytorch_model.bin", "a.ckpt", "deep/adapter_model.bin", "global_step3/layer_00-model_00-model_states.pt"}
    assert plan_shrink([tmp_path / "optimizer.pt"]).files[0].shrunk
    assert {f.found.name for f in plan_shrink([tmp_path / "global_step3"]).files if f.shrunk} == {
        "mp_rank_00_model_states.pt", "layer_00-model_00-model_states.pt",
    }  # fmt: skip
    assert {f.found.name for f in plan_shrink([tmp_path], pattern="o*.*").files if f.shrunk} == {"optimizer.pt", "other.bin"}
    assert not any(f.shrunk for f in plan_shrink([tmp_path], pattern="*.distcp").files)


def test_an_output_is_the_whole_folder_and_never_overwrites(tmp_path: Path) -> None:
    source = tmp_path / "model"
    (source / "sub").mkdir(parents=True)
    torch.save({"w": torch.zeros(50_000)[:10]}, source / "pytorch_model.bin")
    (source / "sub" / "notes.txt").write_text("kept")
    run(plan_shrink([source], tmp_path / "small"))
    assert (tmp_path / "small" / "sub" / "notes.txt").read_text() == "kept"
    assert (tmp_path / "small" / "pytorch_model.bin").stat().st_size < 2500
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "small"]
    with pytest.raises(OutputExistsError):
        plan_shrink([source], tmp_path / "small")
    with pytest.raises(UsageError):
        plan_shrink([source], tmp_path / "x", in_place=True)
    with pytest.raises(UsageError):
        plan_shrink([source], source / "inside")


def test_an_interrupted_output_goes_on_with_the_files_that_are_left(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for i in range(4):
        torch.save({"w": torch.full((50_000,), float(i))[:100]}, source / f"pytorch_model-{i}.bin")

    items: set[str] = set()

    class StopAfterTwo(Context):
        def progress(self, progress: Any) -> None:
            items.add(progress.item)

        def cancelled(self) -> bool:
            return len(items) > 2

    with pytest.raises(Exception, match="Cancelled"):
        shrink(plan_shrink([source], tmp_path / "small"), StopAfterTwo())
    staged = tmp_path / "small.shardyard-partial" / "out"
    times = {p.name: p.stat().st_ino for p in staged.iterdir()}
    assert len(times) == 2 and not (tmp_path / "small").exists()
    run(plan_shrink([source], tmp_path / "small"))
    assert {n: (tmp_path / "small" / n).stat().st_ino for n in times} == times
    for i in range(4):
        assert torch.equal(torch.load(tmp_path / "small" / f"pytorch_model-{i}.bin")["w"], torch.full((100,), float(i)))


def test_the_plan_reads_no_data_and_the_report_adds_up(tmp_path: Path) -> None:
    (folder,) = cases("files", "a2_flat_buffer_3_shards")
    plan = plan_shrink([folder]).to_json()
    entry = json.loads((folder / "expected.json").read_text())
    assert plan["before"] == entry["total_file_bytes"]
    assert plan["saved"] == plan["before"] - plan["after"] == sum(f["saved"] for f in plan["files"])
    result = run(plan_shrink([folder], tmp_path / "out"))
    assert (result["before"], result["after"], result["saved"]) == (plan["before"], plan["after"], plan["saved"])
    assert result["lines"][-1].startswith("In all:") and len(result["lines"]) == 4


def test_foreign_classes_come_back_where_they_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("lab_private")
    source = """
class Config:
    def __init__(self, lr): self.lr, self.self_ = lr, self
class Registry(dict): pass
class Loop:
    __slots__ = ("state", "peer")
"""
    exec(compile(source, "lab_private.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "lab_private", module)
    for thing in (module.Config, module.Registry, module.Loop):
        thing.__module__ = "lab_private"
    flat = torch.arange(40_000.0)
    loop = module.Loop()
    loop.state, loop.peer = flat[5:15], loop
    registry = module.Registry(a=flat[10:20], config=module.Config(0.1))
    registry["registry"] = registry
    path = tmp_path / "run.pt"
    torch.save({"registry": registry, "loop": loop, "again": registry, "view": flat[5:15]}, path)
    monkeypatch.delitem(sys.modules, "lab_private")
    run(plan_shrink([path], in_place=True))
    assert path.stat().st_size < 4000
    monkeypatch.setitem(sys.modules, "lab_private", module)
    loaded = torch.load(path, weights_only=False)
    assert loaded["again"] is loaded["registry"] is loaded["registry"]["registry"]
    assert type(loaded["registry"]) is module.Registry and loaded["registry"]["config"].self_ is loaded["registry"]["config"]
    assert loaded["loop"].peer is loaded["loop"] and torch.equal(loaded["loop"].state, flat[5:15])
    assert loaded["view"].data_ptr() == loaded["loop"].state.data_ptr()
    assert loaded["registry"]["a"].untyped_storage().data_ptr() == loaded["view"].untyped_storage().data_ptr()


def rewrite(path: Path, out: str) -> bool:
    try:
        with FileHandles() as handles:
            new = TorchShrink(handles, str(path))
            fd = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            new.write(fd, Meter(Context(), 1))
            os.close(fd)
            new.prove(out, Meter(Context(), 1))
    except CheckpointError:
        return False
    return True


def test_hostile_files_are_refused_or_rewritten_with_all_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = [rewrite(path, "out.pt") for path in sorted((fixture_root() / "hostile" / "code").glob("*.pt"))]
    assert sum(done) > 30 and os.listdir(tmp_path) == ["out.pt"]


def test_a_file_that_would_grow_is_left_alone_and_said_so(tmp_path: Path) -> None:
    flat = torch.zeros(4000)
    path = tmp_path / "many.pt"
    torch.save({str(i): flat[i * 4 : i * 4 + 2] for i in range(1000)}, path)
    before = path.read_bytes()
    result = run(plan_shrink([path], in_place=True))
    assert result["saved"] == 0 and "would not become smaller" in result["files"][0]["why"] and path.read_bytes() == before


def test_a_few_unused_bytes_are_no_reason_to_write_a_file_again(tmp_path: Path) -> None:
    path = tmp_path / "few.pt"
    torch.save({"a": torch.zeros(1000)[3:990], "b": torch.zeros(5)}, path)
    result = run(plan_shrink([path], in_place=True))
    assert result["files"][0]["why"].startswith("only 52 bytes of it are unused")


def test_a_tensor_without_elements_moves_with_its_neighbours(tmp_path: Path) -> None:
    flat = torch.randn(100_000)
    torch.save({"a": flat[10:20], "empty": flat[0:0], "strided": flat[50:90:2], "late": flat[7:7]}, tmp_path / "model.pt")
    before = torch.load(tmp_path / "model.pt")
    result = shrink(plan_shrink([tmp_path / "model.pt"], in_place=True), Context())
    assert result["saved"] > 390_000
    after = torch.load(tmp_path / "model.pt")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
