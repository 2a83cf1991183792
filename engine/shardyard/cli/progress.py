"""One line on a terminal while a command works in this process; Ctrl-C stops it at the next block."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from shardyard.cli.panel import finish, progress_line
from shardyard.operations.context import Context, Progress

_EVERY_S = 0.2


class LiveContext(Context):
    """Draws the progress where the stream is a terminal, and is silent elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._started = self._last = time.monotonic()
        self.stop = False

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._live or now - self._last < _EVERY_S:
            return
        self._last = now
        rate = progress.done / (now - self._started)
        eta = (progress.total - progress.done) / rate if rate else None
        line = progress_line({"done": progress.done, "total": progress.total, "rate": rate, "eta": eta})
        self._stream.write(f"\r{line.partition('  memory')[0]}\x1b[K")
        self._stream.flush()

    def cancelled(self) -> bool:
        return self.stop


@contextmanager
def live(stream: TextIO) -> Iterator[LiveContext]:
    """A context for the time of one operation."""
    context = LiveContext(stream)

    def stop(*_: object) -> None:
        context.stop = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield context
    finally:
        signal.signal(signal.SIGINT, before)
        finish(stream)
