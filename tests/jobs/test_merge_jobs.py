"""Merges as jobs, disturbed: full disks, quotas, changed settings and sources, a login node's limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardyard.jobs import events, launch, store
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.store import Job
from support import services
from support.merges import digests, slowed, wait_for, worker_of, write_source

MB = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_source(folder / "model.safetensors", 30, MB)
    return folder


def merge(source: Path, out: Path, **options: Any) -> Job:
    job = store.create(Spec("merge", (str(source),), str(out), options))
    job.start()
    return job


def end(job: Job) -> State:
    list(job.follow(every_s=0.05))
    return job.state()


def sentence(job: Job) -> str:
    outcome = job.outcome()
    assert outcome is not None
    return f"{outcome['error']}: {outcome['message']}"


def reference(source: Path, tmp_path: Path) -> dict[str, str]:
    job = merge(source, tmp_path / "reference")
    assert end(job) is State.DONE, sentence(job)
    return digests(tmp_path / "reference")


def fill_in_the_middle(job: Job, out: Path, fill: Callable[[], object]) -> None:
    staged = out.with_name(out.name + ".shardyard-partial") / "out" / "model.safetensors"
    wait_for(lambda: staged.exists() and staged.stat().st_blocks * 512 > 2 * MB)
    os.kill(worker_of(job), signal.SIGSTOP)
    fill()
    os.kill(worker_of(job), signal.SIGCONT)
    assert end(job) is State.FAILED


@pytest.mark.services
def test_a_disk_that_fills_in_mid_write_is_said_in_a_sentence_and_resumed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("strace")
    expected = reference(source, tmp_path)
    monkeypatch.setattr(launch, "WORKER", slowed(*launch.WORKER))
    with services.tmpfs("size=64m") as disk:
        out, filler = disk / "out", disk / "filler"

        def fill() -> None:
            room = os.statvfs(disk)
            with open(filler, "wb") as file:
                file.write(bytes(room.f_bavail * room.f_frsize - 8 * MB))

        job = merge(source, out, workers=1)
        fill_in_the_middle(job, out, fill)
        assert f"NoRoomError: The disk at {out} is full with " in sentence(job) and "still to be written" in sentence(job)
        assert [p.name for p in sorted(disk.iterdir())] == ["filler", "out.shardyard-partial"]
        # Still full: refused before another byte is read, the staging kept.
        job.resume()
        assert end(job) is State.FAILED and "short" in sentence(job)
        filler.unlink()
        job.resume()
        assert end(job) is State.DONE and digests(out) == expected
        assert [p.name for p in disk.iterdir()] == ["out"]


@pytest.mark.services
def test_a_quota_that_runs_out_in_mid_write_is_said_in_a_sentence_and_resumed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("strace")
    expected = reference(source, tmp_path)
    with services.btrfs_with_quota("10M") as disk:

        def limit(size: str) -> None:
            subprocess.run(["btrfs", "qgroup", "limit", size, disk], check=True)

        out = disk / "out"
        job = merge(source, out)
        assert end(job) is State.FAILED and "btrfs quota group leaves" in sentence(job)
        assert list(disk.iterdir()) == []
        limit("80M")
        monkeypatch.setattr(launch, "WORKER", slowed(*launch.WORKER))
        job = merge(source, out, workers=1)
        fill_in_the_middle(job, out, lambda: limit("12M"))
        assert sentence(job).startswith(f"NoRoomError: The quota at {out} is used up with ")
        limit("80M")
        job.resume()
        assert end(job) is State.DONE and digests(out) == expected


def killed_in_the_middle(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    services.need("strace")
    with monkeypatch.context() as patch:
        patch.setattr(launch, "WORKER", slowed(*launch.WORKER))
        job = merge(source, out, workers=1)
        staged = out.with_name(out.name + ".shardyard-partial") / "out" / "model.safetensors"
        # The plan is the worker's word that it, and not what slows it, owns the job; an earlier try may have filled the file.
        wait_for(lambda: job.plan() is not None and staged.exists() and staged.stat().st_blocks * 512 > 2 * MB)
        os.kill(worker_of(job), signal.SIGKILL)
        wait_for(lambda: job.state() is State.LOST)
    return job


@pytest.mark.services
def test_other_settings_and_changed_sources_are_refused_by_name(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    write_source(mine / "model.safetensors", 30, MB)
    out = tmp_path / "out"
    job = killed_in_the_middle(mine, out, monkeypatch)
    other = merge(mine, out, dtype="bfloat16")
    assert end(other) is State.FAILED
    assert sentence(other).startswith("OutputExistsError") and "dtype" in sentence(other)
    file = mine / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    job.resume()
    assert end(job) is State.FAILED
    assert sentence(job).startswith("OutputExistsError") and "model.safetensors has changed" in sentence(job)
    assert not out.exists() and len(list(tmp_path.glob("*.shardyard-partial"))) == 1


@pytest.mark.services
def test_three_kills_leave_one_staging_folder_and_the_same_result(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(source, tmp_path)
    out = tmp_path / "out"
    for _ in range(3):
        job = killed_in_the_middle(source, out, monkeypatch)
        assert [p.name for p in sorted(tmp_path.glob("out*"))] == ["out.shardyard-partial"]
    job.resume()
    assert end(job) is State.DONE and digests(out) == expected
    assert [p.name for p in sorted(tmp_path.glob("out*"))] == ["out"]


@pytest.mark.services
def test_a_group_limit_that_is_too_small_is_refused_before_the_first_byte(source: Path, tmp_path: Path) -> None:
    arguments = ["-m", "shardyard", "merge", str(source), "-o", str(tmp_path / "out"), "--dtype", "bfloat16", "--dry-run"]
    for limit, code in ((60 * MB, 4), (600 * MB, 0)):
        with services.memory_group(limit) as group:
            inside = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            done = subprocess.run(
                ["sh", "-c", inside, "sh", sys.executable, *arguments], capture_output=True, text=True, env=launch.environment()
            )
        assert done.returncode == code, done.stderr
        if code:
            assert "of memory" in done.stderr and f"of a limit of {limit // MB}.0 MiB" in done.stderr


@pytest.mark.services
def test_a_worker_killed_for_memory_is_lost_and_resumes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference(source, tmp_path)
    with services.memory_group(6 * MB) as group:
        with monkeypatch.context() as patch:
            patch.setattr(launch, "WORKER", ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *launch.WORKER))
            job = merge(source, tmp_path / "out")
            wait_for(lambda: job.state() is State.LOST)
        assert not (tmp_path / "out").exists()
    job.resume()
    assert end(job) is State.DONE and digests(tmp_path / "out") == expected


def test_an_output_that_another_made_is_not_taken_for_ones_own(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert end(merge(source, out)) is State.DONE
    before = out.read_bytes()
    job = merge(source, out)
    assert end(job) is State.FAILED and sentence(job).startswith("OutputExistsError")
    job.resume()
    assert end(job) is State.FAILED and sentence(job).startswith("OutputExistsError")
    assert out.read_bytes() == before


def test_a_bad_checkpoint_ends_with_its_own_sentence(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/model.safetensors").write_bytes(b"\xff" * 40)
    job = merge(tmp_path / "source", tmp_path / "out")
    assert end(job) is State.FAILED
    outcome = job.outcome()
    assert outcome is not None
    assert type(events.error_of(outcome)).__name__ in ("DamagedError", "UnsupportedError", "UsageError")
    assert (job.folder / "log.txt").read_text() == ""
