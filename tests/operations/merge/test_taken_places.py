"""Outputs whose place is taken while the work goes on, and names that no output may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import shardyard
from shardyard.errors import OutputExistsError, UsageError
from shardyard.operations.merge import staging
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_file({"w": np.arange(64, dtype=np.float32)}, tmp_path / "source.safetensors")
    return tmp_path / "source.safetensors"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_came_meanwhile_keeps_its_files(source: Path, tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out"

    def somebody_writes(_: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("mine")

    with pytest.raises(OutputExistsError, match="out"):
        shardyard.merge(source, out=out, progress=somebody_writes, overwrite=overwrite)
    assert [p.name for p in out.iterdir()] == ["thesis.txt"] and (out / "thesis.txt").read_text() == "mine"


def test_a_file_that_came_meanwhile_stays(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with pytest.raises(OutputExistsError, match="is there already"):
        shardyard.merge(source, out=out, progress=lambda _: out.write_text("mine"))
    assert out.read_text() == "mine"
    out.unlink()
    shardyard.merge(source, out=out)
    assert out.stat().st_nlink == 1
    shardyard.merge(source, out=out, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.safetensors", "source.safetensors"]


@pytest.mark.parametrize("name", ["model.shardyard-old", "model.shardyard-partial"])
def test_no_output_is_called_like_what_healing_removes(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="choose another name"):
        shardyard.merge(source, out=tmp_path / name)


def test_of_two_plans_that_begin_at_once_only_one_gets_the_staging_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        plan_merge([source], tmp_path / "out", MergeOptions.parse({"format": kind})) for kind in ("safetensors", "torch")
    )
    seen = staging._read_json
    looked: list[Path] = []

    def both_see_nothing(path: Path) -> dict[str, Any] | None:
        if path.parent.exists() and not looked:
            looked.append(path)
            staging.prepare(second)
            return None
        return seen(path)

    monkeypatch.setattr(staging, "_read_json", both_see_nothing)
    with pytest.raises(OutputExistsError, match="unfinished merge"):
        staging.prepare(first)
    assert {p.name for p in first.place.files.iterdir()} == {f.name for f in second.files}
    assert seen(first.place.staging / staging.PLAN)["hash"] == second.hash
    assert not list(first.place.staging.glob("*.first"))
