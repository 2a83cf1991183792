"""The transfer: any layout against a naive model, units and tasks, resuming, and being killed, cancelled or out of room."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.checkpoint import Checkpoint, CheckpointKind, Part, Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import Cancelled, JobError, NoRoomError, OutputExistsError
from shardyard.files import FileHandles
from shardyard.layouts import Boxes, Runs, Strided
from shardyard.operations import crc, gather
from shardyard.operations.context import Context, Progress
from shardyard.operations.merge import ledger, plan, transfer
from shardyard.operations.merge import run as merge
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge
from shardyard.pieces import Record, box, row_major
from support.services import tmpfs
from support.truth import answers

SMALL_UNIT, SMALL_BLOCK = 4096, 512


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units and blocks so small that little files have many."""
    monkeypatch.setattr(plan, "UNIT", SMALL_UNIT)
    monkeypatch.setattr(transfer, "BLOCK", SMALL_BLOCK)
    monkeypatch.setattr(transfer, "CAST_BLOCK", 128)


class Store:
    """A file that tensors are put into in pieces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray()

    def record(self, data: bytes, crc32: int | None = None) -> Record:
        start = len(self.data)
        self.data += data
        return Record(str(self.path), len(data), start, f"record {start}", crc32)

    def close(self) -> None:
        self.path.write_bytes(self.data)


def checkpoint(folder: Path, tensors: list[Tensor]) -> Checkpoint:
    part = Part("model", {t.name: t for t in tensors}, model=True)
    return Checkpoint(folder, CheckpointKind.DCP, [], {"model": part}, "model")


DTYPES = ["float32", "bfloat16", "float64", "int64", "uint8", "complex64", "float8_e4m3fn"]


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], str, int]]:
    """(dtype, shape, way of storing, seed) of some tensors."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(DTYPES),
                st.lists(st.integers(0, 40), max_size=3).map(tuple),
                st.sampled_from(["run", "rows", "columns", "transposed", "reversed"]),
                st.integers(0, 1000),
            ),
            min_size=1,
            max_size=6,
        )
    )


def store(store: Store, name: str, dtype: str, shape: tuple[int, ...], how: str, seed: int) -> tuple[Tensor, bytes]:
    """A tensor stored in one of several ways, and its row-major bytes."""
    item = BY_NAME[dtype].itemsize
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 256, (*shape, item), np.uint8).view(f"V{item}").reshape(shape)
    data = array.tobytes()
    store.record(b"x" * (seed % 7))  # nothing is aligned
    if how == "transposed" and array.ndim > 1:
        kept = store.record(array.T.tobytes())
        strides = tuple(reversed(row_major(tuple(reversed(shape)), item)))
        layout: object = Strided(kept, 0, shape, strides, item)
    elif how == "reversed" and array.ndim and array.size:
        kept = store.record(array[::-1].tobytes())
        first = row_major(shape, item)[0]
        layout = Strided(kept, (shape[0] - 1) * first, shape, (-first, *row_major(shape, item)[1:]), item)
    elif how == "columns" and array.ndim > 1:
        cut = shape[-1] // 2
        strides = row_major(shape, item)
        parts = []
        for a, b in ((0, cut), (cut, shape[-1])):
            block = np.ascontiguousarray(array[..., a:b])
            piece = box(store.record(block.tobytes()), item, block.shape, 0, row_major(block.shape, item), a * item, strides)
            parts += [piece] if piece is not None else []
        layout = Boxes(parts, len(data))
    elif how == "rows" and array.ndim:
        cut = (shape[0] // 3) * (len(data) // shape[0] if shape[0] else 0)
        layout = Runs([(0, store.record(data[:cut]), 0), (cut, store.record(data[cut:]), 0)], len(data), item)
    else:
        layout = Runs([(0, store.record(data), 0)], len(data), item)
    return Tensor(name, BY_NAME[dtype], shape, layout), data  # type: ignore[arg-type]


@pytest.mark.parametrize("verify", ["none", "sample", "full"])
@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(["safetensors", "torch"]), st.sampled_from([1, 2, 3]))
def test_any_layout_arrives_as_a_naive_copy_would(
    tmp_path_factory: pytest.TempPathFactory,
    verify: str,
    drawn: list[tuple[str, tuple[int, ...], str, int]],
    kind: str,
    workers: int,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    source = Store(folder / "data")
    made = [store(source, f"t{k}", *row) for k, row in enumerate(drawn)]
    source.close()
    out = folder / ("out.safetensors" if kind == "safetensors" else "out.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "UNIT", SMALL_UNIT)
        patch.setattr(transfer, "BLOCK", SMALL_BLOCK)
        options = MergeOptions(verify=verify, workers=workers)
        merge.merge(plan_merge(checkpoint(folder, [t for t, _ in made]), out, options))
    got = read(out)
    assert got == {t.name: (t.dtype.name, t.shape, data) for t, data in made}


def read(out: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    from shardyard.discover import open_checkpoint
    from shardyard.formats.candidate import OpenOptions

    opened = open_checkpoint([out], OpenOptions())
    found = {}
    with FileHandles() as handles:
        for name, tensor in opened.tensors.items():
            buffer = bytearray(tensor.nbytes)
            gather.read_range(tensor, 0, tensor.nbytes, memoryview(buffer), handles)
            found[name] = (tensor.dtype.name, tensor.shape, bytes(buffer))
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=8), st.randoms(use_true_random=False))
def test_crcs_combine_in_any_order(parts: list[bytes], random: object) -> None:
    import zlib

    whole = b"".join(parts)
    coverage = crc.Coverage()
    at, placed = 0, []
    for part in parts:
        placed.append((at, len(part), zlib.crc32(part)))
        at += len(part)
    random.shuffle(placed)  # type: ignore[attr-defined]
    for row in placed:
        coverage.add(*row)
    if whole:
        assert coverage.whole(len(whole)) == zlib.crc32(whole)
        assert coverage.gaps(len(whole) + 3) == [(len(whole), len(whole) + 3)]


# ------------------------------------------------------------------ one source for what follows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A safetensors file of about 100 kB, as bytes that tell where they came from."""
    import safetensors.numpy

    folder = tmp_path / "source"
    folder.mkdir()
    rng = np.random.default_rng(5)
    state = {f"layers.{k}.weight": rng.standard_normal((50, 50)).astype(np.float32) for k in range(10)}
    safetensors.numpy.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Stop(Context):
    """Asks to stop after some bytes."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.last: Progress | None = None

    def progress(self, progress: Progress) -> None:
        self.last = progress

    def cancelled(self) -> bool:
        return self.last is not None and self.last.written >= self.after


class Watch(Context):
    """Keeps the progress that it is told of."""

    def __init__(self, task: int = 0, tasks: int = 1) -> None:
        self.task, self.tasks = task, tasks
        self.seen: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)


def test_a_cancelled_merge_goes_on_where_it_stopped(small: None, source: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", MergeOptions(workers=1)
    with pytest.raises(Cancelled):
        merge.merge(plan_merge([source], out, options), Stop(50_000))
    assert not out.exists()
    assert (tmp_path / "out.shardyard-partial").is_dir()
    watch = Watch()
    merge.merge(plan_merge([source], out, options), watch)
    assert watch.seen[0].done > 49_000
    assert watch.seen[-1].done == watch.seen[-1].total
    assert watch.seen[-1].written < 60_000
    assert answers(out / "model.safetensors") == answers(source / "model.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def test_other_settings_or_sources_do_not_mix(small: None, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Cancelled):
        merge.merge(plan_merge([source], out, MergeOptions(workers=1, dtype="bfloat16")), Stop(20_000))
    with pytest.raises(OutputExistsError, match="dtype bfloat16 instead of None"):
        merge.merge(plan_merge([source], out, MergeOptions(workers=1)))
    data = bytearray((source / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (source / "model.safetensors").write_bytes(data)
    with pytest.raises(OutputExistsError, match=r"model\.safetensors has changed"):
        merge.merge(plan_merge([source], out, MergeOptions(workers=1, dtype="bfloat16")))
    assert [p.name for p in tmp_path.glob("*.shardyard-partial")] == ["out.shardyard-partial"]


def test_four_tasks_write_one_output_and_read_a_quarter_each(small: None, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    reads = []
    for task in (2, 0, 3, 1):
        made = plan_merge([source], out)
        watch = Watch(task, 4)
        with pytest.raises(JobError, match="not done yet"):
            merge.publish(made, watch)
        merge.merge_task(made, watch)
        reads.append(watch.seen[-1].read)
    merge.publish(plan_merge([source], out), Context())
    assert answers(out / "model.safetensors") == answers(source / "model.safetensors")
    total = (source / "model.safetensors").stat().st_size
    assert sum(reads) < 1.1 * total
    assert max(reads) < 0.35 * total


def test_one_process_finishes_what_four_tasks_began(small: None, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for task in (1, 3):
        merge.merge_task(plan_merge([source], out), Watch(task, 4))
    watch = Watch()
    merge.merge(plan_merge([source], out), watch)
    assert watch.seen[-1].written < 0.6 * watch.seen[-1].total
    assert answers(out / "model.safetensors") == answers(source / "model.safetensors")


def test_a_torn_line_is_not_done(small: None, source: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", MergeOptions(workers=1)
    with pytest.raises(Cancelled):
        merge.merge(plan_merge([source], out, options), Stop(50_000))
    path = tmp_path / "out.shardyard-partial" / "ledger-0.jsonl"
    whole = path.read_bytes()
    made = plan_merge([source], out, options)
    before = len(ledger.read(path.parent, made.hash).units)
    path.write_bytes(whole[:-3])
    assert len(ledger.read(path.parent, made.hash).units) == before - 1
    # What was torn is zeroed: it must be written again.
    torn = json.loads(whole.splitlines()[-1])["unit"]
    unit = made.unit(torn)
    with open(made.place.files / unit.file.name, "r+b") as file:
        file.seek(unit.lo)
        file.write(bytes(unit.hi - unit.lo))
    merge.merge(made)
    assert answers(out / "model.safetensors") == answers(source / "model.safetensors")


def test_files_that_are_gone_from_staging_are_written_again(small: None, source: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", MergeOptions(workers=1)
    with pytest.raises(Cancelled):
        merge.merge(plan_merge([source], out, options), Stop(50_000))
    (tmp_path / "out.shardyard-partial" / "out" / "model.safetensors").unlink()
    merge.merge(plan_merge([source], out, options))
    assert answers(out / "model.safetensors") == answers(source / "model.safetensors")


def test_two_processes_do_not_write_one_output(small: None, source: Path, tmp_path: Path) -> None:
    made = plan_merge([source], tmp_path / "out")
    merge.staging.prepare(made)
    held = ledger.Ledger(made.place.staging, 0, made.hash)
    try:
        with pytest.raises(JobError, match="Another process"):
            merge.merge(plan_merge([source], tmp_path / "out"))
    finally:
        held.close()
    merge.merge(plan_merge([source], tmp_path / "out"))


def test_one_worker_where_threads_cannot_start(
    small: None, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    merge.merge(plan_merge([source], tmp_path / "out", MergeOptions(workers=4)))
    monkeypatch.undo()
    assert answers(tmp_path / "out" / "model.safetensors") == answers(source / "model.safetensors")


def test_progress_counts_bytes_and_names_tensors(small: None, source: Path, tmp_path: Path) -> None:
    watch = Watch()
    made = plan_merge([source], tmp_path / "out")
    merge.merge(made, watch)
    last = watch.seen[-1]
    assert last.done == last.total == last.written == made.nbytes
    assert last.read == pytest.approx(made.nbytes, rel=0.1)
    assert {p.item for p in watch.seen} & {f"layers.{k}.weight" for k in range(10)}


def test_a_disk_that_fills_up_keeps_what_is_done(source: Path) -> None:
    with tmpfs("size=80k") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "UNIT", SMALL_UNIT)
        patch.setattr(transfer, "BLOCK", SMALL_BLOCK)
        with pytest.raises(NoRoomError, match="short"):
            plan_merge([source], full / "out")
        # Somebody else takes the room after the plan was made.
        patch.setattr("shardyard.operations.merge.planning._check_room", lambda plan: None)
        with pytest.raises(NoRoomError, match="full"):
            merge.merge(plan_merge([source], full / "out", MergeOptions(workers=1)))
        assert not (full / "out").exists()
        kept = full / "out.shardyard-partial"
        assert len(ledger.read(kept, plan_merge([source], full / "out").hash).units) > 3
        subprocess.run(["mount", "-o", "remount,size=400k", str(full)], check=True)
        watch = Watch()
        merge.merge(plan_merge([source], full / "out", MergeOptions(workers=1)), watch)
        assert watch.seen[-1].written < watch.seen[-1].total - 3 * SMALL_UNIT
        assert answers(full / "out" / "model.safetensors") == answers(source / "model.safetensors")


# ------------------------------------------------------------------ limits

LIMITED = """
    import sys
    from shardyard.operations.merge.run import merge
    from shardyard.operations.merge.options import MergeOptions
    from shardyard.operations.merge.planning import plan_merge
    plan = plan_merge([sys.argv[1]], sys.argv[2], MergeOptions.parse(eval(sys.argv[3])))
    merge(plan)
    loaded = sorted({"numpy", "torch", "ml_dtypes", "textual", "safetensors"} & set(sys.modules))
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak, plan.summary["memory"] // 1024, ",".join(loaded))
"""


def limited(source: Path, out: Path, options: dict[str, object], kib: int | None = None) -> tuple[int, int, str]:
    """(peak resident KiB, planned KiB, large modules) of a merge in a process of its own, under `ulimit -v`."""
    python = f"{sys.executable} -c '{textwrap.dedent(LIMITED).replace(chr(39), chr(34))}' {source} {out} \"{options}\""
    script = f"ulimit -v {kib}; exec {python}" if kib else f"exec {python}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, planned, loaded = [*done.stdout.split(), ""][:3]
    return int(peak), int(planned), loaded


def sparse(path: Path, mib: int) -> Path:
    from support.arrays import sparse_safetensors

    rows = mib * 256 // 8
    sparse_safetensors(path, {f"layers.{k}.weight": (rows, 128) for k in range(64)})
    return path


def test_a_merge_far_larger_than_the_address_space_limit(tmp_path: Path) -> None:
    source = sparse(tmp_path / "big.safetensors", 512)
    peak, _, loaded = limited(source, tmp_path / "out", {"verify": "none"}, kib=300_000)
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 500 << 20
    assert loaded == ""
    assert peak < 60 << 10


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}], ids=["straight", "cast"])
def test_memory_does_not_grow_with_the_model_and_is_as_planned(options: dict[str, object], tmp_path: Path) -> None:
    peaks = []
    for mib in (64, 512):
        source = sparse(tmp_path / f"{mib}.safetensors", mib)
        peak, planned, _ = limited(source, tmp_path / f"out{mib}", options)
        peaks.append(peak)
        assert planned == pytest.approx(peak, rel=0.2)
    assert peaks[1] < peaks[0] + (6 << 10)


def test_nothing_of_the_source_s_other_parts_is_read(tmp_path: Path) -> None:
    from support.checkpoints import cases

    case = next(c for c in cases("deepspeed", "z3_") if c.name == "z3_w3_fp16")
    watch = Watch()
    made = plan_merge([case], tmp_path / "out", MergeOptions(verify="none"))
    merge.merge(made, watch)
    # A rank's masters are a third of its optimizer file; padding and local headers come on top.
    assert watch.seen[-1].read < made.to_json()["bytes_read"] * 1.2 + 3 * 200


def test_a_publisher_at_work_is_not_disturbed(small: None, source: Path, tmp_path: Path) -> None:
    made = plan_merge([source], tmp_path / "out")
    merge.merge_task(made)
    lock = made.place.staging / "publishing"
    lock.mkdir()
    (lock / "owner.json").write_text(json.dumps({"host": "another-node", "pid": 1}))
    with pytest.raises(JobError, match="Another process is publishing"):
        merge.publish(made, Context())
