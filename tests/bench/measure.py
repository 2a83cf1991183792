"""Timing commands side by side, and watching what a process tree holds and moves."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

POLL_S = 0.01
MIB = 1 << 20


@dataclass(slots=True)
class Usage:
    """What a process tree took."""

    peak_bytes: int = 0
    """Resident memory of all its processes at the worst moment."""
    anonymous_bytes: int = 0
    """The part of it that is no file."""
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(slots=True)
class Contender:
    """A command that is measured, and what it came to."""

    name: str
    command: Sequence[str]
    seconds: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run_all(contenders: Sequence[Contender], out: Path, rounds: int, inputs: Sequence[Path], *, cold: bool = False) -> None:
    """Run all in turn, `rounds` times, from the same state: no output, nothing left to write back, inputs in the page cache, or,
    `cold`, out of it."""
    warm(inputs)
    for contender in contenders:
        contender.usage = watched(contender.command, out)
    for _ in range(rounds):
        for contender in contenders:
            clear(out)
            if cold:
                cool(inputs)
            start = time.perf_counter()
            _run(contender.command)
            contender.seconds.append(time.perf_counter() - start)
    clear(out)


def ratio(ours: Contender, other: Contender) -> float:
    """The median of the rounds' ratios: what disturbs the machine disturbs neighbours alike."""
    return statistics.median(a / b for a, b in zip(ours.seconds, other.seconds, strict=True))


def watched(command: Sequence[str], out: Path) -> Usage:
    """Run once and look at the process tree all the time."""
    clear(out)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    usage, ended = Usage(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, usage, ended))
    watcher.start()
    _, error = process.communicate()
    ended.set()
    watcher.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {error.decode()[-2000:]}")
    return usage


def _watch(pid: int, usage: Usage, ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        resident = anonymous = read = written = 0
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, OSError, ValueError, IndexError):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    resident += _field(status, "VmRSS:")
                    anonymous += _field(status, "RssAnon:")
                    counters = process.io_counters()
                    read, written = read + counters.read_chars, written + counters.write_chars
        usage.peak_bytes = max(usage.peak_bytes, resident)
        usage.anonymous_bytes = max(usage.anonymous_bytes, anonymous)
        # A process that has waited for a child counts the child's bytes as its own.
        usage.read_bytes, usage.written_bytes = max(usage.read_bytes, read), max(usage.written_bytes, written)


def _field(status: str, name: str) -> int:
    return int(status.split(name, 1)[1].split(None, 1)[0]) * 1024


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")


def warm(paths: Sequence[Path]) -> None:
    """Read files into the page cache."""
    block = memoryview(bytearray(1 << 20))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass


def cool(paths: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def clear(out: Path) -> None:
    """No output, and no dirty pages."""
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True) if out.is_file() else None
    os.sync()


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """All files of a folder."""
    return sorted(p for p in folder.rglob(pattern) if p.is_file())


def copy_command(files: Sequence[Path], out: Path) -> list[str]:
    """`cp` of these files, then `sync` of the copies: our output is synced too."""
    names = " ".join(f"'{p}'" for p in files)
    return ["sh", "-c", f"mkdir '{out}' && cp --reflink=never {names} '{out}' && sync '{out}'/* '{out}'"]


def machine() -> str:
    """One line on what this ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    memory = psutil.virtual_memory().total >> 30
    return f"{os.cpu_count()} x {model}, {memory} GiB, Linux {os.uname().release}, Python {sys.version.split()[0]}"
