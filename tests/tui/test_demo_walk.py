"""The main job, end to end: from the demo's ZeRO-3 folder to a model file that opens, by keys alone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard import demo
from shardyard_tui.app import ShardyardApp
from shardyard_tui.engine import RealEngine
from support.pilot import Driver
from support.terminal import PATHS


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Real processes need the real time."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    demo.write(folder)
    return folder


def names_in(file: Path) -> set[str]:
    """Names in a safetensors file, each of whose bytes lies inside it."""
    with open(file, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    metadata = header.pop("__metadata__", {})
    assert max(t["data_offsets"][1] for t in header.values()) == file.stat().st_size - 8 - length
    return set(header) | {k for k, v in metadata.items() if v in header}


async def until(it: Driver, what: str) -> None:
    """Wait for a text to be on the screen."""
    for _ in range(600):
        if what in it.text or what in it.words:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what!r} did not come:\n{it.text}")


async def test_walk_merge_and_open_in_the_app_itself(runs: Path) -> None:
    app = ShardyardApp(RealEngine(), str(runs))
    async with app.run_test(size=(100, 30)) as pilot:
        it = Driver(app, pilot, None)  # type: ignore[arg-type]
        await until(it, "7 checkpoints")
        while it.page.browse.current.key != str(runs / "zero3" / "checkpoint-2000"):
            await pilot.press("j")
        await until(it, "float32 masters")
        await pilot.press("m")
        await until(it, "nothing is written yet")
        await pilot.press("enter")
        await until(it, "done in")
        await until(it, "8 checkpoints")
    names = names_in(runs / "zero3" / "checkpoint-2000-merged" / "model.safetensors")
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= names


class Tmux:
    """A terminal that looks like a person's."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.name = f"shardyard-{os.getpid()}"
        environment = f"SHARDYARD_STATE={state} PYTHONPATH={PATHS} LC_ALL=C.UTF-8"
        command = f"env {environment} {sys.executable} -m shardyard {folder}; echo exit=$?; sleep 60"
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-s", "a", command)

    def run(self, *arguments: str) -> str:
        return subprocess.run(["tmux", "-L", self.name, *arguments], check=True, capture_output=True, text=True).stdout

    def keys(self, *keys: str) -> None:
        self.run("send-keys", "-t", "a", *keys)

    def picture(self) -> str:
        return self.run("capture-pane", "-t", "a", "-p")

    def until(self, what: str, seconds: float = 30) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            picture = self.picture()
            if what in picture:
                return picture
            time.sleep(0.05)
        raise AssertionError(f"{what!r} did not come:\n{self.picture()}")


@pytest.fixture
def tmux(runs: Path, tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    terminal = Tmux(runs, tmp_path / "state")
    yield terminal
    terminal.run("kill-server")


@pytest.mark.terminal
def test_walk_merge_and_quit_in_tmux(tmux: Tmux, runs: Path) -> None:
    tmux.until("7 checkpoints")
    tmux.keys("G")
    tmux.until("float32")
    tmux.keys("m")
    picture = tmux.until("nothing is written yet")
    assert "checkpoint-2000-merged" in picture and "Memory" in picture
    tmux.keys("Enter")
    tmux.until("done in")
    tmux.keys("q")
    tmux.until("exit=0")
    assert "model.norm.weight" in names_in(runs / "zero3" / "checkpoint-2000-merged" / "model.safetensors")
