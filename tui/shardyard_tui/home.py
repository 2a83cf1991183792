"""What the screens and their parts ask of the app, so that they need not know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shardyard_tui.engine import Engine
from shardyard_tui.facts import Document, Intent, JobRequest, JobView, Opened
from shardyard_tui.theme import Look


class Home(Protocol):
    """The app as a screen sees it."""

    engine: Engine
    path: str
    """What the app was opened on."""
    started_in: str
    ascii: bool
    slow: bool
    read_only: bool
    jobs: list[JobView]
    """All jobs, as they were when they were last looked at."""
    jobs_problem: str
    """Why they could not be looked at; empty when they could."""
    compare_with: str | None
    """The first of two checkpoints to compare."""
    deep: dict[str, tuple[float, Document]]
    """Reports of checkpoints whose data was read, with the stamp that they hold for."""

    @property
    def look(self) -> Look:
        """The styles that everything is drawn with."""
        ...

    def right_end(self) -> str:
        """The first line's right end: who and where, and how many jobs run."""
        ...

    def say(self, text: str, style: str = "strong") -> None:
        """A message in the last line of the screen in front."""
        ...

    def copy(self, text: str) -> None:
        """To the terminal's clipboard."""
        ...

    async def start_job(self, request: JobRequest) -> str | None:
        """Start a job; None, and a message, when it could not be."""
        ...

    def look_at_jobs(self) -> None:
        """Look now, not at the next turn."""
        ...

    # Other screens

    def show_tensors(self, opened: Opened) -> None: ...
    def show_tensor(self, opened: Opened, row: int) -> None: ...
    def show_health(self, opened: Opened) -> None: ...
    def show_files(self, opened: Opened) -> None: ...
    def show_disk(self, folder: str) -> None: ...
    def show_plans(self, intents: Sequence[Intent], *, at_once: bool = False) -> None: ...
    def show_compare(self, a: str, b: str, job: JobView | None = None) -> None: ...
    def show_statistics(self, path: str, options: Mapping[str, Any], job: JobView | None = None) -> None: ...
    def show_job(self, job: JobView) -> None: ...
