"""All tensors of one checkpoint: half a million of them as quickly as ten."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult

from shardyard_tui import units
from shardyard_tui.facts import Opened
from shardyard_tui.glyphs import MIDDLE_DOT
from shardyard_tui.screens.checkpoint_actions import CheckpointActions
from shardyard_tui.views.tensors import TensorRows
from shardyard_tui.widgets.row_list import RowList


class Tensors(CheckpointActions):
    """See the module."""

    NAME = "Tensors"
    EXPLAINS = "Every tensor, by name. f folds layers into patterns; i shows one closer, with statistics of its values."
    OFFERS = ("look", "filter", "fold", "sort", "mark", "merge", "export", "copy", "health", "stats", "back")
    ALSO = ("open", "reverse", "merge-now", "shrink", "compare", "disk", "copy-command", "verify", "tab-3", "tab-4")

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened

    def body(self) -> ComposeResult:
        yield TensorRows(id="tensors")

    @property
    def rows(self) -> TensorRows:
        return self.query_one("#tensors", TensorRows)

    def on_mount(self) -> None:
        super().on_mount()
        if not self.opened.report.get("complete") and self.opened.findings:
            self.rows.empty = "No tensor can be read here; h says why."
        self.rows.show(self.opened.table)
        self.rows.focus()
        self._title()

    def _title(self) -> None:
        report = self.opened.report
        table, weights = self.opened.table, int(report.get("tensors") or 0)
        parts = [
            units.plural(weights, "weight") + f" and {units.count(len(table) - weights)} more"
            if 0 < weights < len(table)
            else units.plural(len(table), "tensor"),
            f"{units.short_count(int(report.get('parameters') or 0))} parameters",
            units.size(self.opened.nbytes),
        ]
        self.rows.title = f" {MIDDLE_DOT} ".join(parts)

    def where(self) -> Sequence[str]:
        return (*self.opened.path.strip("/").split("/")[-3:], "tensors")

    def target_at_hand(self) -> Opened | None:
        return self.opened

    @on(RowList.Chosen)
    def _chosen(self) -> None:
        self.do_look()

    def do_look(self) -> None:
        """One tensor closer; a folded row opens to its tensors."""
        row = self.rows.current
        if row is None:
            self.say("There is no tensor under the cursor.", "dim")
            return
        if not isinstance(row, int):
            pattern = row.name.replace("#", r"\d+")
            self.rows.fold()
            self.rows.set_filter(f"/^{_escaped(pattern)}$/")
            return
        self.home.show_tensor(self.opened, row)

    def selected_names(self) -> list[str]:
        rows = self.rows.chosen if self.rows.marked else []
        return [_literal(self.opened.table.name(row)) for row in rows if isinstance(row, int)]

    def do_fold(self) -> None:
        self.rows.fold()
        self.say("Folded: one row a pattern, Enter opens one." if self.rows.folded else "Every tensor again.")

    def copied(self) -> str:
        chosen = [r for r in self.rows.chosen if isinstance(r, int)]
        return "\n".join(self.opened.table.name(r) for r in chosen) or self.rows.name_at_hand

    def command(self) -> str:
        chosen = [self.opened.table.name(r) for r in self.rows.chosen if isinstance(r, int)] if self.rows.marked else []
        select = "".join(f" --select {shlex.quote(name)}" for name in chosen)
        verb = "stats" if chosen else "inspect --tensors"
        return f"shardyard {verb} {shlex.quote(self.opened.path)}{select}"


def _literal(name: str) -> str:
    """A glob that matches this name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _escaped(pattern: str) -> str:
    return pattern.replace(".", r"\.")
