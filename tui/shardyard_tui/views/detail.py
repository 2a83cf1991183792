"""The browser's right pane: one checkpoint as summary, tensors, health or files."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from shardyard_tui.facts import Opened
from shardyard_tui.glyphs import MIDDLE_DOT
from shardyard_tui.summary import counts, summary
from shardyard_tui.views.files import FileRows
from shardyard_tui.views.findings import FindingRows
from shardyard_tui.views.tensors import TensorRows
from shardyard_tui.widgets.panel import Panel
from shardyard_tui.widgets.sheet import Sheet, Writer

TABS = ("summary", "tensors", "health", "files")


class Detail(Vertical):
    """One panel at a time; those never looked at are never made."""

    DEFAULT_CSS = "Detail > .hidden { display: none; }"
    MAKES: ClassVar[dict[str, type[Panel]]] = {"summary": Sheet, "tensors": TensorRows, "health": FindingRows, "files": FileRows}

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.opened: Opened | None = None
        self._tab = "summary"
        self._filled: dict[str, Opened | None] = {}

    def compose(self) -> ComposeResult:
        yield Sheet(id="detail-summary")

    @property
    def sheet(self) -> Sheet:
        return self.query_one("#detail-summary", Sheet)

    def panel(self, tab: str) -> Panel | None:
        """The panel of a tab, if it was made."""
        found = self.query(f"#detail-{tab}")
        return found.first(Panel) if found else None

    @property
    def tab(self) -> str:
        return self._tab

    @tab.setter
    def tab(self, tab: str) -> None:
        had_focus = any(isinstance(w, Widget) and w.has_focus for w in self.children)
        self._tab = tab
        if self.panel(tab) is None:
            panel = self.MAKES[tab](id=f"detail-{tab}")
            self.mount(panel)
        for child in self.children:
            child.set_class(child.id != f"detail-{tab}", "hidden")
        self.call_after_refresh(self._fill)
        if had_focus:
            panel_now = self.panel(tab)
            if panel_now is not None:
                panel_now.focus()

    def show(self, opened: Opened) -> None:
        """Show a checkpoint in the tab at hand."""
        self.opened = opened
        self._fill()

    def explain(self, writer: Writer, title: str = "") -> None:
        """Say something that is about no opened checkpoint."""
        self.opened = None
        self._filled.clear()
        if self._tab != "summary":
            self.tab = "summary"
        self.sheet.title = title
        self.sheet.note = ""
        self.sheet.write(writer)

    def _fill(self) -> None:
        opened, panel = self.opened, self.panel(self._tab)
        if opened is None or panel is None:
            return
        keep = self._filled.get(self._tab) is opened
        self._filled[self._tab] = opened
        name = opened.path.rsplit("/", 1)[-1]
        if isinstance(panel, Sheet):
            app = panel.home
            panel.write(lambda width: summary(opened, width, read_only=app.read_only), keep=keep)
        elif not keep and isinstance(panel, TensorRows):
            panel.show(opened.table)
        elif not keep and isinstance(panel, FindingRows):
            panel.show(opened.findings)
        elif not keep and isinstance(panel, FileRows):
            panel.show(opened.report)
        number = TABS.index(self._tab) + 1
        what = {"health": counts(opened.findings)}.get(self._tab, self._tab)
        panel.title = f"{name} {MIDDLE_DOT} {what}"
        if isinstance(panel, Sheet) and not panel.note:
            panel.note = "  ".join(f"{n} {tab}" for n, tab in enumerate(TABS, 1) if n != number)
