"""Merges that last long enough to be disturbed, and what they must end in."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from shardyard.jobs.store import Job


def write_source(path: Path, tensors: int, nbytes: int) -> None:
    """A safetensors file of so many float32 tensors of so many bytes each, in rising order of their names."""
    import numpy as np
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).standard_normal((tensors, nbytes // 4), dtype=np.float32)
    save_file({f"layer.{k:03d}": value for k, value in enumerate(values)}, path)


def digests(out: Path) -> dict[str, str]:
    """SHA-256 of every file of an output."""
    files = [out] if out.is_file() else sorted(p for p in out.rglob("*") if p.is_file())
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def wait_for(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def slowed(*command: str) -> tuple[str, ...]:
    """The command with 20 ms before every write of data, so that there is a middle to disturb it in."""
    return ("strace", "-f", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=20000", *command)


def worker_of(job: Job) -> int:
    """The process id of a job's worker, once it has one."""
    wait_for(lambda: job.owner() is not None)
    owner = job.owner()
    assert owner is not None
    return owner.pid
