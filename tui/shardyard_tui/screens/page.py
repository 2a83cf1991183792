"""What all screens share: the first and last line, one way to run an action, and one way to refuse it and say why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen

from shardyard_tui.facts import Document, JobView
from shardyard_tui.home import Home
from shardyard_tui.keys import ACTIONS, bindings
from shardyard_tui.widgets.chrome import KeyLine, TooSmall, TopLine
from shardyard_tui.widgets.prompt import Prompt, Question
from shardyard_tui.widgets.row_list import RowList

LIST_ACTIONS = ("filter", "sort", "reverse")


class Page(Screen[None]):
    """A screen. Subclasses list what they offer, and have a `do_<action>` for each of it."""

    OFFERS: ClassVar[tuple[str, ...]] = ()
    """Actions with a key here, the most important first; the key line shows as many as fit."""
    ALSO: ClassVar[tuple[str, ...]] = ()
    """Actions with a key here that are too well known for the key line."""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(("next-pane", "previous-pane"))]
    NAME: ClassVar[str] = ""
    """What the help calls this screen."""
    TYPED_AHEAD: ClassVar[bool] = True
    """Whether keys count that were pressed before the screen was seen."""
    EXPLAINS: ClassVar[str] = ""
    """One or two sentences for the top of its help."""

    labels: Mapping[str, str] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        own = [*bindings((*cls.OFFERS, *cls.ALSO))]
        cls.BINDINGS = [*own, *cls.__dict__.get("BINDINGS", ())]
        super().__init_subclass__(**kwargs)  # type: ignore[arg-type]

    def __init__(self) -> None:
        super().__init__()
        self._awaiting: Callable[[str], None] | None = None
        self._ready = False
        self._early: list[events.Key] = []
        """Keys that came before the screen was drawn."""
        self._to_say: tuple[str, str] | None = None
        """A message that came before it was there."""
        self._refused: tuple[str, str] | None = None
        """The last action that was refused, and the words for it."""
        self._done_with = False
        """Left while another screen was in front."""

    @property
    def home(self) -> Home:
        """The app, as far as it is known here."""
        return cast(Home, self.app)

    @property
    def offers(self) -> tuple[str, ...]:
        """Actions for the key line."""
        return self.OFFERS

    def keys_now(self) -> Iterator[tuple[str, str, bool]]:
        """For the key line: key, what it does in a word or two, and whether it is off."""
        for name in self.offers:
            action = ACTIONS[name]
            yield action.shown, self.labels.get(name, action.label), bool(self.refusal(name))

    # What subclasses give

    def body(self) -> ComposeResult:
        """What stands between the first and the last line."""
        yield from ()

    def where(self) -> Sequence[str]:
        """The way here, for the first line."""
        return (self.NAME,)

    def refusal(self, action: str) -> str:
        """Why the action is off, one sentence; empty when it is on."""
        return ""

    def jobs_changed(self) -> None:
        """Jobs started, moved on or ended."""

    def job_done(self, job: JobView) -> None:
        """A job ended well: what it wrote is there now."""

    def deep_known(self, path: str, report: Document) -> None:
        """All the data of a checkpoint was read: there is a fuller report."""

    def came_back(self) -> None:
        """The terminal has the focus again: files may have changed."""

    def copied(self) -> str:
        """What `y` copies."""
        return ""

    def command(self) -> str:
        """What `Y` copies: a command line that does the same."""
        return ""

    # Building

    def compose(self) -> ComposeResult:
        yield TopLine()
        yield from self.body()
        yield KeyLine(self.keys_now)
        yield Prompt()
        yield TooSmall()

    def on_mount(self) -> None:
        self.show_where()
        self.call_after_refresh(self._is_ready)

    def on_screen_resume(self) -> None:
        if self._done_with:
            self.call_later(self.leave)
        self.show_where()

    def show_where(self) -> None:
        """Renew the first line."""
        if self.is_mounted:
            self.query_one(TopLine).show(self.where(), self.home.right_end())

    def show_keys(self) -> None:
        """Renew the last line: what is on and off may have changed, and a refusal that no longer holds goes."""
        if self.is_mounted:
            line = self.query_one(KeyLine)
            if self._refused and line.said == self._refused[1] != self._why_off(self._refused[0]):
                line.hush()
            line.refresh()

    def say(self, text: str, style: str = "strong", *, stay: bool = False) -> None:
        """A message in the last line."""
        if self._ready:
            self.query_one(KeyLine).say(text, style, stay=stay)
        else:
            self._to_say = (text, style)

    # Actions

    def action_do(self, name: str) -> None:
        """Run the action, or say why not. The one way in for keys and for the palette; what takes time is a worker's."""
        self.query_one(KeyLine).hush()
        why = self._why_off(name)
        if why:
            self._refused = (name, why)
            self.say(why, "warning")
            return
        method = "do_" + name.replace("-", "_")
        (getattr(self, method, None) or getattr(self.home, method))()

    def _why_off(self, name: str) -> str:
        why = self.refusal(name)
        return f"{ACTIONS[name].label.capitalize()} is off: {why}" if why else ""

    def do_next_pane(self) -> None:
        self.focus_next()

    def do_previous_pane(self) -> None:
        self.focus_previous()

    def do_back(self) -> None:
        """Clear what narrows the list, then leave."""
        rows = self.list_at_hand
        if rows is not None and not rows.filter.empty:
            rows.set_filter("")
        else:
            self.leave()

    def leave(self) -> None:
        """To the screen before; the first one stays. Behind another screen it waits until that one is left."""
        if self.app.screen is not self:
            self._done_with = True
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def do_copy(self) -> None:
        self.home.copy(self.copied())

    def do_copy_command(self) -> None:
        self.home.copy(self.command())

    # Lists: filter and sort work the same wherever there is one

    @property
    def list_at_hand(self) -> RowList[object] | None:
        """The list that has the focus, else the first one."""
        if isinstance(self.focused, RowList):
            return self.focused
        return next((w for w in self.query(RowList) if w.display and w.is_on_screen), None)

    def do_filter(self) -> None:
        rows = self.list_at_hand
        if rows is None:
            self.say("There is no list here to filter.", "dim")
            return
        before = rows.filter.source

        def done(text: str | None) -> None:
            if text is None:
                rows.set_filter(before)

        rows.focus()
        self.ask("/", before, changed=rows.set_filter, done=done, placeholder="text   ~fuzzy   /regex/   !not")

    def do_sort(self) -> None:
        rows = self.list_at_hand
        if rows is None or not rows.sort_letters:
            self.say("There is no list here to sort.", "dim")
            return

        def letter(key: str) -> None:
            if key != "escape" and not rows.sort_by(key):
                self.say(f"There is no column {key}: {rows.sort_letters}.", "warning")

        self.await_key(f"Sort by:  {rows.sort_letters}", letter)

    def do_reverse(self) -> None:
        rows = self.list_at_hand
        if rows is not None:
            rows.reverse()

    # Asking

    def ask(
        self,
        label: str,
        value: str = "",
        *,
        done: Callable[[str | None], None],
        changed: Callable[[str], None] | None = None,
        placeholder: str = "",
    ) -> None:
        """Let a line be typed in place of the last line; `done` gets None when it was given up."""

        def finish(text: str | None) -> None:
            self.query_one(KeyLine).display = True
            done(text)

        self.query_one(KeyLine).display = False
        self.prompt.begin(Question(label, finish, changed, placeholder), value)

    @property
    def prompt(self) -> Prompt:
        """The line to type into."""
        return self.query_one(Prompt)

    def await_key(self, hint: str, then: Callable[[str], None]) -> None:
        """The next key pressed goes to `then`, whatever it is bound to."""
        self._awaiting = then
        self.say(hint, "key", stay=True)

    def confirm(self, question: str, then: Callable[[], object]) -> None:
        """Ask; only `y` does it."""

        def answer(key: str) -> None:
            if key == "y":
                then()
            else:
                self.say("Nothing was done.")

        self.await_key(f"{question}   y yes   n no", answer)

    def takes_key(self, event: events.Key) -> bool:
        """Whether the key is used up before any binding: awaited, typed, or kept until the screen is there."""
        if not self._ready:
            self._early.append(event)
            return True
        return self.capture(event)

    def on_key(self, event: events.Key) -> None:
        """No binding and no widget took it: say so, for silence looks like a hang."""
        if event.is_printable and event.character:
            self.say(f"{event.character} does nothing here; ? lists the keys of this screen.", "dim")

    def _is_ready(self) -> None:
        self._ready = True
        if self._to_say is not None:
            self.say(*self._to_say)
        early, self._early = self._early, []
        for event in early if self.TYPED_AHEAD else ():
            self.app.post_message(events.Key(event.key, event.character))

    def capture(self, event: events.Key) -> bool:
        """Whether the key was awaited, or is being typed, and is used up."""
        then, self._awaiting = self._awaiting, None
        typing = self.prompt.question is not None
        if then is None and not typing:
            return False
        event.stop()
        event.prevent_default()
        if then is not None:
            self.query_one(KeyLine).hush()
            then(event.character if event.character and event.is_printable else event.key)
        else:
            self.prompt.take(event)
        return True

    def on_paste(self, event: events.Paste) -> None:
        if self.prompt.question is not None:
            event.stop()
            self.prompt.insert(event.text)
