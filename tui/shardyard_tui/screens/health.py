"""What is wrong with one checkpoint, what that means, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from textual import on
from textual.app import ComposeResult

from shardyard_tui.facts import Document, Opened
from shardyard_tui.screens.checkpoint_actions import CheckpointActions
from shardyard_tui.summary import counts
from shardyard_tui.views.findings import FindingRows, in_full
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import RowList
from shardyard_tui.widgets.sheet import Sheet, wrap
from shardyard_tui.words import CHECKS


class Health(CheckpointActions):
    """See the module."""

    NAME = "Health"
    EXPLAINS = "Findings, the worst first. What was not checked is said too: nothing found is not the same as nothing looked at."
    OFFERS = ("verify", "filter", "shrink", "merge", "sort", "copy", "copy-command", "back")
    ALSO = ("reverse", "export", "merge-now", "tab-2", "tab-4", "compare", "disk")

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened

    def body(self) -> ComposeResult:
        yield FindingRows(id="findings")
        yield Sheet(id="finding")

    @property
    def rows(self) -> FindingRows:
        return self.query_one("#findings", FindingRows)

    def on_mount(self) -> None:
        super().on_mount()
        self.rows.show(self.opened.findings)
        self.rows.title = counts(self.opened.findings).capitalize()
        self.rows.focus()
        self._tell()

    def where(self) -> Sequence[str]:
        return (*self.opened.path.strip("/").split("/")[-3:], "health")

    def target_at_hand(self) -> Opened | None:
        return self.opened

    @on(RowList.Moved, "#findings")
    def _tell(self) -> None:
        sheet = self.query_one("#finding", Sheet)
        finding = self.rows.current
        sheet.note = self._coverage()
        if finding is None:
            sheet.write(self._all_well)
        else:
            sheet.write(lambda width: in_full(finding, width))

    def _coverage(self) -> str:
        checked, missing = self._words("checked"), self._words("not_checked")
        return f"checked: {checked or 'nothing'}" + (f"   not read: {missing} (V)" if missing else "")

    def _words(self, key: str) -> str:
        return ", ".join(CHECKS.get(str(c), str(c)) for c in self.opened.report.get(key) or ())

    def _all_well(self, width: int) -> list[Line]:
        lines = wrap("Nothing wrong was found.", width, "strong")
        lines += [(), *wrap(f"Looked at: {self._words('checked') or 'nothing'}.", width)]
        missing = self._words("not_checked")
        if missing:
            lines += wrap(f"Not looked at: {missing}. V reads all the data and checks them too.", width)
        return lines

    def deep_known(self, path: str, report: Document) -> None:
        if path == self.opened.path:
            self.opened = replace(self.opened, report=report)
            self.rows.show(self.opened.findings, keep=True)
            self.rows.title = counts(self.opened.findings).capitalize()
            self._tell()
            self.show_keys()

    def copied(self) -> str:
        finding = self.rows.current
        return str(finding.get("message", "")) if finding is not None else ""

    def command(self) -> str:
        return f"shardyard inspect --strict --json {shlex.quote(self.opened.path)}"
