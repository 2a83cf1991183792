"""A login node as sites set them up: few processes, little address space, a user without rights."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard.jobs import launch, store
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.store import Job
from support import fake_worker, services
from support.checkpoints import fixture_root

NOBODY = 65534


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that belongs to the other user, jobs included."""
    services.need("setpriv")
    folder = Path(tempfile.mkdtemp(prefix="shardyard-"))
    (folder / "state").mkdir()
    monkeypatch.setenv("SHARDYARD_STATE", str(folder / "state"))
    yield folder
    shutil.rmtree(folder)


def give(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)


def as_other_user(limits: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Under limits that hold only for users who are not root; the right to read lets it reach this Python."""
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+dac_read_search",
             "--ambient-caps=+dac_read_search", sys.executable, *command]  # fmt: skip
    shell = f'ulimit {limits} && exec "$@"'
    return subprocess.run(
        ["bash", "-c", shell, "bash", *words], capture_output=True, text=True, env=launch.environment(), timeout=120
    )


def run_worker(job: Job, limits: str) -> subprocess.CompletedProcess[str]:
    give(job.folder.parents[2])
    return as_other_user(limits, *fake_worker.COMMAND[1:], str(job.folder))


def test_a_worker_runs_with_forty_processes_and_four_gigabytes(open_folder: Path) -> None:
    job = store.create(Spec("count", (str(open_folder),), str(open_folder / "out"), {"steps": 3}))
    done = run_worker(job, "-u 40 -v 4194304")
    assert done.returncode == 0, done.stderr
    assert job.state() is State.DONE


def test_events_keep_coming_where_no_thread_can_be_started(open_folder: Path) -> None:
    job = store.create(Spec("chatter", (str(open_folder),), str(open_folder / "out"), {"talk": 0.1, "silence": 4.0}))
    done = run_worker(job, "-u 1")
    assert done.returncode == 0, done.stderr
    times = [e["time"] for e in job.events()[0]]
    assert max(b - a for a, b in itertools.pairwise(times)) <= 2.0
    beat = job.heartbeat()
    assert beat is not None and times[-1] - beat < 3.0


def test_a_merge_runs_with_forty_processes_and_four_gigabytes(open_folder: Path) -> None:
    source, out = fixture_root() / "deepspeed" / "z3_w2_bf16", open_folder / "out"
    give(open_folder)
    command = ("-m", "shardyard", "merge", str(source), "-o", str(out), "--dtype", "bfloat16", "--json")
    done = as_other_user("-u 40 -v 4194304", *command)
    assert done.returncode == 0, done.stderr + done.stdout
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "plan" and events[-1]["event"] == "result"
    assert (out / "model.safetensors").exists()
    (job,) = store.jobs()
    assert (job.folder / "log.txt").read_text() == ""


def test_one_worker_does_the_work_where_no_thread_can_be_started(open_folder: Path) -> None:
    out = open_folder / "out"
    job = store.create(Spec("merge", (str(fixture_root() / "deepspeed" / "z3_w2_bf16"),), str(out), {"workers": 4}))
    give(open_folder)
    done = as_other_user("-u 1", "-m", "shardyard.jobs.worker", str(job.folder))
    assert done.returncode == 0, (done.stderr, job.outcome())
    assert job.state() is State.DONE and (out / "model.safetensors").exists()
