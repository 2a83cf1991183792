"""A list with columns, a cursor, marks, a filter and an order, for ten rows or half a million.

It holds positions into what it was given, never the rows' texts: a row is spelt out only when it is drawn.  Filtering and sorting
of long lists happen in slices, so that keys are heard in between.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from textual import work
from textual.binding import BindingType
from textual.message import Message

from shardyard_tui import units
from shardyard_tui.filters import Filter, parse
from shardyard_tui.glyphs import DOWN, MARK, MIDDLE_DOT, UP
from shardyard_tui.keys import bindings
from shardyard_tui.widgets.panel import Line, Span, fit, width_of
from shardyard_tui.widgets.scroller import Scroller

T = TypeVar("T")

SLICE = 20_000
"""Rows that are filtered or sorted between two looks at the keyboard: about 10 ms."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: how a row's cell reads, sorts and looks."""

    title: str
    text: Callable[[T], str]
    width: int = 0
    """Cells; 0: whatever is left, shared by such columns."""
    right: bool = False
    least: int = 0
    """The list must be this wide for the column to be there."""
    most: int = 1_000
    """And no wider than this: another column says it better there."""
    style: str | Callable[[T], str] = "text"
    cut: str = "right"
    sort: str = ""
    """The letter that sorts by it after `s`; empty: it does not sort."""
    key: Callable[[T], Any] | None = None
    """What it sorts by; None: its text, in natural order."""
    falling: bool = False
    """Whether its first order is the large ones first."""


class RowList(Scroller, Generic[T]):
    """The list. `rows` may be any sequence; `words` is what the filter looks at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(("open", "mark", "mark-range", "mark-all", "unmark", "next-match", "previous-match"), "rows")
    ]

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, rows: RowList[Any]) -> None:
            super().__init__()
            self.rows = rows

        @property
        def control(self) -> RowList[Any]:
            return self.rows

    class Marked(Message):
        """Other rows are marked than before."""

        def __init__(self, rows: RowList[Any]) -> None:
            super().__init__()
            self.rows = rows

        @property
        def control(self) -> RowList[Any]:
            return self.rows

    def __init__(
        self,
        columns: Sequence[Column[T]],
        words: Callable[[T], str],
        title: str = "",
        *,
        empty: str = "Nothing here.",
        marks: bool = True,
        id: str | None = None,
    ) -> None:
        super().__init__(title, id=id)
        self.columns = tuple(columns)
        self.words = words
        self.empty = empty
        self.can_mark = marks
        self.header_rows = 1 if any(c.title for c in columns) else 0
        self.all: Sequence[T] = ()
        self.shown: Sequence[int] = range(0)
        """Positions in `all`, in the order shown."""
        self.filter = parse("")
        self.marked: set[Hashable] = set()
        """Marks (see `mark_of`); they survive filtering and sorting."""
        self.sorted_by: Column[T] | None = None
        self.falling = False
        self._range_from: int | None = None

    # Rows

    @property
    def count(self) -> int:
        return len(self.shown)

    @property
    def current(self) -> T | None:
        """The row under the cursor."""
        return self.all[self.shown[self.cursor]] if self.shown else None

    @property
    def chosen(self) -> list[T]:
        """The marked rows; without marks, the one under the cursor."""
        if self.marked:
            return [row for i, row in enumerate(self.all) if self.mark_of(i) in self.marked]
        return [] if self.current is None else [self.current]

    def mark_of(self, position: int) -> Hashable:
        """What stands for the row in `marked`."""
        return position

    def set_rows(self, rows: Sequence[T], *, keep: bool = False) -> None:
        """Show other rows; `keep` leaves the cursor, the marks and the filter as they are."""
        self.all = rows
        if not keep:
            self.cursor = self.top = 0
            self.marked = set()
            self.shown = range(0)
            self._range_from = None
            self.filter = parse("")
        if self.filter.empty and self.sorted_by is None:
            self._show(range(len(rows)))
        else:
            self.rearrange()

    def rearrange(self) -> None:
        """Filter and sort again: at once when short, in slices when long."""
        if len(self.all) <= SLICE:
            self.workers.cancel_node(self)
            self._show(self._sorted(self.matching(self.filter, range(len(self.all)))))
        else:
            self._arrange_slowly()

    @work(exclusive=True, group="arrange")
    async def _arrange_slowly(self) -> None:
        kept = array("I")
        total = len(self.all)
        if self.filter.empty:
            kept = array("I", range(total))
        else:
            for start in range(0, total, SLICE):
                kept.extend(self.matching(self.filter, range(start, min(start + SLICE, total))))
                self.note = f"filtering {units.count(start)} of {units.count(total)}"
                await asyncio.sleep(0)
        if self.sorted_by is not None:
            self.note = "sorting"
            await asyncio.sleep(0)
            kept = array("I", await sorted_in_slices(kept, self.sort_key(self.sorted_by), self.falling))
        self._show(kept)

    def matching(self, wanted: Filter, among: Iterable[int]) -> Sequence[int]:
        """Positions of `among` that the filter lets through."""
        if wanted.empty:
            return among if isinstance(among, range) else list(among)
        return [i for i in among if wanted.matches(self.words(self.all[i]))]

    def sort_key(self, column: Column[T]) -> Callable[[int], Any]:
        """By what a position sorts."""
        key = column.key or (lambda row: units.natural(column.text(row)))
        return lambda i: key(self.all[i])

    def _sorted(self, positions: Sequence[int]) -> Sequence[int]:
        if self.sorted_by is None:
            return positions[::-1] if self.falling else positions
        return sorted(positions, key=self.sort_key(self.sorted_by), reverse=self.falling)

    def _show(self, positions: Sequence[int]) -> None:
        at = self.shown[self.cursor] if self.cursor < len(self.shown) else None
        self.shown = positions
        if at is not None and positions == range(len(self.all)):
            self.cursor = at
        elif at is not None and len(positions) < len(self.all):
            self.cursor = next((n for n, i in enumerate(positions[:100_000]) if i == at), 0)
        self.clamp()
        self.moved()
        self.refresh()
        self.post_message(self.Moved(self))

    # Filter and order

    def set_filter(self, text: str) -> None:
        """Show the rows that match; empty text shows all again."""
        self.filter = parse(text)
        if not self.filter.problem:
            self.rearrange()
        self.moved()

    def sort_by(self, letter: str) -> bool:
        """Sort by the column of that letter; the same again reverses. False: no such column."""
        column = next((c for c in self.columns if c.sort == letter), None)
        if column is None:
            return False
        self.falling = not self.falling if column is self.sorted_by else column.falling
        self.sorted_by = column
        self.rearrange()
        return True

    def reverse(self) -> None:
        """The other way round."""
        self.falling = not self.falling
        if self.sorted_by is None and isinstance(self.shown, range):
            self._show(self.shown[::-1])
        else:
            self.rearrange()

    @property
    def sort_letters(self) -> str:
        """What `s` may be followed by, for the key line."""
        return "  ".join(f"{c.sort} {c.title.lower()}" for c in self.columns if c.sort)

    def moved(self) -> None:
        self.note = self.describe()

    def describe(self) -> str:
        """How much is shown, in what order, and what is marked: for the frame."""
        parts = []
        if self.marked:
            hidden = 0
            if len(self.shown) < len(self.all) <= SLICE:
                hidden = len(self.marked.difference(map(self.mark_of, self.shown)))
            parts.append(f"{units.count(len(self.marked))} marked" + (f", {units.count(hidden)} hidden" if hidden else ""))
        if not self.filter.empty:
            parts.append(f"/{self.filter.source.strip()}" + (f" ({self.filter.problem})" if self.filter.problem else ""))
        where = units.count(self.cursor + 1) if self.shown else "0"
        of = units.count(len(self.shown))
        in_all = f", {units.count(len(self.all))} in all" if len(self.shown) < len(self.all) else ""
        if self.all:
            parts.append(f"{where} of {of}{in_all}")
        if self.sorted_by is not None:
            parts.append(f"by {self.sorted_by.title.lower()} {DOWN if self.falling else UP}")
        return f" {MIDDLE_DOT} ".join(parts)

    # Marks and matches

    def action_rows(self, name: str) -> None:
        if name in ("next-match", "previous-match"):
            # What does not match is not shown, so the next row is the next match.
            self.action_go("down" if name == "next-match" else "up")
            return
        does: dict[str, Callable[[], None]] = {
            "open": self.choose,
            "mark": self.mark,
            "mark-range": self.mark_range,
            "mark-all": self.mark_all,
            "unmark": self.unmark,
        }
        does[name]()

    def mark(self) -> None:
        """Mark or unmark the row under the cursor, and go one down."""
        if self.can_mark and self.shown:
            self.marked ^= {self.mark_of(self.shown[self.cursor])}
            self.refresh_rows(self.cursor - self.top + self.header_rows)
            self.moved()
            self.post_message(self.Marked(self))
            self.action_go("down")

    def mark_range(self) -> None:
        """The first press remembers the row, the second marks all from there to the cursor."""
        if not self.can_mark or not self.shown:
            return
        if self._range_from is None:
            self._range_from = self.cursor
            self.home.say("Move, then v again marks the range.")
            return
        low, high = sorted((min(self._range_from, self.count - 1), self.cursor))
        self._range_from = None
        self._mark_more(self.shown[low : high + 1])
        self.home.say(f"{units.count(len(self.marked))} marked.")

    def mark_all(self) -> None:
        """Mark all rows that are shown."""
        if self.can_mark:
            self._mark_more(self.shown)

    def unmark(self) -> None:
        """Unmark all rows, hidden ones too."""
        self.marked = set()
        self._range_from = None
        self._mark_more(())

    def _mark_more(self, positions: Iterable[int]) -> None:
        self.marked.update(map(self.mark_of, positions))
        self.refresh_inside()
        self.moved()
        self.post_message(self.Marked(self))

    def choose(self) -> None:
        """Say that the row under the cursor was chosen."""
        if self.shown:
            self.post_message(self.Chosen(self))

    # Drawing

    def row(self, y: int) -> Line:
        if y < self.header_rows:
            return self._titles()
        if not self.shown:
            return [(self.nothing(), "dim")] if y == self.header_rows else ()
        at = self.top + y - self.header_rows
        if at >= len(self.shown):
            return ()
        position = self.shown[at]
        return self._cells(self.all[position])

    def lead(self, y: int) -> Span:
        at = self.top + y - self.header_rows
        if y < self.header_rows or at >= len(self.shown) or self.mark_of(self.shown[at]) not in self.marked:
            return (" ", "text")
        return (MARK, "mark")

    def cover(self, y: int) -> str:
        if y < self.header_rows or not self.shown or self.top + y - self.header_rows != self.cursor:
            return ""
        return "cursor" if self.has_focus else "rest"

    def nothing(self) -> str:
        """What an empty list says."""
        return self.empty if self.filter.empty else "Nothing matches; Esc clears the filter."

    def _widths(self) -> list[tuple[Column[T], int]]:
        """The columns there is room for, with their widths."""
        room = self.inner_width
        columns = [c for c in self.columns if c.least <= room <= c.most]
        fixed = sum(c.width for c in columns) + 2 * (len(columns) - 1)
        free = [c for c in columns if not c.width]
        each, extra = divmod(max(0, room - fixed), max(1, len(free)))
        widths = []
        for column in columns:
            if column.width:
                widths.append((column, column.width))
            else:
                widths.append((column, each + (1 if extra > 0 else 0)))
                extra -= 1
        return widths

    def _titles(self) -> Line:
        cells = []
        for column, width in self._widths():
            title = column.title
            if column is self.sorted_by:
                title += f" {DOWN if self.falling else UP}"
            cells.append(fit(title, width, right=column.right))
        return [("  ".join(cells), "faint")]

    def _cells(self, item: T) -> list[Span]:
        spans: list[Span] = []
        for n, (column, width) in enumerate(self._widths()):
            style = column.style if isinstance(column.style, str) else column.style(item)
            text = fit(column.text(item), width, right=column.right, cut=column.cut)
            if n:
                # The gap takes the style of the cell before it: one change of style less on the line.
                spans[-1] = (spans[-1][0] + "  ", spans[-1][1])
            spans.append((text, style))
        return spans


async def sorted_in_slices(positions: Sequence[int], key: Callable[[int], Any], falling: bool) -> list[int]:
    """Sorted, in steps short enough for keys to be heard: slices first, then runs merged pair by pair."""
    runs = []
    for start in range(0, len(positions), SLICE):
        runs.append(sorted(positions[start : start + SLICE], key=key, reverse=falling))
        await asyncio.sleep(0)
    while len(runs) > 1:
        merged = []
        for a, b in zip(runs[::2], [*runs[1::2], []][: len(runs[::2])], strict=True):
            # Python's sort sees two sorted runs and only merges them.
            merged.append(sorted(a + b, key=key, reverse=falling) if b else a)
            await asyncio.sleep(0)
        runs = merged
    return runs[0] if runs else []


def longest(texts: Iterable[str], least: int, most: int) -> int:
    """A column's width: what its texts need, within bounds."""
    return max(least, min(most, max((width_of(t) for t in texts), default=least)))
