"""Kill -9 at every write, sync, rename and removal of a merge, and at random moments: nothing partial is ever under a final name.

The merge runs in a child of this process, so that a try costs a tenth of a second; strace kills it at the n-th call of a kind.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardyard.jobs import launch, store, worker
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.owner import Owner
from shardyard.jobs.store import Job
from shardyard.limits import manners
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.merge.run import merge
from support import services
from support.checkpoints import fixture_root
from support.merges import write_source

pytestmark = pytest.mark.services

CALLS = ("pwrite64", "write", "ftruncate", "fsync", "fdatasync", "mkdir", "rename", "unlink", "unlinkat", "rmdir")

FINAL = ("pwrite64", "fsync", "rename", "link", "linkat", "unlink", "unlinkat", "rmdir")
"""Where the other cases differ from the first."""

CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "shards": ("out", {"max_shard_size": "6KB", "workers": 1}, CALLS),
    "torch-file": ("out.bin", {"dtype": "bfloat16", "workers": 1}, FINAL),
    "replaced": ("out", {"overwrite": True, "workers": 1}, FINAL),
}


def contents(out: Path) -> dict[str, bytes] | None:
    """Every file of an output; None where there is none."""
    if out.is_file():
        return {"": out.read_bytes()}
    if not out.exists():
        return None
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


class Bench:
    """One merge, to be run again and again from the same state."""

    def __init__(self, folder: Path, name: str, options: dict[str, Any], calls: tuple[str, ...]) -> None:
        self.folder = folder
        self.calls = calls
        self.source = fixture_root() / "deepspeed" / "z3_w2_bf16"
        self.out = folder / name
        self.options = options
        self.before: dict[str, bytes] | None = None
        # Imported here once, not in every child.
        merge(plan_merge([self.source], folder / "warm", MergeOptions.parse({"dtype": "bfloat16"})))
        if options.get("overwrite"):
            assert self.run(self.new_job(dtype="float16")) == 0
            self.before = contents(self.out)
            shutil.copytree(self.out, folder / "kept")
        assert self.run(self.new_job()) == 0
        self.reference = contents(self.out)
        assert self.reference is not None and self.reference != self.before
        self.reset()

    def reset(self) -> None:
        """As before the merge."""
        for path in self.folder.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.before is not None:
            shutil.copytree(self.folder / "kept", self.out)

    def new_job(self, **changes: Any) -> Job:
        job = store.create(Spec("merge", (str(self.source),), str(self.out), {**self.options, **changes}))
        job.begin_attempt()
        return job

    def run(self, job: Job, strace: tuple[str, ...] = ()) -> int:
        """Run the worker in a child, under strace where asked; returns its status as `waitpid` gives it."""
        child = os.fork()
        if child == 0:
            _become_worker(job, wait=bool(strace))
        owner = Owner.of(child)
        if owner is not None:
            job.own(owner)
        tracer = None
        if strace:
            os.waitpid(child, os.WUNTRACED)
            tracer = subprocess.Popen(["strace", "-f", "-p", str(child), *strace], stderr=subprocess.DEVNULL)
            _wait(lambda: "TracerPid:\t0" not in Path(f"/proc/{child}/status").read_text())
            os.kill(child, signal.SIGCONT)
        status = os.waitpid(child, 0)[1]
        if tracer is not None:
            tracer.wait()
        return status

    def check(self) -> None:
        """What must hold after any kill."""
        found = contents(self.out)
        old = contents(self.out.with_name(self.out.name + ".shardyard-old"))
        assert found in (self.reference, self.before) or (self.before is not None and found is None and old == self.before)
        assert len(list(self.folder.glob("*.shardyard-partial"))) <= 1

    def resume(self, job: Job) -> None:
        """The same job again, until it is done."""
        if job.state() is not State.DONE:
            job.begin_attempt()
            assert self.run(job) == 0, (job.outcome(), (job.folder / "log.txt").read_text())
        assert job.state() is State.DONE
        assert contents(self.out) == self.reference
        assert sorted(p.name for p in self.folder.glob("out*")) == [self.out.name]


def _become_worker(job: Job, *, wait: bool) -> None:
    """Never returns: what a worker process does, and nothing of the test's."""
    status = 1
    try:
        log = os.open(job.folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = os.fdopen(log, "w")
        if wait:
            os.kill(os.getpid(), signal.SIGSTOP)
        status = worker.main([str(job.folder)])
    finally:
        os._exit(status)


def _wait(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.fixture(params=CASES)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    services.need("strace")
    monkeypatch.setattr(manners, "be_nice", lambda: None)  # hundreds of runs, each behind whatever else runs here
    return Bench(tmp_path, *CASES[request.param])


def boundaries(bench: Bench) -> dict[str, int]:
    """How often a whole merge makes each call."""
    trace = bench.folder / "trace"
    assert bench.run(bench.new_job(), ("-o", str(trace), "-e", f"trace={','.join(bench.calls)}")) == 0
    bench.reset()
    lines = [line.split() for line in trace.read_text().splitlines()]
    # strace counts for each thread; the first line is the main one's.
    calls = Counter(words[1].partition("(")[0] for words in lines if words[0] == lines[0][0])
    return {call: calls[call] for call in bench.calls if calls[call]}


def test_killed_at_every_boundary_it_resumes_to_the_same_bytes(bench: Bench) -> None:
    counts = boundaries(bench)
    assert set(counts) >= {"pwrite64", "fsync", "rename", "unlinkat", "rmdir"}
    kills: Counter[str] = Counter()
    for call, count in counts.items():
        for n in range(1, count + 1):
            job = bench.new_job()
            status = bench.run(job, ("-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"))
            kills[call] += os.WIFSIGNALED(status)
            bench.check()
            bench.resume(job)
            bench.reset()
            shutil.rmtree(job.folder)
    # Events are written by the clock: a run may make a few less of them.
    assert all(kills[call] == count or (call == "write" and kills[call] >= count - 4) for call, count in counts.items())


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    write_source(source / "model.safetensors", 24, 4 << 20)
    out = tmp_path / "out"
    options = {"max_shard_size": "40MB", "dtype": "bfloat16", "allow_overflow": True, "verify": "full"}

    def new() -> Job:
        return store.create(Spec("merge", (str(source),), str(out), options))

    def run_for(job: Job, seconds: float | None) -> float:
        job.begin_attempt()
        with open(job.folder / "log.txt", "ab") as log:
            began = time.monotonic()
            process = subprocess.Popen(
                [*launch.WORKER, str(job.folder)], cwd=job.folder, env=launch.environment(), stdout=log, stderr=log
            )
            owner = Owner.of(process.pid)
            assert owner is not None
            job.own(owner)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            process.kill()
            process.wait()
        return time.monotonic() - began

    first = new()
    whole = run_for(first, None)
    assert first.state() is State.DONE
    reference = contents(out)
    shutil.rmtree(out)
    chance = random.Random(20240229)
    for _ in range(25):
        job = new()
        run_for(job, chance.uniform(0.2, 1.0) * whole)
        assert contents(out) in (None, reference)
        assert len(list(tmp_path.glob("*.shardyard-partial"))) <= 1
        if job.state() is not State.DONE:
            run_for(job, None)
        assert job.state() is State.DONE, (job.folder / "log.txt").read_text()
        assert contents(out) == reference
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]
        shutil.rmtree(out)
