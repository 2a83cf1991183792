"""A curve of the last minute, in eighths of a cell, with the limit drawn where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardyard_tui.glyphs import SPARKS
from shardyard_tui.widgets.panel import Line, Panel


class Graph(Panel):
    """Values from 0 upwards, the newest on the right."""

    def __init__(self, title: str, says: Callable[[float], str], style: str = "accent", *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._says = says
        self._style = style
        self._curve: Callable[[int], Sequence[float]] = lambda _: ()
        self._values: Sequence[float] = ()
        self.limit: float | None = None

    def show(self, curve: Callable[[int], Sequence[float]], limit: float | None = None) -> None:
        """Show what `curve` gives for so many columns; the scale fits the largest value, or the limit when it is near."""
        self._curve = curve
        values = curve(self.inner_width)
        if list(values) != list(self._values) or limit != self.limit:
            self._values, self.limit = values, limit
            self.refresh_inside()

    def on_resize(self) -> None:
        self._values = self._curve(self.inner_width)
        self.refresh()

    @property
    def _top(self) -> float:
        top = max(self._values, default=0.0) * 1.1
        return max(top, self.limit) if self.limit and top > self.limit / 4 else top or 1.0

    def row(self, y: int) -> Line:
        rows = self.inner_height
        if not self._values:
            return [("no reading yet", "dim")] if y == 0 else ()
        top = self._top
        base = rows - 1 - y
        cells = []
        for value in self._values:
            eighths = round(value / top * rows * 8) - base * 8
            cells.append(SPARKS[max(0, min(8, eighths))] if value > 0 or base else SPARKS[0])
        text = "".join(cells).rjust(self.inner_width)
        if y == 0:
            mark = f" {self._says(top)}"
            return [(text[: max(0, self.inner_width - len(mark))], self._style), (mark, "faint")]
        return [(text, self._style)]
