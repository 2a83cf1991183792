"""Progress of a shrink, counted from any thread."""

from __future__ import annotations

import threading

from shardyard.operations.context import Context, Progress


class Meter:
    """Counts bytes for whoever watches, and stops when asked to."""

    def __init__(self, context: Context, total: int, workers: int = 1) -> None:
        self.context = context
        self.total = total
        self.workers = workers
        """Threads that may move bytes."""
        self.item = ""
        self.done = 0
        self.read = 0
        self.written = 0
        self._lock = threading.Lock()

    def step(self, *, read: int = 0, written: int = 0, done: int = 0) -> None:
        """Count bytes.

        Raises:
            Cancelled: somebody asked to stop.
        """
        with self._lock:
            self.read += read
            self.written += written
            self.done += done
            progress = Progress(min(self.done, self.total), self.total, self.read, self.written, self.item)
        self.context.check()
        self.context.progress(progress)
