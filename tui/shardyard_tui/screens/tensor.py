"""One tensor: what it is, where its bytes lie, and its values in figures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal

from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError, Opened, PieceFacts, Reading, TensorDetail
from shardyard_tui.screens.page import Page
from shardyard_tui.views.figures import figure, figures
from shardyard_tui.widgets.histogram import Histogram
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import Sheet, fact, wrap

AT_ONCE = 1 << 30
"""Tensors up to this many bytes are read without asking."""


def place_of(piece: PieceFacts) -> str:
    """Where a piece lies: file, record, offset; the folder that a torch file repeats in all its records is left out."""
    top, _, rest = piece.record.partition("/")
    named_after_file = os.path.splitext(os.path.basename(piece.file))[0]
    record = rest if rest and top in ("archive", named_after_file) else piece.record
    return " ".join(part for part in (piece.file, record, f"+ {piece.offset}") if part)


class TensorScreen(Page):
    """See the module."""

    NAME = "One tensor"
    EXPLAINS = "Statistics are exact: every value is read, block by block, in a process of its own. Esc stops it."
    OFFERS = ("stats", "scale", "copy", "copy-command", "back")
    ALSO = ("look",)

    def __init__(self, opened: Opened, row: int) -> None:
        super().__init__()
        self.opened = opened
        self.row_number = row
        self.name_shown = opened.table.name(row)
        self.tensor_facts = opened.table.of(row)
        self.detail: TensorDetail | None = None
        self.statistics: Document | None = None
        self.reading = ""
        self.problem = ""

    def body(self) -> ComposeResult:
        with Horizontal(id="tensor"):
            yield Sheet(self.name_shown, id="about")
            yield Histogram(id="histogram")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#about", Sheet).focus()
        self.show()
        self.find_pieces()
        if self.tensor_facts.nbytes <= AT_ONCE and "missing" not in self.tensor_facts.flags:
            self.compute()

    def where(self) -> Sequence[str]:
        return (*self.opened.path.strip("/").split("/")[-2:], "tensors", self.name_shown)

    def show(self) -> None:
        """Draw what is known by now."""
        self.query_one("#about", Sheet).write(self._lines, keep=True)
        histogram = self.query_one(Histogram)
        if self.statistics is not None:
            linear: Mapping[str, Any] = (self.statistics.get("histogram") or {}).get("linear") or {}
            histogram.show(list(linear.get("counts") or ()), figure(linear.get("from")), figure(linear.get("to")))
        if not histogram.counts:
            histogram.remark = self.reading or (self.problem and "not known") or "B reads its values"
            histogram.refresh_inside()
        self.show_keys()

    @work(exclusive=True, group="pieces")
    async def find_pieces(self) -> None:
        """Ask where its bytes lie."""
        try:
            self.detail = await self.home.engine.tensor(self.opened.path, self.name_shown)
        except EngineError as error:
            self.problem = error.message
        self.show()

    @work(exclusive=True, group="values")
    async def compute(self) -> None:
        """Read its values."""
        self.reading = "reading its values"
        self.show()

        def progress(reading: Reading) -> None:
            if reading.total:
                self.reading = f"read {units.size(reading.done)} of {units.size(reading.total)}"
                self.show()

        try:
            self.statistics = await self.home.engine.statistics(self.opened.path, self.name_shown, progress=progress)
        except EngineError as error:
            self.problem = error.message
        finally:
            self.reading = ""
        self.show()

    def _lines(self, width: int) -> list[Line]:
        facts = self.tensor_facts
        lines: list[Line] = []
        if self.problem:
            lines += [*wrap(self.problem, width, "error"), ()]
        lines += fact("Shape", units.shape(facts.shape), width, "strong")
        lines += fact("Dtype", facts.dtype, width)
        lines += fact("Values", f"{units.count(facts.parameters)}, {units.size(facts.nbytes)}", width)
        owner = self.opened.table.tied_to.get(self.row_number)
        if owner:
            lines += fact("Tied", f"it is {owner}, under another name", width)
        if facts.role or facts.flags:
            lines += fact("Role", ", ".join(part for part in (facts.role, *facts.flags) if part), width)
        lines += [(), *self._figures(width), *self._pieces(width)]
        return lines

    def _figures(self, width: int) -> list[Line]:
        found = self.statistics
        if found is None:
            said = self.reading.capitalize() + "." if self.reading else f"B reads its {units.size(self.tensor_facts.nbytes)}."
            return [*fact("Statistics", said, width, "dim"), ()]
        lines = figures({**found, "numel": self.tensor_facts.parameters}, width)
        return [*lines, *fact("", "Exact: every value was read.", width, "dim"), ()]

    def _pieces(self, width: int) -> list[Line]:
        detail = self.detail
        if detail is None:
            return fact("Pieces", "not known" if self.problem else "looking", width, "dim")
        lines: list[Line] = []
        if detail.storage:
            lines += fact("Storage", detail.storage, width)
        if detail.note:
            lines += fact("Note", detail.note, width)
        total = len(detail.pieces) + detail.more
        files = units.plural(len({p.file for p in detail.pieces}), "file")
        lines += fact("Pieces", f"{units.plural(total, 'piece')} in {files}", width)
        for piece in detail.pieces[:200]:
            lines += wrap(place_of(piece), width, "dim", indent=13, first=f"  {units.size(piece.nbytes):>9}  ")
        if detail.more:
            lines += fact("", f"and {units.count(detail.more)} more", width, "dim")
        return lines

    # Actions

    def refusal(self, action: str) -> str:
        if action == "stats":
            return "its data is not here." if "missing" in self.tensor_facts.flags else ""
        if action == "scale":
            return "" if self.statistics is not None else "its values were not read yet."
        return ""

    def do_stats(self) -> None:
        self.compute()

    def do_look(self) -> None:
        self.compute()

    def do_scale(self) -> None:
        self.query_one(Histogram).toggle()

    def do_back(self) -> None:
        if self.reading:
            self.workers.cancel_group(self, "values")
            self.reading = ""
            self.say("Stopped. B reads again.")
            self.show()
        else:
            self.leave()

    def copied(self) -> str:
        return self.name_shown

    def command(self) -> str:
        return f"shardyard stats {shlex.quote(self.opened.path)} --select {shlex.quote(self.name_shown)}"
