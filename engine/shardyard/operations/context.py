"""How a running operation speaks to whoever started it: a job's event file, a progress bar, or nobody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardyard.errors import Cancelled
from shardyard.findings import Finding


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an operation is. All numbers are bytes."""

    done: int
    total: int
    read: int
    written: int
    item: str
    """The tensor or file at hand."""


class Counter:
    """The bytes that several threads have read, told as one number."""

    def __init__(self, context: Context, total: int) -> None:
        self.context = context
        self.total = total
        self.done = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int, item: str) -> None:
        """Tell of more bytes.

        Raises:
            Cancelled: somebody asked to stop.
        """
        self.context.check()
        with self._lock:
            self.done += nbytes
        self.context.progress(Progress(min(self.done, self.total), self.total, self.done, 0, item))


class Context:
    """The base is silent and never cancelled; jobs and callers override what they want to hear."""

    task = 0
    """Which of `tasks` processes this is; each takes its own work units of one plan."""
    tasks = 1
    folder: Path | None = None
    """Where an operation may put results that are too large for an event, as they come: the job's folder."""

    def plan(self, plan: Mapping[str, object]) -> None:
        """The plan, once, before any data is read."""

    def progress(self, progress: Progress) -> None:
        """Called as often as the operation likes; receivers thin it out."""

    def message(self, text: str) -> None:
        """One plain sentence worth a line in the log."""

    def finding(self, finding: Finding) -> None:
        """Something found while data was read."""

    def cancelled(self) -> bool:
        """Whether to stop at the next unit."""
        return False

    def check(self) -> None:
        """Raise Cancelled if asked to stop."""
        if self.cancelled():
            raise Cancelled()
