"""Help for the screen it was asked on, made from its bindings; grey ones with the reason why they are off."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from shardyard_tui.glyphs import CLOSED, ERROR, MARK, OPEN
from shardyard_tui.glyphs import WARNING as CAUTION
from shardyard_tui.keys import ACTIONS, EVERYWHERE, Action
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.panel import Line, fit
from shardyard_tui.widgets.sheet import Sheet, wrap

GROUPS = ("Act", "Look", "Move", "Jobs", "Program")
TITLES = {
    "Act": "Marked, else under the cursor",
    "Look": "Look",
    "Move": "Move",
    "Jobs": "Jobs",
    "Program": "Program",
}


class Help(Page):
    """See the module."""

    NAME = "Help"
    OFFERS = ("back",)

    def __init__(self, about: Page) -> None:
        super().__init__()
        self.about = about

    def body(self) -> ComposeResult:
        yield Sheet(f"Help: {self.about.NAME}", id="help")

    def on_mount(self) -> None:
        super().on_mount()
        sheet = self.query_one("#help", Sheet)
        sheet.focus()
        sheet.write(self._lines)

    def where(self) -> Sequence[str]:
        return ("help", self.about.NAME.lower())

    def do_help(self) -> None:
        self.leave()

    def offered(self) -> dict[str, list[Action]]:
        """The actions of the screen, by group, each once."""
        ids = [*self.about.OFFERS, *self.about.ALSO, *EVERYWHERE]
        seen = list(dict.fromkeys([*ids, *self._widget_actions()]))
        return {group: [ACTIONS[i] for i in seen if ACTIONS[i].group == group] for group in GROUPS}

    def _widget_actions(self) -> list[str]:
        """What the screen's own widgets bind."""
        found: list[str] = []
        for widget in [self.about, *self.about.query("*")]:
            for bound in widget._bindings.key_to_bindings.values():
                found += [b.id for b in bound if b.id in ACTIONS]
        return found

    def _lines(self, width: int) -> list[Line]:
        lines: list[Line] = [*wrap(self.about.EXPLAINS, width, "text"), ()] if self.about.EXPLAINS else []
        offered = self.offered()
        columns = 3 if width >= 126 else 2 if width >= 70 else 1
        each = width // columns
        blocks = [self._block(group, actions, each - 2) for group, actions in offered.items() if actions]
        lines += side_by_side(blocks, columns, each)
        lines += [(), *self._greys(width)]
        signs = f"{MARK} marked   {ERROR} cannot be used   {CAUTION} worth a look   {CLOSED} {OPEN} closed, open"
        lines += wrap(f"Signs   {signs}", width, "dim")
        lines += wrap("Filter  text   ~fuzzy   /regex/   !not   several words: all of them", width, "dim")
        asked = "--slow for slow lines, --ascii without Unicode, NO_COLOR=1 without colour, --read-only to look only"
        lines += wrap(f"Options {asked}", width, "dim")
        return lines

    def _block(self, group: str, actions: Sequence[Action], width: int) -> list[Line]:
        lines: list[Line] = [[(fit(TITLES[group], width), "head")]]
        for action in actions:
            off = bool(self.about.refusal(action.id))
            style = "faint" if off else "text"
            for n, line in enumerate(wrap(action.help, width - 8, style)):
                key = fit(action.shown if n == 0 else "", 8)
                lines.append([(key, "faint" if off else "key"), (fit(line[0][0], width - 8), style)])
        return [*lines, [(" " * width, "text")]]

    def _greys(self, width: int) -> list[Line]:
        reasons: dict[str, list[str]] = {}
        for actions in self.offered().values():
            for action in actions:
                why = self.about.refusal(action.id)
                if why:
                    reasons.setdefault(why, []).append(action.shown)
        lines: list[Line] = []
        for why, keys in reasons.items():
            lines += wrap(f"{' '.join(keys)} off: {why}", width, "warning")
        return [*lines, ()] if lines else []


def side_by_side(blocks: Sequence[Sequence[Line]], columns: int, width: int) -> list[Line]:
    """Blocks in columns, the shortest column taking the next one."""
    stacks: list[list[Line]] = [[] for _ in range(columns)]
    for block in blocks:
        min(stacks, key=len).extend(block)
    rows = max(len(stack) for stack in stacks)
    lines: list[Line] = []
    for n in range(rows):
        line: list[tuple[str, str]] = []
        for stack in stacks:
            line += [*stack[n], ("  ", "text")] if n < len(stack) else [(" " * width, "text")]
        lines.append(line)
    return lines
