"""A dropped line: the work goes on, and whoever logs in again finds it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard.jobs import launch, store
from shardyard.jobs.folder import State
from shardyard.jobs.store import Job
from support import ssh
from support.merges import digests, wait_for, worker_of, write_source

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server() -> Iterator[ssh.Server]:
    with ssh.server() as running:
        yield running


def command(*arguments: object) -> str:
    """A command line that brings its environment along: a login has a bare one."""
    environment = launch.environment()
    names = ("PYTHONPATH", "SHARDYARD_STATE")
    words = [*(f"{name}={environment[name]}" for name in names), sys.executable, "-m", "shardyard", *map(str, arguments)]
    return f"exec env {shlex.join(words)}"


def the_job() -> Job:
    wait_for(lambda: len(store.jobs()) == 1)
    return store.jobs()[0]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("arguments", [("--json",), ("--json", "--detach")])
def test_a_dropped_line_in_mid_merge_leaves_the_merge_running(
    server: ssh.Server, tmp_path: Path, terminal: bool, arguments: tuple[str, ...]
) -> None:
    write_source(tmp_path / "source/model.safetensors", 32, 4 << 20)
    out = tmp_path / "out"
    line = server.login(command("merge", tmp_path / "source", "-o", out, *arguments), terminal=terminal)
    job = the_job()
    pid = worker_of(job)
    # Held still so that the line drops in the middle for certain.
    os.kill(pid, signal.SIGSTOP)
    if "--detach" not in arguments:
        server.drop()
    assert line.wait(timeout=20) == (0 if "--detach" in arguments else 255)
    time.sleep(0.3)
    assert job.state() is State.RUNNING and not out.exists()
    os.kill(pid, signal.SIGCONT)

    # Logging in again: the list has it, following shows its end.
    again = server.login(command("jobs", "follow", job.id, "--json"), terminal=False)
    text, _ = again.communicate(timeout=60)
    events = [json.loads(line) for line in text.decode().splitlines()]
    assert again.returncode == 0
    # On a busy machine a sign of life comes before the plan.
    assert next(e for e in events if e["event"] != "progress")["event"] == "plan" and events[-1]["event"] == "result"
    assert job.state() is State.DONE and job.owner() is not None
    listed = server.login(command("jobs", "list"), terminal=False).communicate(timeout=60)[0].decode()
    assert listed.startswith(f"{job.id}  done")
    assert set(digests(out)) == {"model.safetensors", ".shardyard.json"}
