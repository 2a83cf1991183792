"""The real checkpoints that tests run on: unpacked once from the archives beside the tests.

`SHARDYARD_FIXTURES` names another folder of the same shape, such as one with cases that are not in this repository.
"""

from __future__ import annotations

import fcntl
import os
import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).parents[1] / "fixtures"
UNPACKED = Path(__file__).parents[2] / ".fixtures"
FAMILIES = ("deepspeed", "dcp", "files", "hostile")


def fixture_root() -> Path:
    """The folder with one sub folder a family, unpacked if need be (safe when several processes ask at once)."""
    elsewhere = os.environ.get("SHARDYARD_FIXTURES")
    if elsewhere:
        return Path(elsewhere)
    UNPACKED.mkdir(exist_ok=True)
    with open(UNPACKED / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for family in FAMILIES:
            archive = ARCHIVES / f"{family}.tar.xz"
            stamp = UNPACKED / f".{family}-{archive.stat().st_size}"
            if not stamp.exists():
                with tarfile.open(archive) as tar:
                    tar.extractall(UNPACKED, filter="data")
                stamp.touch()
    return UNPACKED


def cases(family: str, prefix: str = "") -> list[Path]:
    """The case folders of a family, sorted."""
    return sorted(p for p in (fixture_root() / family).iterdir() if p.is_dir() and p.name.startswith(prefix))
