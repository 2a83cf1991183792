"""`shardyard shrink` as a person runs it: what it saves, where it writes, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.checkpoints import fixture_root
from support.command import last_line, result_of, shardyard


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards that each store the whole flat buffer."""
    return Path(shutil.copytree(fixture_root() / "files" / "a2_flat_buffer_3_shards", tmp_path / "model"))


def test_a_dry_run_shows_the_saving_and_touches_nothing(shards: Path) -> None:
    before = {p: p.read_bytes() for p in shards.iterdir()}
    done = shardyard("shrink", shards, "--dry-run")
    assert done.returncode == 0 and "saves" in done.stdout and "In all:" in done.stdout
    assert {p: p.read_bytes() for p in shards.iterdir()} == before


def test_in_place_gives_back_the_bytes_and_says_how_many(shards: Path) -> None:
    before = sum(p.stat().st_size for p in shards.glob("*.bin"))
    result = result_of(shardyard("shrink", shards, "--in-place", "--json"))
    after = sum(p.stat().st_size for p in shards.glob("*.bin"))
    assert result["saved"] == before - after > before // 2
    again = shardyard("shrink", shards, "--in-place")
    assert again.returncode == 0 and again.stdout.count("left as it is") == 3


def test_an_output_that_exists_and_a_missing_place_are_told_apart(shards: Path, tmp_path: Path) -> None:
    assert shardyard("shrink", shards, "-o", tmp_path / "small").returncode == 0
    taken = shardyard("shrink", shards, "-o", tmp_path / "small")
    assert taken.returncode == 5 and "small" in last_line(taken)
    nowhere = shardyard("shrink", shards)
    assert nowhere.returncode == 2 and "--in-place" in last_line(nowhere)
    absent = shardyard("shrink", tmp_path / "absent.pt", "--in-place")
    assert absent.returncode == 2 and "absent.pt" in last_line(absent)


def test_a_kind_that_is_not_written_again_is_refused_by_name() -> None:
    done = shardyard("shrink", fixture_root() / "files" / "a3_torchscript" / "scripted.pt", "--dry-run")
    assert done.returncode == 3 and "TorchScript" in last_line(done)


@pytest.mark.parametrize(("place", "read"), [("-o", 1), ("--in-place", 3)])
def test_the_plan_says_where_to_and_how_much_is_read(shards: Path, tmp_path: Path, place: str, read: int) -> None:
    small = tmp_path / "small"
    target = [place, small] if place == "-o" else [place]
    plan = next(json.loads(line) for line in shardyard("shrink", shards, *target, "--dry-run", "--json").stdout.splitlines())
    payload = sum(entry["after"] for entry in plan["files"])
    # Without the pickles and what a zip has around its records.
    assert 0.5 * payload < plan["bytes_read"] / read < payload + 2000
    (told,) = (line for line in shardyard("shrink", shards, *target, "--dry-run").stdout.splitlines() if line.startswith("to "))
    assert told.split(maxsplit=1)[1] == f"{small if place == '-o' else 'where they are'} (3 weight files)"
