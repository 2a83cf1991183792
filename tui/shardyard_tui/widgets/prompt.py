"""One line to type into, where the keys stand: filters, paths, names."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from shardyard_tui.widgets.panel import Line, Panel, width_of


class Label(Panel):
    """What is asked for."""

    framed = False
    DEFAULT_CSS = "Label { height: 1; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.styles.width = width_of(text) + 2

    def row(self, y: int) -> Line:
        return [(f" {self.text} ", "key")]


class Prompt(Horizontal):
    """A label and an input. Enter keeps, Esc gives up; `changed` hears every letter."""

    DEFAULT_CSS = """
    Prompt { height: 1; dock: bottom; background: $background; }
    Prompt Input { width: 1fr; height: 1; border: none; padding: 0; background: $background; color: $foreground; }
    Prompt Input:focus { border: none; }
    """

    def __init__(
        self,
        label: str,
        value: str,
        *,
        changed: Callable[[str], None] | None = None,
        done: Callable[[str | None], None],
        placeholder: str = "",
    ) -> None:
        super().__init__()
        self._label, self._value, self._placeholder = label, value, placeholder
        self._changed, self._done = changed, done

    def compose(self) -> ComposeResult:
        yield Label(self._label)
        line = Input(self._value, compact=True, placeholder=self._placeholder, select_on_focus=False)
        # A blinking cursor would write to the line twice a second for nothing.
        line.cursor_blink = False
        yield line

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._changed is not None:
            self._changed(event.value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._done(event.value)

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self._done(None)
