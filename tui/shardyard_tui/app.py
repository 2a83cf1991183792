"""The app: screens over one engine, running jobs in sight, and the terminal's manners."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, work
from textual.reactive import reactive
from textual.screen import Screen

from shardyard_tui import terminal, textual_compat
from shardyard_tui.config import Config
from shardyard_tui.doors import Doors
from shardyard_tui.engine import Engine, RealEngine
from shardyard_tui.facts import Document, EngineError, JobRequest, JobView
from shardyard_tui.glyphs import AsciiFilter, needs_ascii
from shardyard_tui.home import Home
from shardyard_tui.keys import EVERYWHERE, bindings
from shardyard_tui.screens.page import Page
from shardyard_tui.theme import LOOKS, NAMES, Look
from shardyard_tui.units import plural

FAULT = 6
"""Exit code of a fault of our own."""
LEAST_COLUMNS, LEAST_ROWS = 60, 15
LIVE_S, SLOW_S, IDLE_S = 0.5, 2.0, 2.0
"""Seconds between looks at the jobs: with one running, on a slow line or in the background, with none."""


class ShardyardApp(Doors):
    """Everything that is shown starts here; everything that is read comes from `engine`."""

    CSS_PATH = "shardyard.tcss"
    TITLE = "shardyard"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [*bindings(EVERYWHERE), ("ctrl+c", "interrupt")]

    look_name = reactive("dark", init=False)

    def __init__(
        self,
        engine: Engine,
        path: str,
        *,
        ascii: bool = False,
        slow: bool = False,
        read_only: bool = False,
        config: Config | None = None,
        driver: type[Any] | None = None,
    ) -> None:
        super().__init__(driver_class=driver)
        self.engine = engine
        self.path = path
        self.ascii, self.slow, self.read_only = ascii, slow, read_only
        self.config = config or Config()
        self.started_in = os.getcwd()
        self.jobs: list[JobView] = []
        self.jobs_problem = ""
        self.animation_level = "none"
        self.HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (LEAST_COLUMNS, "-narrow"), (100, "-normal"), (130, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-flat"), (LEAST_ROWS, "-tall")]
        self._away = False
        self._interrupted = 0.0
        self.compare_with: str | None = None
        """The first of two checkpoints to compare."""
        self.deep: dict[str, tuple[float, Document]] = {}
        """Reports of checkpoints whose data was read, with the stamp that they hold for."""
        self._news = asyncio.Event()
        textual_compat.crop_updates()
        self._host, self._user = terminal.host_and_user()
        if ascii:
            textual_compat.add_filter(self, AsciiFilter())
        for name in NAMES:
            self.register_theme(LOOKS[name].theme)

    @property
    def look(self) -> Look:
        """The styles that everything is drawn with."""
        return LOOKS[self.look_name]

    def watch_look_name(self, name: str) -> None:
        self.theme = name
        if self._running:
            self.refresh_css(animate=False)
            for screen in self.screen_stack:
                screen.refresh(layout=True)
                for widget in screen.query("*"):
                    widget.refresh()

    def get_default_screen(self) -> Screen[Any]:
        from shardyard_tui.screens.browser import Browser

        return Browser(self.path)

    def on_mount(self) -> None:
        self.look_name = self.config.theme
        self.theme = self.config.theme
        if self.config.keys:
            self.set_keymap(self.config.keys)
        if not self.is_headless:
            terminal.watch(terminal.leave_at_once)
        self.watch_jobs()

    async def on_unmount(self) -> None:
        await self.engine.close()

    # The first line's right end

    def right_end(self) -> str:
        """Who and where, and how many jobs run."""
        running = sum(job.running for job in self.jobs)
        parts = [f"{self._user}@{self._host}" if self._user and self.size.width >= 100 else self._host]
        if self.read_only:
            parts.append("read-only")
        if running:
            parts.append(f"{plural(running, 'job')} running" if self.size.width >= 100 else plural(running, "job"))
        return "   ".join(parts)

    def takes_key(self, event: events.Key) -> bool:
        return self.page is not None and self.page.takes_key(event)

    def say(self, text: str, style: str = "strong") -> None:
        """A message in the last line of the screen in front."""
        if self.page is not None:
            self.page.say(text, style)

    # Jobs

    @work(exclusive=True, group="jobs")
    async def watch_jobs(self) -> None:
        """Look at the job folders again and again, and tell the screen what changed."""
        while True:
            try:
                jobs = await self.engine.jobs()
                problem = ""
            except EngineError as error:
                jobs, problem = self.jobs, error.message
            if jobs != self.jobs or problem != self.jobs_problem:
                self._notice_ends(jobs)
                self.jobs, self.jobs_problem = jobs, problem
                if self.page is not None:
                    self.page.jobs_changed()
                    self.page.show_where()
            live = any(job.running for job in jobs)
            wait = (SLOW_S if self.slow or self._away else LIVE_S) if live else IDLE_S
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), wait)
            except asyncio.TimeoutError:
                continue

    def _notice_ends(self, jobs: Iterable[JobView]) -> None:
        before = {job.id: job.state for job in self.jobs}
        for job in jobs:
            if before.get(job.id) in ("queued", "running") and not job.running:
                told = {"done": f"{job.title}: done.", "cancelled": f"{job.title}: cancelled."}
                style = "ok" if job.state == "done" else "warning" if job.state == "cancelled" else "error"
                if job.verb == "inspect-deep" and job.state == "done":
                    self.learn_deep(job)
                if job.state == "done":
                    for screen in self.screen_stack:
                        if isinstance(screen, Page):
                            screen.job_done(job)
                self.say(told.get(job.state) or f"{job.title}: {job.message or 'its process is gone; r in J goes on.'}", style)

    @work
    async def learn_deep(self, job: JobView) -> None:
        """Take over what reading all the data has found."""
        try:
            events, _ = await self.engine.events(job.id, {})
            stamp = await self.engine.stamp(job.sources[0])
        except EngineError:
            return
        result = next((e for e in reversed(events) if e["event"] == "result"), {})
        for report in result.get("checkpoints") or ():
            if report.get("path") == ".":
                self.deep[job.sources[0]] = (stamp, report)
                for screen in self.screen_stack:
                    if isinstance(screen, Page):
                        screen.deep_known(job.sources[0], report)

    def look_at_jobs(self) -> None:
        """Look now, not at the next turn."""
        self._news.set()

    async def start_job(self, request: JobRequest) -> str | None:
        """Start a job; None, and a message, when it could not be."""
        try:
            job = await self.engine.start(request)
        except EngineError as error:
            self.say(error.message, "error")
            return None
        self.look_at_jobs()
        return job

    # Actions that work everywhere

    def action_do(self, name: str) -> None:
        if self.page is not None:
            self.page.action_do(name)

    def do_theme(self) -> None:
        self.look_name = NAMES[(NAMES.index(self.look_name) + 1) % len(NAMES)]
        self.say(f'Colours: {self.look_name}.  theme = "{self.look_name}" in the config file keeps them.')

    def do_redraw(self) -> None:
        self.refresh(layout=True)
        for widget in self.screen.query("*"):
            widget.refresh()

    def do_suspend(self) -> None:
        self.action_suspend_process()

    def do_quit(self) -> None:
        self.exit(0)

    def action_interrupt(self) -> None:
        """Ctrl-C: the first stops what is being read, a second soon after quits."""
        if time.monotonic() - self._interrupted < 2:
            self.exit(130)
            return
        self._interrupted = time.monotonic()
        if self.page is not None:
            self.page.action_do("back")
        self.say("Ctrl-C again quits; jobs go on.")

    def copy(self, text: str) -> None:
        """To the terminal's clipboard (OSC 52), to a file for terminals that have none, and to the last line."""
        if not text:
            self.say("There is nothing to copy here.")
            return
        self.copy_to_clipboard(text)
        path = terminal.clip_file()
        if path is not None:
            self.run_worker(lambda: _leave(path, text), thread=True, exit_on_error=False)
        self.say(f"Copied: {text}")

    # Focus of the terminal

    def on_app_blur(self, _: events.AppBlur) -> None:
        self._away = True

    def on_app_focus(self, _: events.AppFocus) -> None:
        self._away = False
        self.look_at_jobs()
        if self.page is not None:
            self.page.came_back()


if TYPE_CHECKING:
    _HOME: type[Home] = ShardyardApp


def _leave(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def run(
    path: str | Path,
    *,
    ascii: bool | None = None,
    slow: bool = False,
    read_only: bool = False,
    theme: str | None = None,
) -> int:
    """Open the app on a path; returns an exit code. The caller has made sure that there is a terminal."""
    from shardyard_tui.config import load

    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        print("This terminal cannot show the app (TERM is dumb); try: shardyard inspect", file=sys.stderr)
        return 2
    config = load(theme=theme)
    app = ShardyardApp(
        RealEngine(),
        os.path.abspath(path),
        ascii=config.ascii or needs_ascii() if ascii is None else ascii,
        slow=slow or config.slow,
        read_only=read_only or config.read_only,
        config=config,
        driver=textual_compat.driver_class(),
    )
    code = app.run(mouse=config.mouse and not terminal.over_ssh())
    running = [job for job in app.jobs if job.running]
    if running:
        follow = f"shardyard jobs follow {running[0].id}"
        print(f"{plural(len(running), 'job goes', 'jobs go')} on: {follow}", file=sys.stderr)
    return code if code is not None else FAULT if app.return_code else 0
