"""One job: how far, how fast against which limits, what it says. Closing the screen changes nothing for the job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from shardyard_tui import units
from shardyard_tui.facts import EngineError, JobView
from shardyard_tui.history import History
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.graph import Graph
from shardyard_tui.widgets.job_strip import ending
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import Sheet, bar, fact, wrap


class JobScreen(Page):
    """See the module."""

    NAME = "One job"
    EXPLAINS = "The job's own events, as `shardyard jobs follow` prints them. It goes on whatever happens to this screen."
    OFFERS = ("cancel", "resume", "follow", "copy", "copy-command", "back")

    def __init__(self, job: JobView) -> None:
        super().__init__()
        self.job = job
        self.history = History()
        self._offset: Mapping[str, int] = {}

    def body(self) -> ComposeResult:
        with Horizontal(id="job-top"):
            yield Sheet(id="progress")
            with Vertical(id="curves"):
                yield Graph("Throughput, last minute", lambda v: f"{units.size(v)}/s", id="rate")
                yield Graph("Memory, last minute", units.size, "masters", id="memory")
        yield Sheet("Log", id="log")

    def on_mount(self) -> None:
        super().on_mount()
        log = self.query_one("#log", Sheet)
        log.stick = True
        log.focus()
        self.take_events()

    def where(self) -> Sequence[str]:
        return ("jobs", self.job.title)

    def jobs_changed(self) -> None:
        self.job = next((j for j in self.home.jobs if j.id == self.job.id), self.job)
        self.take_events()

    @work(exclusive=True, group="events")
    async def take_events(self) -> None:
        """Read what is new, and show it."""
        try:
            events, self._offset = await self.home.engine.events(self.job.id, self._offset)
        except EngineError as error:
            self.say(error.message, "error")
            return
        self.history.take(events)
        self.show()

    def show(self) -> None:
        """Draw everything that changed."""
        sheet = self.query_one("#progress", Sheet)
        sheet.title = self.job.title
        sheet.note = self._state()
        sheet.write(self._progress, keep=True)
        rate, memory = self.query_one("#rate", Graph), self.query_one("#memory", Graph)
        reads, writes = self.history.rates()
        rate.note = f"read {units.size(reads)}/s   write {units.size(writes)}/s"
        rate.show(lambda columns: self.history.curve("read", columns))
        limit = self._memory().get("limit")
        memory.note = f"peak {units.size(self.history.peak)}" + (f"   limit {units.size(limit)}" if limit else "")
        memory.show(lambda columns: self.history.curve("anon", columns), limit)
        log = self.query_one("#log", Sheet)
        log.note = "follows" if log.stick else "stands still (F follows)"
        log.write(self._log, keep=True)
        self.show_keys()

    def _state(self) -> str:
        took = (self.job.ended or time.time()) - self.job.created
        return f"{self.job.state} {units.duration(took)}" if self.job.state != "queued" else "queued"

    def _memory(self) -> Mapping[str, int | None]:
        return (self.history.progress or {}).get("memory") or {}

    def _progress(self, width: int) -> list[Line]:
        progress = self.history.progress or {}
        done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
        share = done / total if total else (1.0 if self.job.state == "done" else 0.0)
        if self.job.state == "done":
            share = 1.0
        lines: list[Line] = [[*bar(share, max(4, width - 6), "accent"), (f" {share:4.0%}", "strong")], ()]
        if not self.job.running:
            lines += [ending(self.job, width), ()]
            if self.job.message:
                lines += [*wrap(self.job.message, width, "text"), ()]
        lines += self._amounts(progress, width)
        if self.job.running:
            eta = progress.get("eta")
            left = units.duration(float(eta)) if eta is not None else "not known yet"
            until = f", about {datetime.fromtimestamp(time.time() + float(eta)):%H:%M:%S}" if eta is not None else ""
            lines += fact("Left", left + until, width)
            lines += fact("Now", str(progress.get("item") or "starting"), width)
        lines += [(), *self._limits(progress, width)]
        if self.job.out:
            lines += fact("Output", self.job.out, width)
        here = f"{self.job.host}, process {self.job.pid}" if self.job.pid else "not started"
        runs_on = self.job.slurm or here
        lines += fact("Runs on", runs_on, width, "dim")
        lines += fact("Folder", self.job.folder, width, "dim")
        return lines

    def _amounts(self, progress: Mapping[str, object], width: int) -> list[Line]:
        now, average = self.history.rates(), self.history.averages()
        plan = self.history.plan or {}
        lines: list[Line] = []
        for n, (label, key, total) in enumerate((("Read", "read", "bytes_read"), ("Written", "written", "bytes_written"))):
            value = progress.get(key)
            if n and not value and not plan.get(total):
                continue  # what only reads has nothing to say here
            amount = units.size(value) if isinstance(value, int) else "0 B"
            whole = plan.get(total)
            of = f" of {units.size(whole)}" if isinstance(whole, int) and isinstance(value, int) and value <= whole else ""
            # One that ended before its rate was measured has none.
            rates = (
                f"   {units.size(now[n])}/s now, {units.size(average[n])}/s on average" if average[n] or self.job.running else ""
            )
            lines += fact(label, f"{amount}{of}{rates}", width)
        return lines

    def _limits(self, progress: Mapping[str, object], width: int) -> list[Line]:
        memory = self._memory()
        lines: list[Line] = []
        anon, limit, working = memory.get("anon"), memory.get("limit"), memory.get("working_set")
        if anon is not None:
            of = f" of {units.size(limit)} allowed" if limit else ", no limit is set"
            lines += fact("Memory", f"{units.size(anon)}{of}{self._planned()}", width)
        if working is not None and limit:
            text = f"{units.size(working)} of {units.size(limit)}, cache that can be given back left out"
            lines += fact("Its group", text, width)
        disk = progress.get("disk")
        if isinstance(disk, Mapping) and disk.get("free") is not None:
            lines += fact("Disk", f"{units.size(disk['free'])} free", width)
        return lines

    def _planned(self) -> str:
        planned = (self.history.plan or {}).get("memory")
        return f"; the plan said {units.size(planned)}" if isinstance(planned, int) else ""

    def _log(self, width: int) -> list[Line]:
        if not self.history.log:
            return [[("Nothing said yet.", "dim")]]
        lines: list[Line] = []
        for moment, style, text in self.history.log:
            lines += wrap(text, width, style, indent=10, first=f"{datetime.fromtimestamp(moment):%H:%M:%S}", first_style="faint")
        return lines

    # Actions

    def refusal(self, action: str) -> str:
        return self.job.why_not(action)

    def do_follow(self) -> None:
        log = self.query_one("#log", Sheet)
        log.stick = not log.stick
        self.show()

    def do_cancel(self) -> None:
        self.confirm("Stop this job? What it has done so far can be resumed.", lambda: self._change("cancel"))

    def do_resume(self) -> None:
        self._change("resume")

    @work
    async def _change(self, what: str) -> None:
        try:
            await (self.home.engine.cancel if what == "cancel" else self.home.engine.resume)(self.job.id)
        except EngineError as error:
            self.say(error.message, "error")
        else:
            self.say("It stops at the next unit." if what == "cancel" else "It goes on from the last finished unit.")
        self.home.look_at_jobs()

    def copied(self) -> str:
        return self.job.out or self.job.id

    def command(self) -> str:
        return f"shardyard jobs follow {self.job.id}"
