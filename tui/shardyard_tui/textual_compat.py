"""Every use of a name that Textual does not promise, in one place, with why and what would show that it broke.

Textual 8.2.8; `tests/tui/test_compat.py` uses each of these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.app import App


def add_filter(app: App[Any], line_filter: LineFilter) -> None:
    """Rewrite every cell on its way out. There is no public way to add a filter; TEXTUAL_FILTERS only knows `dim`."""
    app._filters.append(line_filter)


def size_of_stderr() -> tuple[int, int] | None:
    """The size of the terminal that Textual paints on: it asks stdout, which may be a pipe."""
    try:
        size = os.get_terminal_size(2)
    except OSError:
        return None
    return (size.columns, size.lines) if size.columns and size.lines else None


def driver_class() -> type[Any]:
    """Textual's driver for terminals, with the size asked of the right stream."""
    from textual.drivers.linux_driver import LinuxDriver

    class Driver(LinuxDriver):
        def _get_terminal_size(self) -> tuple[int, int]:
            return size_of_stderr() or super()._get_terminal_size()

    return Driver
