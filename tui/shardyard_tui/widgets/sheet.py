"""Text that scrolls: lines made for the width there is, by whoever knows what to say."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from textual import events

from shardyard_tui.widgets.panel import Line, Span
from shardyard_tui.widgets.scroller import Scroller

Writer = Callable[[int], list[Line]]
"""From a width to lines."""


class Sheet(Scroller):
    """Lines of spans; the keys scroll it."""

    has_cursor = False

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._writer: Writer = lambda _: []
        self.lines: list[Line] = []
        self.stick = False
        """Whether the end is kept in sight as lines are added."""

    @property
    def count(self) -> int:
        return len(self.lines)

    def write(self, writer: Writer, *, keep: bool = False) -> None:
        """Show what `writer` says; `keep` leaves the window where it is and repaints only lines that changed."""
        self._writer = writer
        before = self.lines
        self.lines = writer(self.inner_width) if self.inner_width else []
        top, thumb = self.top, self.thumb()
        if self.stick:
            self.top = max(0, self.count - self.window)
        elif not keep:
            self.top = 0
        self.clamp()
        if keep and self.top == top:
            seen = range(self.top, self.top + self.window)
            old, new = before, self.lines
            self.refresh_rows(
                *(i - top for i in seen if (old[i] if i < len(old) else None) != (new[i] if i < len(new) else None))
            )
        else:
            self.refresh_inside()
        self.refresh_thumb(thumb)
        self.moved()

    def on_resize(self, event: events.Resize) -> None:
        self.lines = self._writer(self.inner_width)
        super().on_resize(event)

    def row(self, y: int) -> Line:
        at = self.top + y
        return self.lines[at] if at < len(self.lines) else ()

    def moved(self) -> None:
        if self.count > self.window:
            self.note = f"{min(self.count, self.top + self.window)} of {self.count} lines"
        elif self.note.endswith("lines"):
            self.note = ""


# Making lines

NARROW = 44
"""Below this width labels take less room."""


class _Wrapper(textwrap.TextWrapper):
    """Breaks paths and tensor names that are longer than a line after one of their joints."""

    def _handle_long_word(self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int) -> None:
        word, room = reversed_chunks[-1], max(1, width - cur_len)
        at = 1 + max(word.rfind(joint, 0, room) for joint in "/._-=")
        if at > room // 2:
            cur_line.append(word[:at])
            reversed_chunks[-1] = word[at:]
        else:
            super()._handle_long_word(reversed_chunks, cur_line, cur_len, width)


def wrap(text: str, width: int, style: str = "text", *, indent: int = 0, first: str = "", first_style: str = "dim") -> list[Line]:
    """A paragraph in lines; `first` stands before the first one, the rest is indented by `indent` cells."""
    lines = _Wrapper(max(8, width - indent), break_on_hyphens=False).wrap(text) or [""]
    out: list[Line] = []
    for n, line in enumerate(lines):
        lead: Span = (first.ljust(indent), first_style) if n == 0 and first else (" " * indent, style)
        out.append([lead, (line, style)] if indent else [(line, style)])
    return out


def fact(label: str, value: str, width: int, style: str = "text", *, indent: int = 12) -> list[Line]:
    """`Label      value`, the value wrapped under itself."""
    if width < NARROW and indent == 12:
        indent = max(9, len(label) + 1)
    return wrap(value, width, style, indent=indent, first=label)


def bar(share: float, width: int, style: str, full: str = "━", empty: str = "─") -> list[Span]:
    """A bar of `width` cells; any share above nothing shows at least one."""
    share = max(0.0, min(1.0, share))
    cells = max(1, round(share * width)) if share > 0 else 0
    return [(full * cells, style), (empty * (width - cells), "faint")]
