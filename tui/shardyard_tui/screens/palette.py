"""Every action by name: type a part of it, Enter does it."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult

from shardyard_tui.keys import ACTIONS, EVERYWHERE, Action
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.row_list import Column, RowList


class Palette(Page):
    """See the module."""

    NAME = "Any command"
    EXPLAINS = "Type a part of a name; Enter does it. Each action is called as its command is."
    OFFERS = ("open", "filter", "back")

    def __init__(self, about: Page) -> None:
        super().__init__()
        self.about = about

    def actions(self) -> list[Action]:
        """What can be done on the screen it was opened from."""
        ids = dict.fromkeys([*self.about.OFFERS, *self.about.ALSO, *EVERYWHERE])
        return [ACTIONS[i] for i in ids if i not in ("palette", "open", "back")]

    def body(self) -> ComposeResult:
        columns: Sequence[Column[Action]] = (
            Column("Action", lambda a: a.id, 15, style=self._style("strong")),
            Column("Key", lambda a: a.shown, 6, style=self._style("key")),
            Column("Does", lambda a: self.about.refusal(a.id) or a.help, style=self._style("text")),
            Column("As a command", lambda a: a.command, 28, least=100, style="dim"),
        )
        yield RowList(columns, lambda a: f"{a.id} {a.help} {a.command}", "Any command", marks=False, id="actions")

    def _style(self, usual: str):  # type: ignore[no-untyped-def]
        return lambda action: "faint" if self.about.refusal(action.id) else usual

    def on_mount(self) -> None:
        super().on_mount()
        rows = self.query_one("#actions", RowList)
        rows.set_rows(self.actions())
        rows.focus()
        self.call_after_refresh(self._type)

    def _type(self) -> None:
        rows = self.query_one("#actions", RowList)

        def done(text: str | None) -> None:
            rows.focus()
            if text is None:
                self.leave()
            else:
                rows.choose()

        self.ask(":", "", changed=rows.set_filter, done=done, placeholder="what to do")

    def where(self) -> Sequence[str]:
        return ("any command",)

    @on(RowList.Chosen)
    def _chosen(self) -> None:
        action = self.query_one("#actions", RowList).current
        if action is not None:
            self.leave()
            self.app.call_later(self.about.action_do, action.id)
