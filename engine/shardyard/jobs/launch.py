"""Starting a job's worker: a process of its own session that no closing terminal, hang-up or dead parent takes along."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import shardyard
from shardyard.errors import JobError
from shardyard.jobs.folder import JobFolder
from shardyard.jobs.owner import Owner
from shardyard.limits import manners

WORKER = (sys.executable, "-m", "shardyard.jobs.worker")
"""The worker's command, to which the job folder is added; tests put their own verbs behind another one."""

_children: dict[Path, subprocess.Popen[bytes]] = {}
"""Workers that this process started, by job folder. It must collect them when they end: else they stay as zombies."""


def spawn(job: JobFolder) -> None:
    """Start the job's worker on this machine."""
    for folder, ended in list(_children.items()):
        if ended.poll() is not None:
            del _children[folder]
    with open(os.open(job.folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        try:
            child = subprocess.Popen(
                [*WORKER, str(job.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # `-m` looks in the current folder first, and the person's may hold a numpy.py; our own holds none.
                cwd=job.folder,
                env=environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise JobError(f"The worker process cannot be started ({error.strerror}).") from error
    _children[job.folder] = child
    owner = Owner.of(child.pid)
    if owner is not None:
        job.own(owner)


def pause(job: JobFolder, seconds: float) -> None:
    """Wait so long, or until the job's worker ends if this process started it."""
    child = _children.get(job.folder)
    if child is None or child.poll() is not None:
        time.sleep(seconds)
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def environment() -> dict[str, str]:
    """The worker's environment: this package is found though it may not be installed, and libraries start no threads."""
    package = str(Path(shardyard.__file__).parents[1])
    paths = [package, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != package)]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    manners.quiet_libraries(found)
    return found
