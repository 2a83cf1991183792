"""The first and the last line of every screen."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from textual.timer import Timer

from shardyard_tui.widgets.panel import Line, Panel, Span, fit, width_of

RIGHT_END = 16
MOST_LINES = 3
SAID_S = 8.0
"""How long a message stays where the keys are, unless a key is pressed before."""


class TopLine(Panel):
    """Where am I; on the right, what else goes on."""

    DEFAULT_CSS = "TopLine { height: 1; width: 1fr; }"
    framed = False

    def __init__(self) -> None:
        super().__init__()
        self._where: tuple[str, ...] = ()
        self._right = ""

    def show(self, where: Sequence[str], right: str) -> None:
        """Path parts, the last one the nearest; and the right end."""
        if (tuple(where), right) != (self._where, self._right):
            self._where, self._right = tuple(where), right
            self.refresh()

    def row(self, y: int) -> Line:
        right = f" {self._right} " if self._right else ""
        room = self.size.width - width_of(right) - 12
        spans: list[Span] = [(" shardyard ", "head"), (" ", "text")]
        last = self._where[-1] if self._where else ""
        before = "".join(f"{part} › " for part in self._where[:-1])
        if width_of(before) + width_of(last) > room:
            before = fit(before, max(0, room - width_of(last)), cut="left") if room > width_of(last) + 4 else ""
            last = fit(last, min(width_of(last), room), cut="middle")
        spans += [(before, "dim"), (last, "strong")]
        used = sum(width_of(text) for text, _ in spans)
        return [*spans, (" " * max(0, self.size.width - used - width_of(right)), "text"), (right, "dim")]


class TooSmall(Panel):
    """What is shown instead of everything in a terminal that is too small."""

    DEFAULT_CSS = "TooSmall { height: 1; width: 1fr; display: none; }"
    framed = False

    def row(self, y: int) -> Line:
        return [("Too small: 60x15 is needed. q quits.", "warning")]


class KeyLine(Panel):
    """The keys that matter here, `? help  q quit` always at the right; or a message, for a while."""

    DEFAULT_CSS = "KeyLine { height: 1; width: 1fr; dock: bottom; }"
    framed = False

    def __init__(self, keys: Callable[[], Iterable[tuple[str, str, bool]]]) -> None:
        """`keys` gives, the most important first, a key, what it does in a word or two, and whether it is off."""
        super().__init__()
        self._keys = keys
        self._said: tuple[str, str] | None = None
        self._timer: Timer | None = None

    def say(self, text: str, style: str = "strong", *, stay: bool = False) -> None:
        """Show a message in place of the keys."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._said = (text, style)
        self._fit_height()
        if not stay:
            self._timer = self.set_timer(SAID_S, self.hush)
        self.refresh()

    def hush(self) -> None:
        """The keys again."""
        if self._said is not None:
            self._said = None
            self._fit_height()
            self.refresh()

    def _fit_height(self) -> None:
        """One line, or as many as a long message needs."""
        rows = len(self._message_lines()) or 1
        if self.styles.height is None or self.styles.height.value != rows:
            self.styles.height = rows

    def _message_lines(self) -> list[str]:
        if self._said is None:
            return []
        return textwrap.wrap(self._said[0], max(20, self._room - 1), break_on_hyphens=False)[:MOST_LINES]

    @property
    def _room(self) -> int:
        """Cells left of `? help  q quit`."""
        return self.screen.size.width - RIGHT_END

    @property
    def said(self) -> str:
        """The message that is shown."""
        return self._said[0] if self._said is not None else ""

    def row(self, y: int) -> Line:
        right: list[Span] = [("?", "key"), (" help  ", "dim"), ("q", "key"), (" quit ", "dim")]
        room = self._room
        if self._said is not None:
            lines = self._message_lines()
            text = lines[y] if y < len(lines) else ""
            return [(" ", "text"), (fit(text, room), self._said[1]), *(right if y == 0 else ())]
        spans: list[Span] = [(" ", "text")]
        used = 1
        for key, label, off in self._keys():
            cells = width_of(key) + width_of(label) + 3
            if used + cells > room:
                continue
            spans += [(key, "faint" if off else "key"), (f" {label}  ", "faint" if off else "dim")]
            used += cells
        return [*spans, (" " * (room - used + 1), "text"), *right]
