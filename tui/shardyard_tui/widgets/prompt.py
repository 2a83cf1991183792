"""One line to type into, where the keys stand: filters, paths, names.

It is always there and only hidden, and the screen hands it keys as they come: what is typed right after `/`, or pasted, or sent
by a slow line in one burst, is text from the first letter on, never a command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import events

from shardyard_tui.glyphs import ELLIPSIS
from shardyard_tui.widgets.panel import Line, Panel, width_of


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    label: str
    done: Callable[[str | None], None]
    """Called with the text, or None when it was given up."""
    changed: Callable[[str], None] | None = None
    """Hears every letter."""
    placeholder: str = ""


class Prompt(Panel):
    """A label and a line of text with a cursor. Enter keeps, Esc gives up."""

    DEFAULT_CSS = "Prompt { height: 1; width: 1fr; dock: bottom; display: none; }"
    framed = False

    def __init__(self) -> None:
        super().__init__()
        self.question: Question | None = None
        self.text = ""
        self.at = 0

    def begin(self, question: Question, text: str) -> None:
        """Ask; from now on keys are text."""
        self.question, self.text, self.at = question, text, len(text)
        self.display = True
        self.refresh()

    def take(self, event: events.Key) -> None:
        """A key while something is asked."""
        if event.key in ("enter", "escape", "ctrl+c"):
            self._end(self.text if event.key == "enter" else None)
            return
        text, at = self.text, self.at
        if event.is_printable and event.character:
            self.insert(event.character)
            return
        if event.key in ("backspace", "ctrl+h"):
            text, at = text[: max(0, at - 1)] + text[at:], max(0, at - 1)
        elif event.key == "delete":
            text = text[:at] + text[at + 1 :]
        elif event.key == "ctrl+u":
            text, at = text[at:], 0
        elif event.key == "ctrl+k":
            text = text[:at]
        elif event.key == "ctrl+w":
            start = text[:at].rstrip().rfind(" ") + 1
            text, at = text[:start] + text[at:], start
        else:
            moves = {"left": at - 1, "right": at + 1, "home": 0, "ctrl+a": 0, "end": len(text), "ctrl+e": len(text)}
            at = max(0, min(len(text), moves.get(event.key, at)))
        self._set(text, at)

    def insert(self, more: str) -> None:
        """Put text where the cursor is; of a paste, its first line."""
        more = more.partition("\n")[0].rstrip("\r")
        self._set(self.text[: self.at] + more + self.text[self.at :], self.at + len(more))

    def _set(self, text: str, at: int) -> None:
        changed = text != self.text
        self.text, self.at = text, at
        self.refresh()
        if changed and self.question is not None and self.question.changed is not None:
            self.question.changed(text)

    def _end(self, text: str | None) -> None:
        question, self.question = self.question, None
        self.display = False
        if question is not None:
            question.done(text)

    def row(self, y: int) -> Line:
        if self.question is None:
            return ()
        label = f" {self.question.label} "
        room = max(4, self.size.width - width_of(label) - 2)
        start = max(0, self.at - room + 1)
        before = (ELLIPSIS if start else "") + self.text[start + (1 if start else 0) : self.at]
        here, after = self.text[self.at : self.at + 1] or " ", self.text[self.at + 1 : start + room]
        hint = f"  {self.question.placeholder}" if not self.text else ""
        return [(label, "key"), (before, "text"), (here, "cursor"), (after, "text"), (hint, "faint")]
