"""Options in rows: up and down choose the option, left, right and Space its value; free text is typed in the last line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from shardyard_tui.keys import bindings
from shardyard_tui.widgets.panel import Line, Span, fit, width_of
from shardyard_tui.widgets.scroller import Scroller


@dataclass(frozen=True, slots=True)
class Choice:
    """One option."""

    id: str
    label: str
    values: tuple[str, ...] = ()
    """What it can be; empty: free text."""
    note: str = ""
    """What it means, in a few words."""
    shown: tuple[str, ...] = ()
    """How the values read, where not as themselves."""

    def shows(self, value: str) -> str:
        """A value as it reads."""
        return self.shown[self.values.index(value)] if self.shown and value in self.values else value


class Choices(Scroller):
    """The options of a plan."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(("next-value", "previous-value"), "choice")]

    class Changed(Message):
        """An option has another value."""

        def __init__(self, choice: str, value: str) -> None:
            super().__init__()
            self.choice = choice
            self.value = value

    class Typing(Message):
        """An option of free text wants to be typed."""

        def __init__(self, choice: Choice, value: str) -> None:
            super().__init__()
            self.choice = choice
            self.value = value

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self.choices: Sequence[Choice] = ()
        self.values: dict[str, str] = {}
        self.notes: Callable[[str], str] = lambda _: ""
        """A remark about an option that depends on the plan."""

    @property
    def count(self) -> int:
        return len(self.choices)

    def show(self, choices: Sequence[Choice], values: dict[str, str]) -> None:
        """Show these options."""
        self.choices, self.values = choices, values
        self.clamp()
        self.refresh()

    def action_choice(self, name: str) -> None:
        if not self.choices:
            return
        choice = self.choices[self.cursor]
        value = self.values.get(choice.id, "")
        if not choice.values:
            self.post_message(self.Typing(choice, value))
            return
        at = choice.values.index(value) if value in choice.values else 0
        self.set_value(choice.id, choice.values[(at + (-1 if name == "previous-value" else 1)) % len(choice.values)])

    def set_value(self, choice: str, value: str) -> None:
        """Give an option another value."""
        if self.values.get(choice) != value:
            self.values[choice] = value
            self.refresh_rows(*(n - self.top for n, c in enumerate(self.choices) if c.id == choice))
            self.post_message(self.Changed(choice, value))

    def cover(self, y: int) -> str:
        return ""

    def row(self, y: int) -> Line:
        at = self.top + y
        if at >= len(self.choices):
            return ()
        choice = self.choices[at]
        here = at == self.cursor and self.has_focus
        spans: list[Span] = [(f"{'▸' if at == self.cursor else ' '} {fit(choice.label, 11)}", "key" if here else "dim")]
        value = self.values.get(choice.id, "")
        room = self.inner_width - 13
        if choice.values:
            for one in choice.values:
                text = choice.shows(one)
                on = one == value
                spans.append((f"[{text}]" if on else f" {text} ", "strong" if on and not here else "key" if on else "dim"))
                room -= width_of(text) + 2
        else:
            text = value or "–"
            shown = fit(text, max(0, min(width_of(text), room - 1)), cut="left")
            spans.append((f" {shown}", "key" if here else "strong"))
            room -= width_of(shown) + 1
        note = self.notes(choice.id) or choice.note
        if note and room > 12:
            spans.append((f"  {fit(note, room - 2)}", "dim"))
        return spans
