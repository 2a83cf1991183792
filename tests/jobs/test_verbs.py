"""Every verb as a job: its result in the events, its rows in the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardyard.errors import OutputExistsError, UsageError
from shardyard.jobs import store, verbs
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.store import Job
from shardyard.operations.context import Context
from support.checkpoints import fixture_root
from support.model_files import write_safetensors

ZERO3 = fixture_root() / "deepspeed" / "z3_w2_bf16"


def run(verb: str, *sources: Path, out: Path | None = None, **options: Any) -> tuple[Job, dict[str, Any]]:
    job = store.create(Spec(verb, tuple(str(s) for s in sources), None if out is None else str(out), options))
    job.start()
    events = list(job.follow())
    assert job.state() is State.DONE, job.outcome()
    assert events[-1]["event"] == "result"
    return job, events[-1]


def rows(job: Job, result: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.folder / result["rows"]).read_text().splitlines()]


def test_merge_then_compare_and_describe(tmp_path: Path) -> None:
    merged, result = run("merge", ZERO3, out=tmp_path / "merged")
    assert result["complete"] and result["out"] == str(tmp_path / "merged")
    plan = merged.plan()
    assert plan is not None and plan["tensors"] == result["tensors"]
    rounded, _ = run("merge", ZERO3, out=tmp_path / "rounded.safetensors", dtype="bf16")
    assert rounded.state() is State.DONE
    compared, verdict = run("compare", tmp_path / "merged", tmp_path / "rounded.safetensors")
    assert verdict["equal"] and "tensors" not in verdict
    assert {row["relation"] for row in rows(compared, verdict)} <= {"rounded-bfloat16", "identical", "equal"}
    described, statistics = run("stats", tmp_path / "merged")
    assert len(rows(described, statistics)) == result["tensors"]
    _, scanned = run("scan", tmp_path / "merged")
    assert scanned["event"] == "result"
    read, deep = run("inspect-deep", tmp_path / "merged")
    assert read.title == "inspect --deep merged"
    assert deep["checkpoints"][0]["complete"] and "values" in deep["checkpoints"][0]["checked"]


def test_shrink(tmp_path: Path) -> None:
    _, result = run("shrink", fixture_root() / "files" / "a2_legacy_bloat", out=tmp_path / "small")
    assert (tmp_path / "small" / "model.pt").stat().st_size < 1000
    assert result["event"] == "result"


def test_plans_are_those_of_a_dry_run_and_write_nothing(tmp_path: Path) -> None:
    plan = verbs.plan("merge", [str(ZERO3)], str(tmp_path / "out"), {"dtype": "float16"})
    assert plan["out"] == str(tmp_path / "out") and "float32" not in plan["dtypes"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="has no plan"):
        verbs.plan("compare", ["a", "b"], None, {})
    with pytest.raises(UsageError, match="needs an output"):
        verbs.plan("merge", [str(ZERO3)], None, {})


def test_another_jobs_file_of_the_same_shape_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Two merges race for one file name: same size, same header, other values. The one that comes late has not done it."""
    for name, value in (("one", 1.0), ("two", 2.0)):
        write_safetensors(tmp_path / f"{name}.safetensors", {"w": np.full(64, value, "float32")})
    out = tmp_path / "out.safetensors"
    first, second = (
        store.create(Spec("merge", (str(tmp_path / f"{name}.safetensors"),), str(out), {})) for name in ("one", "two")
    )
    for job, state in ((first, State.DONE), (second, State.FAILED)):
        job.start()
        assert list(job.follow()) and job.state() is state
    outcome = second.outcome()
    assert outcome is not None and outcome["error"] == "OutputExistsError"
    assert np.frombuffer(out.read_bytes()[-256:], "float32").tolist() == [1.0] * 64
    # Killed between the rename and the report, the first would find that it has done it; the second never.
    assert verbs.VERBS["merge"](first, Context())["out"] == str(out)
    with pytest.raises(OutputExistsError):
        verbs.VERBS["merge"](second, Context())


def test_another_shrinks_file_of_the_same_size_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    source = fixture_root() / "files" / "a2_legacy_bloat" / "model.pt"
    for name in ("one.pt", "two.pt"):
        (tmp_path / name).write_bytes(source.read_bytes())
    out = tmp_path / "small.pt"
    jobs = [store.create(Spec("shrink", (str(tmp_path / name),), str(out), {})) for name in ("one.pt", "two.pt")]
    for job, state in zip(jobs, (State.DONE, State.FAILED), strict=True):
        job.start()
        assert list(job.follow()) and job.state() is state
    assert verbs.VERBS["shrink"](jobs[0], Context())["saved"] > 0
    with pytest.raises(OutputExistsError):
        verbs.VERBS["shrink"](jobs[1], Context())
