"""The tour: the app itself in a terminal of its own, driven by keys and written as an asciicast, a JSON line a piece."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

SIZE = (100, 30)
PATIENCE_S = 60.0
MOST_WAIT_S = 0.2
QUIET_S = 0.25
"""A screen is drawn once nothing has come for so long."""
START = (
    "import sys; from shardyard_tui import terminal; terminal.host_and_user = lambda: ('login3', 'anna'); "
    "from shardyard.cli import main; sys.exit(main([sys.argv[1]]))"
)
STEPS: tuple[tuple[str, str, float], ...] = (
    ("", "7 checkpoints", 2.5),
    ("j", "", 0.3),
    ("j", "checkpoint-100", 2.5),
    ("h", "Why it matters", 4.0),
    ("\x1b", "7 checkpoints", 0.6),
    ("G", "whole model", 3.0),
    ("\r", "model.embed_tokens", 1.5),
    ("f", "#.mlp", 2.0),
    ("f", "", 0.6),
    ("/", "", 0.4),
    *((letter, "", 0.12) for letter in "1 q_proj"),
    ("\r", "", 1.2),
    ("i", "Distribution", 3.5),
    ("\x1b", "in all", 0.5),
    ("\x1b", "", 0.4),
    ("\x1b", "7 checkpoints", 0.8),
    ("m", "nothing is written yet", 3.0),
    ("j", "", 0.5),
    ("l", "", 0.5),
    ("l", "bfloat16: the same", 3.0),
    ("\r", "done in", 2.0),
    ("J", "How it goes", 1.5),
    ("\r", "Written", 3.0),
    ("\x1b", "How it goes", 0.5),
    ("\x1b", "checkpoint-2000-merged", 2.0),
)
"""Keys, what must be seen afterwards, and how long to look at it."""
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?<>=$]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")


class Recorder:
    """Keys in, pieces of output with the moment at which to show them."""

    def __init__(self, folder: Path) -> None:
        self.pieces: list[tuple[float, str]] = []
        self.clock = 0.0
        self.process, self._terminal = pty.fork()
        if not self.process:
            os.execv(sys.executable, [sys.executable, "-c", START, str(folder)])
        columns, rows = SIZE
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def step(self, keys: str, wanted: str, hold: float) -> None:
        """Press keys and keep what comes until `wanted` was written; then let it be looked at."""
        os.write(self._terminal, keys.encode())
        decode = codecs.getincrementaldecoder("utf-8")().decode
        began = moment = time.monotonic()
        seen = ""
        while True:
            ready, _, _ = select.select([self._terminal], [], [], QUIET_S)
            if not ready and wanted in ESCAPES.sub("", seen):
                break
            if time.monotonic() - began > PATIENCE_S:
                raise SystemExit(f"{wanted!r} did not come after {keys!r}. What came was:\n{ESCAPES.sub('', seen)}")
            if ready:
                text = decode(os.read(self._terminal, 1 << 16))
                # Waiting is no part of a tour: what took long on this machine is shortened.
                self.clock += min(MOST_WAIT_S, time.monotonic() - moment)
                moment = time.monotonic()
                self.pieces.append((self.clock, text))
                seen += text
        self.clock += hold

    def end(self) -> None:
        """Quit, and wait for it."""
        os.write(self._terminal, b"q")
        try:
            while os.read(self._terminal, 1 << 16):
                pass
        except OSError:  # Linux says so when the other end is closed
            pass
        os.waitpid(self.process, 0)
        os.close(self._terminal)


def record(folder: Path, target: Path) -> None:
    """The tour through the demo tree in `folder`, as an asciicast."""
    os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
    os.environ.pop("COLORTERM", None)  # 256 colours do, and are shorter
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    recorder = Recorder(folder)
    for keys, wanted, hold in STEPS:
        recorder.step(keys, wanted, hold)
    recorder.end()
    columns, rows = SIZE
    header = {"version": 2, "width": columns, "height": rows, "title": "shardyard", "env": {"TERM": "xterm-256color"}}
    # The last screen stays as long as it was meant to be looked at.
    pieces = [*recorder.pieces, (recorder.clock, "")]
    lines = [header, *([round(at, 3), "o", text] for at, text in pieces)]
    target.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    print(f"screenshots/{target.name}: {recorder.clock:.0f} s, {target.stat().st_size >> 10} KiB")
