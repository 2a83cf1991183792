"""What a bug report needs: versions, the terminal, limits, file systems."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from textual import work
from textual.app import ComposeResult

from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import Sheet, fact, wrap

_BYTES = frozenset(
    {
        *("anon", "working_set", "limit", "available", "machine_available", "usage", "free", "total"),
        *("address space", "data size", "file size"),
    }
)
"""Readings that are amounts of bytes."""


class Doctor(Page):
    """See the module."""

    NAME = "Doctor"
    EXPLAINS = "The same as `shardyard doctor`. y copies it, for a report of something that went wrong."
    OFFERS = ("copy", "copy-command", "reread", "back")

    def __init__(self) -> None:
        super().__init__()
        self.found: Document = {}

    def body(self) -> ComposeResult:
        yield Sheet("Doctor", id="doctor")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#doctor", Sheet).focus()
        self.look()

    def where(self) -> Sequence[str]:
        return ("doctor",)

    @work(exclusive=True)
    async def look(self) -> None:
        """Ask for the readings."""
        sheet = self.query_one("#doctor", Sheet)
        sheet.write(lambda width: wrap("Looking.", width, "dim"))
        try:
            self.found = await self.home.engine.doctor()
        except EngineError as error:
            problem = error.message
            sheet.write(lambda width: wrap(problem, width, "error"))
            return
        # Whoever answered is a process without a terminal: what is known here counts.
        self.found = {**self.found, "terminal": {**self.found.get("terminal", {}), **self._terminal()}}
        sheet.write(self._lines)

    def _terminal(self) -> dict[str, object]:
        streams = {"stdin": sys.__stdin__, "stdout": sys.__stdout__, "stderr": sys.__stderr__}
        return {
            "size": [self.app.size.width, self.app.size.height],
            "interactive": {name: stream is not None and stream.isatty() for name, stream in streams.items()},
            "encoding": getattr(sys.__stderr__, "encoding", None),
            "colours": self.app.console.color_system,
            "ascii": self.home.ascii,
            "slow": self.home.slow,
        }

    def _lines(self, width: int) -> list[Line]:
        return [line for name, value in self.found.items() if name != "schema" for line in describe(str(name), value, width)]

    def do_reread(self) -> None:
        self.look()

    def copied(self) -> str:
        return json.dumps(self.found, indent=1, default=str)

    def command(self) -> str:
        return "shardyard doctor --json"


def describe(name: str, value: object, width: int, depth: int = 0) -> list[Line]:
    """A value of a JSON document in lines."""
    label = "  " * depth + name.replace("_", " ")
    if isinstance(value, Mapping):
        lines: list[Line] = [[(label, "head" if depth == 0 else "dim")]]
        for key, inner in value.items():
            lines += describe(str(key), inner, width, depth + 1)
        return lines
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Mapping, list, tuple)) for v in value):
        lines = [[(label, "head" if depth == 0 else "dim")]]
        for number, inner in enumerate(value, 1):
            lines += describe(str(number), inner, width, depth + 1)
        return lines
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _text(name, value)
    return fact(label, text, width, indent=26)


def _text(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return units.size(value) if name in _BYTES and isinstance(value, int) else str(value)
