"""Small file systems that tests make for themselves, and skip with a reason where they may not."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def need(*programs: str) -> None:
    """Skip the test where a program is missing or we are not root."""
    path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin:/sbin"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs root")


@contextmanager
def _folder() -> Iterator[Path]:
    # Short and outside of pytest's own folders, which it would not clear while something is mounted in them.
    folder = Path(tempfile.mkdtemp(prefix="shardyard-"))
    try:
        yield folder.resolve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def tmpfs(options: str) -> Iterator[Path]:
    """A tmpfs with these mount options, such as `size=8m`."""
    need("mount")
    with _folder() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "t", folder], capture_output=True).returncode != 0:
            pytest.skip("no file system can be mounted here")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A memory control group of our own with this limit: put a process in by writing its id to `cgroup.procs`."""
    need()
    name = f"shardyard-{os.getpid()}"
    for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(base) / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    pytest.skip("no memory control group can be made here")


@contextmanager
def btrfs_with_quota(limit: str) -> Iterator[Path]:
    """A subvolume of a small btrfs whose quota group has this limit."""
    need("mount", "btrfs", "mkfs.btrfs")
    with _folder() as folder:
        image, at = folder / "image", folder / "at"
        at.mkdir()
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "-q", image], check=True)
        if subprocess.run(["mount", "-o", "loop", image, at], capture_output=True).returncode != 0:
            pytest.skip("no loop device can be mounted here")
        try:
            for command in (("quota", "enable", at), ("subvolume", "create", at / "sub"), ("qgroup", "limit", limit, at / "sub")):
                subprocess.run(["btrfs", *command], check=True, capture_output=True)
            yield at / "sub"
        finally:
            subprocess.run(["umount", "-l", at], check=True)
