"""The one way in which the app draws: lines of spans, painted by the line API.

A panel has a frame with a title above and a note below, and repaints single rows, so that moving a cursor costs a few hundred
bytes on the line.  Every segment has a style (without one, Textual's NO_COLOR filter fails), and every text is made printable
here, whatever brought it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import cast

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from shardyard.text import printable
from shardyard_tui.glyphs import ELLIPSIS
from shardyard_tui.home import Home

Span = tuple[str, str]
"""Text and the name of its style (theme.py)."""
Line = Sequence[Span]
RANK = re.compile(r"rank_?\d+")
LAYER = re.compile(r"layer_\d+(?:_expert_\d+)?|-\d{5}-of-")
RANKS = re.compile(r"rank_?\d+(?:_[a-z]+_rank_?\d+)+")


def width_of(text: str) -> int:
    """Cells that the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False, cut: str = "right") -> str:
    """The text in exactly `width` cells: padded, or cut at its `right`, `left` or `middle` with an ellipsis.

    In a `tree` folders and groups keep their end: the step that tells one from the next, how many there are.
    """
    if not text.isprintable():
        text = printable(text)
    have = width_of(text)
    if have <= width:
        return " " * (width - have) + text if right else text + " " * (width - have)
    if width <= 1:
        return (ELLIPSIS if width else "")[:width]
    if have != len(text):
        return set_cell_size(text, width - 1) + ELLIPSIS
    if cut == "left":
        return ELLIPSIS + text[have - width + 1 :]
    if cut == "tree" and text.endswith(("/", ")")):
        tail = (width - 1) * 2 // 5
        return text[: width - 1 - tail] + ELLIPSIS + text[have - tail :]
    if cut == "middle":
        tail = (width - 1) * 2 // 3
        return _around_rank(text, width) or text[: width - 1 - tail] + ELLIPSIS + text[have - tail :]
    return text[: width - 1] + ELLIPSIS


def _around_rank(text: str, width: int) -> str:
    """Cut so that what tells a file from its siblings stays: layer or ranks. Empty when it has none, or they do not fit."""
    for pattern in (LAYER, RANKS, RANK):
        found = pattern.search(text)
        if found is None or len(found[0]) + 2 > width:
            continue
        rest = text[found.end() :]
        room = width - len(found[0]) - 1
        if len(rest) <= room:
            head = room - len(rest)
            return text[:head] + ELLIPSIS + found[0] + rest
        return ELLIPSIS + found[0] + ELLIPSIS + rest[len(rest) - room + 1 :]
    return ""


class Panel(Widget):
    """A framed area that paints itself line by line; subclasses say what stands in each row."""

    DEFAULT_CSS = "Panel { height: 1fr; width: 1fr; }"

    framed = True

    def __init__(self, title: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._title = title
        self._note = ""

    @property
    def home(self) -> Home:
        """The app, as far as it is known here."""
        return cast(Home, self.app)

    def style_named(self, name: str) -> Style:
        return self.home.look.styles[name]

    # What subclasses give

    def row(self, y: int) -> Line:
        """Spans of row `y` of the inside."""
        return ()

    def cover(self, y: int) -> str:
        """A style that covers the whole of row `y`, such as the cursor's; empty: none."""
        return ""

    def lead(self, y: int) -> Span:
        """One cell before row `y`, such as a mark."""
        return (" ", "text")

    def thumb(self) -> tuple[int, int]:
        """Rows [from, to) of the frame's right side that show which part of a long list is seen; empty: all of it."""
        return 0, 0

    # Title and note in the frame

    @property
    def title(self) -> str:
        return self._title

    @title.setter
    def title(self, text: str) -> None:
        if text != self._title:
            self._title = text
            self.refresh(Region(0, 0, self.size.width, 1))

    @property
    def note(self) -> str:
        """What stands in the lower edge: how much is shown, and in what order."""
        return self._note

    @note.setter
    def note(self, text: str) -> None:
        if text != self._note:
            old, self._note = self._note, text
            width, height = self.size
            if width and self.framed:
                changed = min(width - 2, max(width_of(old), width_of(text)) + 4)
                self.refresh(Region(width - changed, height - 1, changed - 2, 1))

    # Geometry of the inside

    @property
    def inner_width(self) -> int:
        return max(0, self.size.width - (4 if self.framed else 0))

    @property
    def inner_height(self) -> int:
        return max(0, self.size.height - (2 if self.framed else 0))

    def refresh_rows(self, *rows: int) -> None:
        """Repaint these rows of the inside, and nothing else."""
        edge = 1 if self.framed else 0
        regions = [Region(edge, y + edge, self.size.width - 2 * edge, 1) for y in set(rows) if 0 <= y < self.inner_height]
        if regions:
            self.refresh(*regions)

    def refresh_inside(self) -> None:
        """Repaint all rows of the inside; the frame stays."""
        edge = 1 if self.framed else 0
        if self.inner_height and self.size.width > 2 * edge:
            self.refresh(Region(edge, edge, self.size.width - 2 * edge, self.inner_height))

    def refresh_thumb(self, before: tuple[int, int]) -> None:
        """Repaint what changed of the frame's right side since `before`."""
        after = self.thumb()
        if self.framed and before != after:
            rows = set(range(*before)) ^ set(range(*after))
            self.refresh(*(Region(self.size.width - 1, y + 1, 1, 1) for y in rows))

    # Painting

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if not self.framed:
            return self.paint(self.row(y), width, over=self.cover(y))
        frame = self.style_named("frame-focus" if self.has_focus else "frame")
        if y == 0:
            return self._edge("╭", self._title, "╮", width, frame, left=True)
        if y == height - 1:
            return self._edge("╰", self._note, "╯", width, frame, left=False)
        low, high = self.thumb()
        side = "┃" if low <= y - 1 < high else "│"
        inside = self.paint(self.row(y - 1), width - 2, pad=1, over=self.cover(y - 1), lead=self.lead(y - 1))
        return Strip([Segment("│", frame), *inside, Segment(side, frame)], width)

    def _edge(self, start: str, text: str, end: str, width: int, frame: Style, *, left: bool) -> Strip:
        if not text or width < 8:
            return Strip([Segment(start + "─" * (width - 2) + end, frame)], width)
        text = fit(text, min(width_of(text), width - 6))
        rest = "─" * (width - width_of(text) - 5)
        words = Segment(f" {text} ", self.style_named("head" if left and self.has_focus else "text" if left else "dim"))
        if left:
            return Strip([Segment(start + "─", frame), words, Segment(rest + end, frame)], width)
        return Strip([Segment(start + rest, frame), words, Segment("─" + end, frame)], width)

    def paint(self, spans: Iterable[Span], width: int, *, pad: int = 0, over: str = "", lead: Span = (" ", "text")) -> Strip:
        """Spans cut or padded to `width`, neighbours of one style joined; `over` is a style that covers them all."""
        parts: list[Span] = [(lead[0], over or lead[1])] if pad else []
        left = width - 2 * pad
        for text, name in spans:
            if left <= 0:
                break
            if not text.isprintable():
                text = printable(text)
            cells = width_of(text)
            if cells > left:
                text, cells = fit(text, left), left
            left -= cells
            name = over or name
            if parts and parts[-1][1] == name:
                parts[-1] = (parts[-1][0] + text, name)
            else:
                parts.append((text, name))
        tail = " " * (left + pad)
        last = parts[-1][1] if parts else "text"
        if tail and parts and (over or last in _PLAIN):
            parts[-1] = (parts[-1][0] + tail, last)
        elif tail:
            parts.append((tail, "text"))
        return Strip([Segment(text, self.style_named(name)) for text, name in parts if text], width)


_PLAIN = frozenset({"text", "strong", "dim", "faint", "head", "accent", "key", "ok", "warning", "error", "mark"})
"""Styles whose blanks look like any other blank: no underline, no background of their own."""
