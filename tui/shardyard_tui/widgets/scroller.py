"""Moving about: arrows and vi keys, the same in every list and every text, from this one class."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from shardyard_tui.keys import MOVES, bindings
from shardyard_tui.widgets.panel import Panel


class Scroller(Panel, can_focus=True):
    """A panel over `count` rows of which a window beginning at `top` is seen; `cursor` is the row the keys move."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(MOVES, "go")]

    header_rows = 0
    """Rows above the first that stay where they are."""
    has_cursor = True
    """Without one, the keys move the window."""

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, scroller: Scroller) -> None:
            super().__init__()
            self.scroller = scroller

        @property
        def control(self) -> Scroller:
            return self.scroller

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, Scroller.Moved)

    def __init__(self, title: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(title, id=id, classes=classes)
        self.cursor = 0
        self.top = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return 0

    @property
    def window(self) -> int:
        """How many of them are seen at once."""
        return max(1, self.inner_height - self.header_rows)

    def action_go(self, where: str) -> None:
        last = max(0, self.count - 1)
        here = self.cursor if self.has_cursor else self.top
        steps = {
            "down": here + 1,
            "up": here - 1,
            "first": 0,
            "last": last,
            "half-down": here + max(1, self.window // 2),
            "half-up": here - max(1, self.window // 2),
            "page-down": here + max(1, self.window - 1),
            "page-up": here - max(1, self.window - 1),
        }
        by_page = where.startswith(("half", "page"))
        self.move_to(steps[where], scroll=(steps[where] - here) if by_page and self.has_cursor else 0)

    def move_to(self, row: int, *, scroll: int = 0) -> None:
        """Put the cursor on `row` (or the nearest there is) and show it; `scroll` moves the window along with it."""
        before_cursor, before_top, before_thumb = self.cursor, self.top, self.thumb()
        if self.has_cursor:
            self.cursor = max(0, min(row, self.count - 1))
            self.top = self._top_that_shows(self.cursor, self.top + scroll)
        else:
            self.top = max(0, min(row, self.count - self.window))
        if self.top != before_top:
            self.refresh_inside()
            self.refresh_thumb(before_thumb)
        elif self.cursor != before_cursor:
            self.refresh_rows(*(r - self.top + self.header_rows for r in (before_cursor, self.cursor)))
        if (self.cursor, self.top) != (before_cursor, before_top):
            self.moved()
            self.post_message(self.Moved(self))

    def moved(self) -> None:
        """Called when the cursor or the window moved: the place to renew the note."""

    def clamp(self) -> None:
        """After the rows changed: keep cursor and window inside them."""
        self.cursor = max(0, min(self.cursor, self.count - 1))
        self.top = (
            self._top_that_shows(self.cursor, self.top) if self.has_cursor else max(0, min(self.top, self.count - self.window))
        )

    def _top_that_shows(self, row: int, top: int) -> int:
        top = max(0, min(top, self.count - self.window))
        return min(max(top, row - self.window + 1), row) if self.count else 0

    def thumb(self) -> tuple[int, int]:
        count, window = self.count, self.window
        if count <= window or not self.inner_height:
            return 0, 0
        length = max(1, window * window // count)
        start = round((window - length) * self.top / (count - window))
        return start + self.header_rows, start + length + self.header_rows

    def on_resize(self, _: events.Resize) -> None:
        self.clamp()
        self.moved()
        self.refresh()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move_to((self.cursor if self.has_cursor else self.top) + 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move_to((self.cursor if self.has_cursor else self.top) - 3)

    def on_click(self, event: events.Click) -> None:
        row = event.y - (1 if self.framed else 0) - self.header_rows
        if self.has_cursor and 0 <= row < self.window and self.top + row < self.count:
            self.move_to(self.top + row)
