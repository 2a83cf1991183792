"""The files of one checkpoint, and a map of the bytes of the one under the cursor."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.timer import Timer

from shardyard_tui import units
from shardyard_tui.facts import EngineError, Opened
from shardyard_tui.screens.checkpoint_actions import CheckpointActions
from shardyard_tui.views.files import FileRows
from shardyard_tui.widgets.byte_map import ByteMapPanel
from shardyard_tui.widgets.row_list import RowList

REST_S = 0.15
MAPPED = frozenset({"weights", "masters+optimizer"})
"""Roles of files that have tensors in them."""


class Files(CheckpointActions):
    """See the module."""

    NAME = "Files"
    EXPLAINS = "Files with their roles, and where each byte of one goes. ! in the map is stored and never used: x gives it back."
    OFFERS = ("filter", "sort", "shrink", "merge", "health", "copy", "copy-command", "back")
    ALSO = ("reverse", "export", "merge-now", "tab-2", "tab-3", "disk", "compare")

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self._pause: Timer | None = None
        self._mapped = ""

    def body(self) -> ComposeResult:
        yield FileRows(id="files")
        yield ByteMapPanel(id="map")

    @property
    def rows(self) -> FileRows:
        return self.query_one("#files", FileRows)

    def on_mount(self) -> None:
        super().on_mount()
        self.rows.show(self.opened.report)
        files = self.opened.report.get("files") or ()
        self.rows.title = f"{units.plural(len(files), 'file')}, {units.size(self.opened.nbytes)}"
        self.rows.focus()

    def where(self) -> Sequence[str]:
        return (*self.opened.path.strip("/").split("/")[-3:], "files")

    def target_at_hand(self) -> Opened | None:
        return self.opened

    @on(RowList.Moved, "#files")
    def _moved(self) -> None:
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(REST_S, self._map)

    def _map(self) -> None:
        file = self.rows.current
        panel = self.query_one(ByteMapPanel)
        if file is None or file.get("path") == self._mapped:
            return
        self._mapped = str(file.get("path"))
        if file.get("role") not in MAPPED:
            panel.title, panel.note = "Byte map", ""
            panel.show(None, f"{os.path.basename(self._mapped)} holds no tensors.")
        else:
            self.draw_map(self._mapped)

    @work(exclusive=True, group="map")
    async def draw_map(self, file: str) -> None:
        """Ask for the map of a file."""
        panel = self.query_one(ByteMapPanel)
        panel.show(None, "Looking where its bytes go.")
        try:
            panel.show(await self.home.engine.byte_map(self.opened.path, file))
        except EngineError as error:
            panel.show(None, error.message)

    def copied(self) -> str:
        file = self.rows.current
        base = self.opened.path
        return os.path.join(base, str(file["path"])) if file is not None and os.path.basename(base) != file["path"] else base

    def command(self) -> str:
        return f"shardyard inspect --json {shlex.quote(self.opened.path)}"
