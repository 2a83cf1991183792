"""`python -m tests.bench.app`: what the app costs in a real terminal, on the real engine, beside what it is allowed to cost.

A file with half a million tensors and a folder of ten thousand files are made for it; everything is measured on a pseudo
terminal of 140x40.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.terminal import Terminal

ROWS = 500_000
FILES = 10_000
SIZE = {"columns": 140, "rows": 40}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement."""

    name: str
    value: float
    most: float
    unit: str

    def __str__(self) -> str:
        sign = "ok " if self.value <= self.most else "NO "
        return f"{sign} {self.name:<58}{self.value:>10.3g} {self.unit:<6} of {self.most:g}"


def large_file(path: Path) -> None:
    """A safetensors file with `ROWS` tensors of two elements."""
    header = {
        f"model.layers.{n // 6144}.mlp.experts.{n // 3 % 2048}.{('gate', 'up', 'down')[n % 3]}_proj.weight": {
            "dtype": "BF16",
            "shape": [2],
            "data_offsets": [4 * n, 4 * n + 4],
        }
        for n in range(ROWS)
    }
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(4 * ROWS))


@contextmanager
def app(folder: Path, state: Path) -> Iterator[Terminal]:
    """The real app on a folder."""
    environment = {"SHARDYARD_STATE": str(state), "COLORTERM": "truecolor"}
    with Terminal([sys.executable, "-m", "shardyard", str(folder)], **SIZE, environment=environment) as terminal:
        yield terminal
        terminal.send("q")
        terminal.wait()


def first_frame(folder: Path, state: Path) -> Figure:
    """Seconds from Python's own start to the first frame."""
    bare, ours = [], []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(time.perf_counter() - began)
        began = time.perf_counter()
        with app(folder, state) as terminal:
            terminal.read_until("╭")
            ours.append(time.perf_counter() - began)
    return Figure("first frame, after Python's own start", statistics.median(ours) - statistics.median(bare), 0.4, "s")


def cpu_share(terminal: Terminal, seconds: float) -> float:
    """Percent of a core that the app takes while nobody presses a key."""
    process = psutil.Process(terminal.process.pid)

    def used() -> float:
        every = [process, *process.children(recursive=True)]
        # Of children that have ended, the time is their parent's by now.
        return sum(sum(p.cpu_times()[:2]) for p in every) + sum(process.cpu_times()[2:4])

    before = used()
    terminal.read(quiet=seconds + 1, timeout=seconds)
    return 100 * (used() - before) / seconds


def half_a_million(folder: Path, state: Path) -> Iterator[Figure]:
    """Moving, paging, filtering, resting in a list of half a million rows."""
    with app(folder, state) as terminal:
        terminal.read_until("500,000 tensors", timeout=180)
        terminal.read(quiet=0.5)
        terminal.send("\r")
        terminal.read_until("1 of 500,000")
        terminal.read(quiet=0.5)
        moves = [terminal.press("j", 0.15) for _ in range(20)]
        pages = [terminal.press("\x06", 0.2) for _ in range(10)]
        yield Figure("cursor down: bytes", max(sent for sent, _ in moves), 600, "B")
        yield Figure("cursor down: first byte", 1000 * statistics.median(wait for _, wait in moves), 20, "ms")
        yield Figure("page down: bytes", max(sent for sent, _ in pages), 8192, "B")
        yield Figure("page down: first byte", 1000 * statistics.median(wait for _, wait in pages), 40, "ms")
        began = time.perf_counter()
        terminal.send("/experts.17.up")
        terminal.read_until("500,000 in all")
        yield Figure("filter typed to filter shown", time.perf_counter() - began, 2.0, "s")
        terminal.send("\r")
        terminal.read(quiet=0.5)
        terminal.send("\x1b")
        terminal.read(quiet=0.5)
        yield Figure("resident memory of the app", psutil.Process(terminal.process.pid).memory_info().rss / 1e6, 80, "MB")
        terminal.read(quiet=1.0)
        time.sleep(1.0)
        yield Figure("idle CPU, its readers included", cpu_share(terminal, 20), 0.5, "%")


def live_job() -> Figure:
    """CPU while a job is followed, on its own screen, from recorded events twice a second."""
    with Terminal.app("--job", **SIZE) as terminal:
        terminal.read_until("old.ckpt")
        terminal.send("J\r")
        terminal.read(quiet=0.3, timeout=2)
        share = cpu_share(terminal, 15)
        terminal.send("q")
        terminal.wait()
    return Figure("CPU while a job is followed", share, 3.0, "%")


def many_files(folder: Path, state: Path) -> Figure:
    """From opening a folder of ten thousand files to the first of them on the screen."""
    with app(folder, state) as terminal:
        terminal.read_until("small")
        terminal.read(quiet=0.6)
        terminal.send(".")
        terminal.read_until("many")
        terminal.read(quiet=0.6)
        terminal.send("g")
        terminal.read(quiet=0.3)
        began = time.perf_counter()
        terminal.send("l")
        terminal.read_until("file-")
        return Figure(f"a folder of {FILES:,} files shows something", time.perf_counter() - began, 0.2, "s")


def figures(base: Path, state: Path) -> Iterator[Figure]:
    """Every figure, as it is measured."""
    yield first_frame(base / "mixed", state)
    yield from half_a_million(base / "large", state)
    yield live_job()
    yield many_files(base / "mixed", state)


def main() -> int:
    """Print every figure; 1 if one is beyond what it may be."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        for name in ("large", "mixed", "mixed/many"):
            (base / name).mkdir()
        large_file(base / "large" / "model.safetensors")
        for number in range(FILES):
            (base / "mixed" / "many" / f"file-{number}-{number * 7919 % 1013}.log").touch()
        small = base / "mixed" / "small.safetensors"
        small.write_bytes(struct.pack("<Q", 56) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  ' + bytes(4))
        state = base / "state"
        os.environ.pop("NO_COLOR", None)
        for figure in figures(base, state):
            print(figure, flush=True)
            found.append(figure)
    return int(any(f.value > f.most for f in found))


if __name__ == "__main__":
    sys.exit(main())
