"""The plan of a merge, an export or a shrink: options above, what will happen below; Enter starts it.

What is shown is the plan object itself, the one that `--dry-run` prints and the job writes to plan.json.  Making it reads headers
only, and refusals are made here, before a byte of tensor data is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical

from shardyard.text import printable
from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError, Intent, JobRequest, Opened
from shardyard_tui.glyphs import ERROR
from shardyard_tui.plan_text import DEFAULTS, checks, command, options_of, plan_lines, slurm_of
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.choices import Choice, Choices
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import Sheet, wrap

ENDINGS = {"merge": "-merged", "export": "-exported", "shrink": "-small"}
TITLES = {"merge": "Merge", "export": "Export", "shrink": "Shrink"}

_OUT = Choice("out", "Output")
_DTYPE = Choice("dtype", "Dtype", ("", "float32", "bfloat16", "float16"), shown=("as stored", "float32", "bfloat16", "float16"))
_DTYPE_EXPORT = Choice("dtype", "Dtype", ("", "keep", "float32", "bfloat16", "float16"),
                       shown=("as config.json says", "as stored", "float32", "bfloat16", "float16"))  # fmt: skip
_TIED = Choice("tied", "Tied", ("auto", "once", "both"), "auto: once where a loader restores it")
_SLURM = Choice("slurm", "Slurm", note="such as partition=cpu,time=1:00:00; empty: on this machine")
_MORE = (
    Choice("max_shard_size", "Shard size", note="such as 5GB, 500MB, none"),
    _TIED,
    Choice("format", "Format", ("safetensors", "torch")),
    Choice("verify", "Verify", ("sample", "full", "none"), "how much is read back and checked"),
    Choice("strip_prefix", "Prefixes", ("auto", "none"), "wrappers' marks in names"),
    Choice("lora", "LoRA", ("", "keep", "split", "fold"), shown=("default", "keep", "split", "fold")),
    Choice("select", "Only", note="names, with * and ?"),
    Choice("exclude", "Without", note="names, with * and ?"),
    Choice("part", "Part", note="such as ema, masters, optimizer; empty: the model"),
    Choice("keep_dtype", "Uncast", note="names that keep their dtype"),
    Choice("like", "Like", note="a base model to take config and names from"),
    Choice("allow_incomplete", "Incomplete", ("no", "yes"), "write what can be rebuilt"),
    Choice("overwrite", "Overwrite", ("no", "yes"), "only what this program wrote"),
)


def choices_for(verb: str, opened: Opened, *, short: bool) -> list[Choice]:
    """The options of a verb; `short`: the few that matter most."""
    if verb == "shrink":
        return [
            Choice("in_place", "Where", ("no", "yes"), shown=("a new place", "in place, after proof")),
            _OUT,
            Choice("dedupe_tied", "Tied once", ("no", "yes"), "store equal tied weights once"),
        ]
    found = [_OUT, _DTYPE_EXPORT if verb == "export" else _DTYPE]
    tags = [str(t) for t in opened.report.get("tags") or ()]
    if len(tags) > 1:
        at = str(opened.report.get("tag") or "")
        shown = tuple(t or f"{at} (latest)" for t in ("", *[t for t in tags if t != at]))
        found.append(Choice("tag", "Step", ("", *[t for t in tags if t != at]), shown=shown))
    return [*found, *((_TIED,) if short else _MORE)]


class Plan(Page):
    """See the module."""

    NAME = "Plan"
    EXPLAINS = "What will be read and written, before anything is. Left, right and Space change an option, Enter starts."
    TYPED_AHEAD = False
    OFFERS = ("start", "export", "copy-command", "back")

    def __init__(self, intents: Sequence[Intent], *, at_once: bool = False) -> None:
        """A plan for the first; for the rest, one after the other, once it was started."""
        super().__init__()
        self.intent, *self.rest = intents
        self.verb, self.opened = self.intent.verb, self.intent.opened
        self.at_once = self._all_at_once = at_once
        self.short = self.verb == "merge" and not self.intent.select
        self.plan: Document | None = None
        self.starting = False
        self.problem = ""
        self.values: dict[str, str] = {}
        self.has_slurm = False
        self.labels = {"export": "all options"} if self.short else {}

    @property
    def offers(self) -> tuple[str, ...]:
        return self.OFFERS if self.short else ("start", "copy-command", "back")

    def body(self) -> ComposeResult:
        with Vertical(id="plan"):
            choices = Choices(f"{TITLES[self.verb]} {self.name_shown}", id="choices")
            choices.note = f"then {units.count(len(self.rest))} more" if self.rest else ""
            yield choices
            yield Sheet("Plan", id="sheet")

    def on_mount(self) -> None:
        super().on_mount()
        self.values = {c.id: DEFAULTS.get(c.id, "") for c in choices_for(self.verb, self.opened, short=False)}
        if self.verb == "shrink":
            self.values["in_place"] = "no"
        self.values["select"] = " ".join(self.intent.select)
        self.options.notes = self._note
        self._show_choices()
        self.options.focus()
        self.sheet.write(lambda width: wrap("Making the plan: headers only, no data is read.", width, "dim"))
        self.make_first()

    @property
    def options(self) -> Choices:
        return self.query_one("#choices", Choices)

    @property
    def sheet(self) -> Sheet:
        return self.query_one("#sheet", Sheet)

    def _show_choices(self) -> None:
        choices = choices_for(self.verb, self.opened, short=self.short)
        if self.has_slurm:
            choices.append(_SLURM)
        self.options.show(choices, self.values)
        self.options.styles.height = min(len(choices) + 2, max(5, self.size.height // 2))

    @property
    def name_shown(self) -> str:
        """What the plan is of."""
        return " + ".join(printable(os.path.basename(path.rstrip("/"))) for path in (self.opened.path, *self.intent.others))

    def where(self) -> Sequence[str]:
        return (self.name_shown, TITLES[self.verb].lower())

    def _note(self, choice: str) -> str:
        if choice == "dtype" and self.plan is not None:
            return f"writes {units.size(int(self.plan.get('bytes_written') or 0))}"
        return ""

    # Making it

    @work(exclusive=True, group="plan")
    async def make_first(self) -> None:
        """Choose an output that is free, then plan."""
        engine = self.home.engine
        with contextlib.suppress(EngineError):
            # Without a proposal the output is typed; the plan says what else is wrong.
            self.values["out"] = await engine.default_out(self.opened.path, self.verb, self.home.started_in)
            self.options.refresh()
        self.has_slurm = await engine.has_slurm()
        if self.has_slurm:
            self._show_choices()
        await self._make()

    @work(exclusive=True, group="plan")
    async def make(self) -> None:
        """Plan again, with the options as they are now."""
        await self._make()

    async def _make(self) -> None:
        self.plan, self.problem = None, ""
        try:
            self.plan = await self.home.engine.plan(self.request)
        except EngineError as error:
            self.problem = error.message
        self.sheet.write(self._lines)
        self.sheet.note = "nothing is written yet" if self.plan is not None else "refused"
        self.options.refresh()
        self.show_keys()
        if self.at_once:
            self.at_once = False
            if self.plan is not None and all(good for good, _, _ in checks(self.plan)):
                self.do_start()
            elif self.plan is not None:
                odd = ", ".join(what for good, what, _ in checks(self.plan) if not good)
                self.say(f"Not started at once, look at: {odd}. Enter starts it all the same.", "warning")

    def _lines(self, width: int) -> list[Line]:
        if self.plan is not None:
            return plan_lines(self.plan, self.request, width)
        lines = wrap(self.problem, width, "text", indent=2, first=ERROR, first_style="error")
        return [*lines, (), *wrap("Nothing was read or written. Change an option above, or Esc.", width, "dim")]

    @property
    def request(self) -> JobRequest:
        """The job that Enter starts."""
        options = options_of(self.values)
        out = None if options.get("in_place") else self.values.get("out") or None
        return JobRequest(self.verb, (self.opened.path, *self.intent.others), out, options, slurm_of(self.values))

    @on(Choices.Changed)
    def _changed(self) -> None:
        self.sheet.write(lambda width: wrap("Making the plan again.", width, "dim"))
        self.make()

    @on(Choices.Typing)
    def _typing(self, event: Choices.Typing) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self.options.set_value(event.choice.id, os.path.abspath(text) if event.choice.id == "out" and text else text)

        self.ask(f"{event.choice.label}:", event.value, done=done, placeholder=event.choice.note)

    # Actions

    def refusal(self, action: str) -> str:
        if action == "start" and self.starting:
            return "it is being started."
        if action == "start" and self.plan is None:
            return self.problem or "the plan is not made yet."
        return ""

    def do_start(self) -> None:
        """Start the job and go back; it is followed from anywhere."""
        self.starting = True
        # The app's worker, not this screen's: Esc meanwhile leaves the screen, and what was started is still told.
        self.app.run_worker(self._start(self.request), group="start")

    async def _start(self, request: JobRequest) -> None:
        job = await self.home.start_job(request)
        self.starting = False
        if job is not None:
            gone = not self.is_attached
            self.leave()
            if self.rest and not gone:
                self.home.show_plans(self.rest, at_once=self._all_at_once)
            self.home.say(f"Started: {request.verb} {self.name_shown}. It goes on if you quit. J shows it.", "ok")

    def do_export(self) -> None:
        """All options, or the few."""
        self.short = not self.short
        self._show_choices()
        self.show_keys()

    def copied(self) -> str:
        return self.values.get("out", "")

    def command(self) -> str:
        return command(self.request)
