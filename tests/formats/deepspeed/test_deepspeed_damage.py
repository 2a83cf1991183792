"""What is damaged in a step beside the masters is told of, and the rest stays readable."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import shardyard
from shardyard.checkpoint import Checkpoint
from shardyard.errors import CheckpointError
from shardyard.findings import Blocks, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import FORMAT
from shardyard.formats.folder import Folder
from shardyard.operations.inspect.report import report
from support.truth import differences
from support.zero_runs import ZeroRun

GROUPS: list[dict[str, tuple[int, ...]]] = [{"a.weight": (7, 5), "b.weight": (3,)}, {"a.bias": (11,)}]


def open_root(folder: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = FORMAT.recognise(Folder(folder), {})
    return candidate.open(options)


@pytest.mark.parametrize("damage", ["cut", "zeros", "empty"])
def test_a_damaged_model_file_that_nothing_is_needed_from_is_told_of(tmp_path: Path, damage: str) -> None:
    run = ZeroRun(3, 3, GROUPS, buffers={"positions": (4,)})
    path = run.write(tmp_path) / "zero_pp_rank_2_mp_rank_00_model_states.pt"
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) * 3 // 4], "zeros": bytes(len(whole)), "empty": b""}[damage])
    options = OpenOptions()
    found = open_root(tmp_path, options)
    (finding,) = found.findings
    assert finding.severity is Severity.WARNING and finding.paths == (f"global_step7/{path.name}",)
    assert finding.blocks is Blocks.NOTHING and found.mergeable
    assert differences(found.tensors, run.answers(), options.handles) == []


@pytest.mark.parametrize("damage", ["gone", "cut", "empty"])
def test_buffers_of_another_rank_than_the_first_are_refused_and_on_request_told_of_one_by_one(
    tmp_path: Path, damage: str
) -> None:
    tag = ZeroRun(3, 3, GROUPS, buffers={"positions": (4,), "mean": (2,)}).write(tmp_path / "run")
    path = tag / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    whole = path.read_bytes()
    path.write_bytes(b"" if damage == "empty" else whole[: len(whole) * 3 // 4])
    if damage == "gone":
        path.unlink()
    (told,) = (f for f in open_root(tmp_path / "run").findings if "Buffers are those of rank 1" in f.message)
    assert told.severity is Severity.WARNING and set(told.tensors) == {"positions", "mean"}
    with pytest.raises(CheckpointError, match="zero_pp_rank_0_mp_rank_00_model_states"):
        shardyard.merge(tmp_path / "run", out=tmp_path / "out")
    result = shardyard.merge(tmp_path / "run", out=tmp_path / "out", allow_incomplete=True)
    assert result["complete"] is False
    assert {row["name"]: row["note"] for row in result["from_elsewhere"]} == dict.fromkeys(
        ("positions", "mean"), "a buffer of rank 1, which may differ from rank 0's"
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_moment_whose_bytes_are_lost_is_a_name_without_data(tmp_path: Path, stage: int) -> None:
    run = ZeroRun(stage, 2, GROUPS)
    path = run.write(tmp_path) / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    drop_storage(path, "0")
    options = OpenOptions()
    found = open_root(tmp_path, options)
    assert differences(found.tensors, run.answers(), options.handles) == []
    moments = found.parts["optimizer"].tensors
    lost = {name for name, tensor in moments.items() if tensor.layout is None}
    assert lost and lost < set(moments) and all("not here or damaged" in moments[name].note for name in lost)
    (checkpoint,) = report(tmp_path, tensors=True)["checkpoints"]
    assert checkpoint["kind"] == f"deepspeed-zero{stage}"


def drop_storage(path: Path, key: str) -> None:
    """Write a torch file again without one of its storages."""
    kept = path.with_suffix(".kept")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(kept, "w") as new:
        names = [n for n in old.namelist() if not n.endswith(f"/data/{key}")]
        assert len(names) + 1 == len(old.namelist())
        for name in names:
            new.writestr(name, old.read(name))
    shutil.move(kept, path)
