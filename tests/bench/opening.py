"""How long it takes until something is known: opening huge checkpoints, scanning a large tree, starting."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

_OPEN = """
import sys, time
from pathlib import Path
from shardyard.discover import open_checkpoint
from shardyard.formats.candidate import OpenOptions
start = time.perf_counter()
opened = open_checkpoint([Path(sys.argv[1])], OpenOptions())
count = len(opened.tensors)
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak // 1024, count)
"""
_SCAN = """
import sys, time
from pathlib import Path
from shardyard.discover import scan
start = time.perf_counter()
count = sum(1 for _ in scan(Path(sys.argv[1])))
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak // 1024, count)
"""
FRAME_BYTES = 2000
"""So many bytes on the terminal are a painted screen, not only its modes."""


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """All rows, printed as they come."""
    rows = [
        _child("open ZeRO-3 70B x 64 ranks", _OPEN, _sparse(folder, "70B"), rounds, 0.5, 100),
        _child("open ZeRO-3 671B x 1,024 ranks", _OPEN, _sparse(folder, "671B"), 1, 10.0, 600),
        _child("open DCP 70B x 64 ranks", _OPEN, _chunks(folder), rounds, 0.8, 150),
        _child("scan 10,000 files, 500 checkpoints", _SCAN, _tree(folder), rounds, 3.0, 100),
    ]
    bare = _command([sys.executable, "-c", "pass"], rounds)
    small = _sparse(folder, "70B")
    for name, command, aim in (
        ("start: --version", [sys.executable, "-m", "shardyard", "--version"], 0.1),
        ("start: inspect", [sys.executable, "-m", "shardyard", "inspect", str(folder / "tree" / "run-000")], 0.2),
    ):
        rows.append(_row(name, _command(command, rounds) - bare, aim, 0, 0))
    frame = statistics.median(_first_frame(folder / "tree" / "run-000") for _ in range(max(3, rounds)))
    rows.append(_row("start: first frame", frame - bare, 0.4, 0, 0))
    shutil.rmtree(small, ignore_errors=True)
    return rows


def _child(name: str, program: str, path: Path, rounds: int, aim: float, most_mib: int) -> dict[str, object]:
    seconds, peak = [], 0
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
        taken, mib, _ = done.stdout.split()
        seconds.append(float(taken))
        peak = max(peak, int(mib))
    return _row(name, statistics.median(seconds), aim, peak, most_mib)


def _command(command: list[str], rounds: int) -> float:
    seconds = []
    for _ in range(max(3, rounds)):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _first_frame(path: Path) -> float:
    """Seconds until the app has painted a terminal."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    start = time.perf_counter()
    command = [sys.executable, "-m", "shardyard", str(path)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    seen = 0
    while seen < FRAME_BYTES:
        seen += len(os.read(master, 4096))
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    os.close(master)
    return seconds


def _row(name: str, seconds: float, aim: float, peak: int, most: int) -> dict[str, object]:
    good = seconds <= aim and peak <= max(most, peak if not most else 0)
    memory = f"{peak:>7} MiB (at most {most})" if most else ""
    print(f"{name:<40}{seconds:>7.2f} s (aim {aim}){memory}{'' if good else '  *'}", flush=True)
    return {"name": name, "seconds": round(seconds, 3), "aim": aim, "peak_mib": peak, "most_mib": most, "good": good}


def _sparse(folder: Path, size: str) -> Path:
    made = folder / f"sparse-{size}"
    if not made.exists():
        from tests.support import sparse_deepspeed

        shapes, world = {"70B": (sparse_deepspeed.shapes_70b(), 64), "671B": (sparse_deepspeed.shapes_671b(), 1024)}[size]
        sparse_deepspeed.zero3(made, shapes, world)
    return made


def _chunks(folder: Path) -> Path:
    """A DCP folder whose .metadata lists 1,000 tensors in 64 row chunks each."""
    made = folder / "dcp-70B"
    if not made.exists():
        from tests.support import dcp_writer

        dcp_writer.main(str(made), "70B")
    return made


def _tree(folder: Path) -> Path:
    """500 checkpoints of 20 files each."""
    made = folder / "tree"
    if not made.exists():
        import numpy as np
        from safetensors.numpy import save_file

        for k in range(500):
            run = made / f"run-{k:03d}"
            run.mkdir(parents=True)
            save_file({"w": np.zeros(8, np.float32)}, run / "model.safetensors")
            (run / "config.json").write_text('{"model_type": "llama"}')
            for n in range(18):
                (run / f"log-{n}.txt").write_text("line\n")
    return made
