"""Every use of a name that Textual does not promise, in one place, with why and what would show that it broke.

Textual 8.2.8; `tests/tui/test_compat.py` uses each of these.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from typing import Any

from textual import events
from textual.app import App
from textual.filter import LineFilter


def add_filter(app: App[Any], line_filter: LineFilter) -> None:
    """Rewrite every cell on its way out. There is no public way to add a filter; TEXTUAL_FILTERS only knows `dim`."""
    app._filters.append(line_filter)


class Shell(App[int]):
    """An app whose own faults end in one sentence; the details go to a file, or to the screen with SHARDYARD_DEBUG=1."""

    def _fatal_error(self) -> None:
        if self.is_headless or os.environ.get("SHARDYARD_DEBUG") == "1":
            super()._fatal_error()
            return
        from rich.text import Text

        place = keep_details(traceback.format_exc())
        self._exit_renderables.append(
            Text(f"shardyard has a fault and had to stop; jobs go on. Please report what is in {place}.", no_wrap=True)
        )
        self._close_messages_no_wait()

    def takes_key(self, event: events.Key) -> bool:
        """Whether the key was used up before any binding."""
        return False

    async def on_event(self, event: events.Event) -> None:
        """Do what a key does before the next key is looked at.

        Textual passes keys through the focused widget's queue, so of a burst (typed ahead, a slow line letting go) the second
        key can be handled before the first has changed what keys mean.
        """
        if isinstance(event, events.Key) and not event.is_forwarded:
            if not self.app_focus:
                self.app_focus = True
            if self.takes_key(event) or await self._check_bindings(event.key):
                return
        await super().on_event(event)


def keep_details(details: str) -> str:
    """Write what happened where this user can find it; returns where."""
    try:
        handle, path = tempfile.mkstemp(prefix="shardyard-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(details)
    except OSError:
        return "no file: the disk is full; SHARDYARD_DEBUG=1 shows it"
    return path


def crop_updates() -> None:
    """Send only the cells that changed. Textual sends a line from its widget's left edge on ("TODO: crop to x extents")."""
    from rich.console import Console
    from rich.control import Control
    from textual._compositor import ChopsUpdate

    def render_segments(self: ChopsUpdate, console: Console) -> str:
        out: list[str] = []
        for y, x1, x2 in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is not None and x < x2 and end > x1:
                    start = max(x, x1)
                    out.append(Control.move_to(start, y).segment.text)
                    out.append(strip.crop(start - x, min(end, x2) - x).render(console))
        return "".join(out)

    ChopsUpdate.render_segments = render_segments  # type: ignore[method-assign]


def size_of_stderr() -> tuple[int, int] | None:
    """The size of the terminal that Textual paints on: it asks stdout, which may be a pipe."""
    try:
        size = os.get_terminal_size(2)
    except OSError:
        return None
    return (size.columns, size.lines) if size.columns and size.lines else None


def driver_class() -> type[Any]:
    """Textual's driver for terminals, with the size asked of the right stream, and with fewer bytes written."""
    from textual.drivers.linux_driver import LinuxDriver

    from shardyard_tui.pen import thin

    class Driver(LinuxDriver):
        def _get_terminal_size(self) -> tuple[int, int]:
            return size_of_stderr() or super()._get_terminal_size()

        def write(self, data: str) -> None:
            super().write(thin(data))

    return Driver
