"""Every use of a name that Textual does not promise, in one place, with why and what would show that it broke.

Textual 8.2.8; `tests/tui/test_compat.py` uses each of these.
"""

from __future__ import annotations

import codecs
import os
import select
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from textual import events
from textual.app import App
from textual.filter import LineFilter
from textual.message import Message


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
    """Textual's driver for terminals: the size asked of the right stream, fewer bytes written, asleep until a key comes."""
    from textual.drivers.linux_driver import LinuxDriver

    from shardyard_tui.pen import thin

    class Driver(LinuxDriver):
        _stop_reading: tuple[int, int] | None = None
        """A pipe: what is written to its second end ends the thread that waits for keys."""

        def _get_terminal_size(self) -> tuple[int, int]:
            return size_of_stderr() or super()._get_terminal_size()

        def write(self, data: str) -> None:
            super().write(thin(data))

        def start_application_mode(self) -> None:
            # SIGCONT after a SIGSTOP starts what was never stopped: two threads would share the keys.
            self.disable_input()
            self._stop_reading = os.pipe()
            super().start_application_mode()  # type: ignore[no-untyped-call]

        def disable_input(self) -> None:
            pipe, self._stop_reading = self._stop_reading, None
            if pipe is not None:
                os.write(pipe[1], b".")
            super().disable_input()
            for end in pipe or ():
                os.close(end)

        def run_input_thread(self) -> None:
            """Read keys. Textual's own wakes ten times a second, in case an escape is unfinished; this one only when one is."""
            if self._stop_reading is not None:
                read_keys(self.fileno, self._stop_reading[0], self.process_message)

    return Driver


def read_keys(terminal: int, stop: int, heard: Callable[[Message], None]) -> None:
    """Tell of every key until `stop` can be read or the terminal is gone (which is noticed elsewhere)."""
    from textual._xterm_parser import XTermParser
    from textual.constants import ESCAPE_DELAY

    parser = XTermParser()
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while True:
        # Without this a lone Esc would be the beginning of an escape for ever.
        wait = ESCAPE_DELAY if parser._timeout_time is not None else None
        ready, _, _ = select.select([terminal, stop], [], [], wait)
        if stop in ready:
            return
        if ready:
            try:
                data = os.read(terminal, 1 << 12)
            except OSError:
                return
            if not data:
                return
            # Half a character is nothing yet; an empty text would end the parser.
            text = decode(data)
            for message in parser.feed(text) if text else ():
                heard(message)
        for message in parser.tick():
            heard(message)
