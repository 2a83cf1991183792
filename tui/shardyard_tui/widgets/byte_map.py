"""A file as a map: each cell is a run of bytes, drawn as what most of it is for."""

from __future__ import annotations

from collections.abc import Mapping

from shardyard_tui import units
from shardyard_tui.facts import ByteMap, Stretch
from shardyard_tui.widgets.panel import Line, Panel, Span

SIGNS: Mapping[str, tuple[str, str, str]] = {
    "weight": ("█", "weights", "weights"),
    "buffer": ("▆", "weights", "buffers"),
    "master": ("▓", "masters", "fp32 masters"),
    "optimizer": ("▒", "optimizer", "optimizer"),
    "other": ("░", "other", "other"),
    "header": ("=", "dim", "header"),
    "directory": ("=", "dim", "directory"),
    "unused": ("!", "wasted", "unused"),
}
"""What to its sign, its style and its name: a sign each, so that it reads without colour."""


class ByteMapPanel(Panel):
    """The map of one file, with its legend."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("Byte map", id=id)
        self.map: ByteMap | None = None
        self.remark = ""
        self._cells: list[str] = []

    def show(self, found: ByteMap | None, remark: str = "") -> None:
        """Show a map, or say why there is none."""
        self.map, self.remark = found, remark
        self._lay_out()
        self.refresh()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        width, rows = self.inner_width, self.inner_height - 2
        self._cells = cells(self.map, width * rows) if self.map is not None and width > 0 and rows > 0 else []
        if self.map is not None and self._cells:
            self.title = f"Byte map of {self.map.path}"
            self.note = f"a cell is about {units.size(self.map.nbytes / len(self._cells))}"

    def row(self, y: int) -> Line:
        if not self._cells or self.map is None:
            return [(self.remark, "dim")] if y == 0 else ()
        width, rows = self.inner_width, self.inner_height - 2
        if y == rows + 1:
            return self._legend()
        if y >= rows:
            return ()
        spans: list[Span] = []
        for what in self._cells[y * width : (y + 1) * width]:
            sign, style, _ = SIGNS.get(what, SIGNS["other"])
            if spans and spans[-1][1] == style:
                spans[-1] = (spans[-1][0] + sign, style)
            else:
                spans.append((sign, style))
        return spans

    def _legend(self) -> Line:
        assert self.map is not None
        amounts: dict[str, int] = {}
        for stretch in self.map.stretches:
            amounts[stretch.what] = amounts.get(stretch.what, 0) + stretch.nbytes
        spans: list[Span] = []
        for what, nbytes in sorted(amounts.items(), key=lambda item: -item[1]):
            sign, style, name = SIGNS.get(what, SIGNS["other"])
            spans += [(f"{sign} ", style), (f"{name} {units.size(nbytes)}   ", "dim")]
        return spans


def cells(found: ByteMap, number: int) -> list[str]:
    """What most of each of `number` equal runs of the file is for; waste wins a cell it has a fifth of."""
    result: list[str] = []
    at = 0
    stretches = found.stretches
    for cell in range(number if found.nbytes >= number else max(1, found.nbytes)):
        whole = number if found.nbytes >= number else max(1, found.nbytes)
        low, high = cell * found.nbytes // whole, (cell + 1) * found.nbytes // whole
        shares: dict[str, int] = {}
        while at < len(stretches) and _end(stretches[at]) <= low:
            at += 1
        look = at
        while look < len(stretches) and stretches[look].start < high:
            part = min(high, _end(stretches[look])) - max(low, stretches[look].start)
            shares[stretches[look].what] = shares.get(stretches[look].what, 0) + part
            look += 1
        waste = shares.get("unused", 0)
        result.append("unused" if waste * 5 > high - low else max(shares, key=shares.__getitem__) if shares else "other")
    return result


def _end(stretch: Stretch) -> int:
    return stretch.start + stretch.nbytes
