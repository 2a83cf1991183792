"""Counts in bars, linear or logarithmic, with the range below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardyard_tui.glyphs import SPARKS
from shardyard_tui.widgets.panel import Line, Panel


class Histogram(Panel):
    """The distribution of a tensor's values."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("Distribution", id=id)
        self.counts: Sequence[int] = ()
        self.ends = ("", "")
        self.logarithmic = True
        self.remark = ""
        """What stands here while there are no counts."""

    def show(self, counts: Sequence[int], low: str, high: str) -> None:
        """Show these counts of values between two ends."""
        self.counts, self.ends = counts, (low, high)
        self._say()

    def toggle(self) -> None:
        """Linear or logarithmic."""
        self.logarithmic = not self.logarithmic
        self._say()

    def _say(self) -> None:
        self.note = f"{'logarithmic' if self.logarithmic else 'linear'} counts (b changes)" if self.counts else ""
        self.refresh_inside()

    def row(self, y: int) -> Line:
        rows = self.inner_height - 1
        if not self.counts or rows < 1:
            return [(self.remark, "dim")] if y == 0 else ()
        width = self.inner_width
        if y == rows:
            low, high = self.ends
            return [(low + " " * max(1, width - len(low) - len(high)) + high, "dim")]
        heights = [math.log1p(c) for c in self.counts] if self.logarithmic else [float(c) for c in self.counts]
        top = max(heights) or 1.0
        bins = len(heights)
        base = rows - 1 - y
        cells = []
        for column in range(width):
            value = heights[column * bins // width]
            eighths = math.ceil(value / top * rows * 8) - base * 8
            cells.append(SPARKS[max(0, min(8, eighths))])
        return [("".join(cells), "accent")]
