"""In place, a file is the old one or the new one, whole, at every moment; and it stays the person's file."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardyard.errors import JobError
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch import zip_layout
from shardyard.operations.context import Context
from shardyard.operations.shrink.planning import plan_shrink
from shardyard.operations.shrink.replace import Fingerprint, replace
from shardyard.operations.shrink.run import made, made_since, shrink
from shardyard.pieces import row_major


def bloated(path: Path, numel: int, kept: int, tensors: int = 4) -> None:
    """A torch file whose one storage has `numel` floats (left sparse), of which each tensor sees its own `kept`."""
    storage = object()
    pid = ("storage", Global("torch", "FloatStorage"), "0", "cpu", numel)
    pairs = []
    for i in range(tensors):
        shape = (kept // 16, 16)
        args = (
            storage,
            i * (numel // tensors),
            shape,
            row_major(shape, 1),
            False,
            Call("REDUCE", Global("collections", "OrderedDict"), ()),
        )
        pairs.append((f"layer.{i}.weight", Call("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), args)))
    data = pickle_writer.dump(Dict(pairs), persistent_id=lambda v: pid if v is storage else None)
    placed = zip_layout.place(
        [("model/data.pkl", len(data)), ("model/byteorder", 6), ("model/data/0", 4 * numel), ("model/version", 2)]
    )
    with path.open("wb") as file:
        for place, content in zip(placed, (data, b"little", b"", b"3\n"), strict=True):
            file.seek(place.header_offset)
            file.write(place.header + content)
            file.seek(place.data_offset + place.nbytes)
            file.write(zip_layout.descriptor(place, 0))
        for i in range(tensors):
            file.seek(placed[2].data_offset + 4 * i * (numel // tensors))
            file.write(struct.pack("<4f", i, 1, 2, 3))
        file.seek(placed[-1].end)
        import zlib

        crcs = [zlib.crc32(data), zlib.crc32(b"little"), 0, zlib.crc32(b"3\n")]
        file.write(zip_layout.directory(placed, crcs))


def in_place(path: Path) -> dict[str, Any]:
    return shrink(plan_shrink([path], in_place=True), Context())


def test_a_kill_at_any_point_leaves_the_old_or_the_new_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    bloated(path, 1 << 21, 1 << 18)
    old = path.read_bytes()
    started = time.monotonic()
    in_place(path)
    took = time.monotonic() - started
    new = path.read_bytes()
    assert len(new) < len(old) * 0.6
    outcomes = set()
    points = random.Random(5)
    for trial in range(25):
        path.write_bytes(old)
        child = os.fork()
        if child == 0:
            try:
                in_place(path)
            finally:
                os._exit(0)
        time.sleep(took * 1.2 * (trial + points.random()) / 25)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        there = path.read_bytes()
        assert there in (old, new)
        outcomes.add(there == new)
        in_place(path)
        assert path.read_bytes() == new and os.listdir(tmp_path) == ["model.pt"]
    assert False in outcomes


def test_mode_and_times_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    bloated(path, 1 << 16, 1 << 10)
    path.chmod(0o640)
    os.utime(path, (1_600_000_000, 1_500_000_000))
    in_place(path)
    info = path.stat()
    assert stat.S_IMODE(info.st_mode) == 0o640 and info.st_mtime == 1_500_000_000


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "blob", tmp_path / "model.pt"
    bloated(target, 1 << 16, 1 << 10)
    before = target.stat().st_size
    link.symlink_to("blob")
    in_place(link)
    assert link.is_symlink() and target.stat().st_size < before
    bloated(target, 1 << 16, 1 << 10)
    plan = plan_shrink([tmp_path], in_place=True)
    (row,) = [f for f in plan.files if f.found.name == "model.pt"]
    assert not row.shrunk and "link" in row.why


def test_a_file_with_two_names_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    bloated(path, 1 << 16, 1 << 10)
    os.link(path, tmp_path / "other.pt")
    before = path.read_bytes()
    result = shrink(plan_shrink([tmp_path], in_place=True), Context())
    assert result["saved"] == 0 and all("hard links" in row["why"] for row in result["files"])
    assert path.read_bytes() == before and path.stat().st_nlink == 2


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    bloated(path, 1 << 16, 1 << 10)
    plan = plan_shrink([path], in_place=True)
    with path.open("ab") as file:
        file.write(b"more")
    before = path.read_bytes()
    known = plan.files[0].fingerprint
    assert replace(str(path), known, lambda fd: None, lambda made: None) == "it changed meanwhile"

    def change(made: str) -> None:
        os.utime(path, ns=(1, 1))

    now = Fingerprint.of(str(path))
    assert replace(str(path), now, lambda fd: None, change) == "it changed meanwhile"
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["model.pt"]


def test_a_new_file_that_is_not_equal_never_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardyard.operations.shrink import torch as shrink_torch

    path = tmp_path / "model.pt"
    bloated(path, 1 << 16, 1 << 10)
    before = path.read_bytes()
    write = shrink_torch.TorchShrink.write

    def flip(self: shrink_torch.TorchShrink, fd: int, meter: Any) -> None:
        write(self, fd, meter)
        place = next(p for p in self.placed if p.name.endswith("data/1"))
        os.pwrite(fd, b"\x01", place.data_offset + 5)

    monkeypatch.setattr(shrink_torch.TorchShrink, "write", flip)
    with pytest.raises(JobError, match="other values"):
        in_place(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["model.pt"]


PEAK = """
import json, resource, sys
from shardyard.operations.context import Context
from shardyard.operations.shrink.planning import plan_shrink
from shardyard.operations.shrink.run import made, made_since, shrink
result = shrink(plan_shrink([sys.argv[1]], in_place=True), Context())
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "after": result["after"]}))
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for shift in (27, 30):
        path = tmp_path / "model.pt"
        bloated(path, 1 << shift, 1 << (shift - 5), tensors=8)
        engine = Path(sys.modules["shardyard"].__file__ or "").parents[1]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(engine)}
        )
        found = json.loads(done.stdout)
        assert found["after"] < (1 << shift) * 4 * 0.3
        peaks.append(found["peak"] / 1024)
        path.unlink()
    assert abs(peaks[1] - peaks[0]) < 20, peaks


def test_an_output_killed_at_any_point_is_absent_or_whole_and_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "small"
    source.mkdir()
    for i in range(3):
        bloated(source / f"pytorch_model-{i}.bin", 1 << 20, 1 << 16)
    (source / "config.json").write_text("{}")
    (source / "link").symlink_to("../elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    started, took = time.time(), time.monotonic()
    shrink(plan_shrink([source], out), Context())
    took = time.monotonic() - took
    wanted = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    assert len(wanted) == 5
    points = random.Random(7)
    for trial in range(12):
        subprocess.run(["rm", "-rf", str(out), f"{out}.shardyard-partial"], check=True)
        child = os.fork()
        if child == 0:
            try:
                shrink(plan_shrink([source], out), Context())
            finally:
                os._exit(0)
        time.sleep(took * 1.2 * (trial + points.random()) / 12)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if out.exists():
            plan = plan_shrink([source], out, resuming=True)
            assert made_since(plan, started, tmp_path) and made(plan)["saved"] > 0
        else:
            shrink(plan_shrink([source], out), Context())
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == wanted
        assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "model", "small"]
    assert not made_since(plan_shrink([source], out, resuming=True), time.time() + 1, tmp_path)
