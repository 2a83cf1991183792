"""Handles of files: few descriptors are enough, and none left is told as what it is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard.errors import NoRoomError
from shardyard.files import FileHandles
from support.checkpoints import fixture_root


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 4, hard))
    yield used
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_handles_are_given_back_where_none_is_left(tmp_path: Path, few_descriptors: int) -> None:
    files = [tmp_path / f"{i}.bin" for i in range(20)]
    handles = FileHandles(100)
    for i, file in enumerate(files):
        file.write_bytes(bytes([i] * 3))
    assert [handles.read(str(f), 0, 3)[0] for f in files] == list(range(20))
    handles.close()


def test_no_descriptor_left_is_no_damage(tmp_path: Path, few_descriptors: int) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    taken = []
    try:
        while True:
            taken.append(os.open(tmp_path / "a.bin", os.O_RDONLY))
    except OSError:
        pass
    with pytest.raises(NoRoomError, match=r"a\.bin cannot be opened.*ulimit -n"):
        FileHandles(100).read(str(tmp_path / "a.bin"), 0, 3)
    for fd in taken:
        os.close(fd)


@pytest.mark.parametrize(("limit", "codes"), [(40, {0}), (24, {0, 4}), (9, {0, 4})])
def test_a_merge_under_a_low_limit_ends_well_or_says_why(limit: int, codes: set[int], tmp_path: Path) -> None:
    case = fixture_root() / "deepspeed" / "z3_w11_fp16"
    command = f'ulimit -n {limit}; exec "{sys.executable}" -m shardyard merge "{case}" -o "{tmp_path / "out"}"'
    environment = {**os.environ, "SHARDYARD_STATE": str(tmp_path / "state")}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in codes and "fault of its own" not in done.stderr
    assert done.returncode == 0 or "more files" in done.stderr.splitlines()[-1]
