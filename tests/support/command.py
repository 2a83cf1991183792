"""Run the command line as a person would: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def shardyard(
    *args: str | Path, timeout_s: float = 120, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `shardyard ARGS` without a terminal; stdout and stderr are text."""
    return subprocess.run(
        [sys.executable, "-m", "shardyard", *map(str, args)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        check=False,
    )


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The `result` event of a command that ran with `--json`."""
    events = [json.loads(line) for line in done.stdout.splitlines()]
    result: dict[str, Any] = next(e for e in reversed(events) if e["event"] == "result")
    return result


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on stderr: the plain sentence."""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else ""
