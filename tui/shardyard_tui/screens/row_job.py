"""A job whose answer is rows, shown as it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal

from shardyard_tui.facts import Document, EngineError, JobRequest, JobView
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column, RowList
from shardyard_tui.widgets.sheet import Sheet, bar, wrap


class RowJob(Page):
    """Subclasses say what the rows look like; the job is started when there is none to show."""

    OFFERS = ("filter", "sort", "cancel", "copy", "copy-command", "back")
    ALSO = ("reverse",)
    COLUMNS: Sequence[Column[Document]] = ()
    FIRST_SORT = ""

    def __init__(self, request: JobRequest, job: JobView | None = None) -> None:
        super().__init__()
        self.request = request
        self.job = job
        self.job_id = job.id if job is not None else ""
        self.rows_so_far: list[Document] = []
        self.result: Document | None = None
        self.problem = ""
        self._offset = 0

    # What subclasses give

    def more_rows(self) -> list[Document]:
        """Rows that only the result has."""
        return []

    def sum_up(self, rows: Sequence[Document]) -> str:
        """What the rows add up to, for their frame."""
        return ""

    def said(self, width: int) -> list[Line]:
        """What the answer is, once it is there."""
        return []

    def below(self, width: int) -> list[Line]:
        """What can be said at any time."""
        return []

    def in_full(self, row: Document, width: int) -> list[Line]:
        """One row."""
        return []

    # The screen

    def body(self) -> ComposeResult:
        yield RowList(
            self.COLUMNS,
            lambda r: f"{r.get('name')} {r.get('relation', '')}",
            "Tensors",
            empty="Nothing yet.",
            marks=False,
            id="rows",
        )
        with Horizontal(id="below"):
            yield Sheet(id="said")
            yield Sheet(id="pair")

    @property
    def rows(self) -> RowList[Document]:
        return self.query_one("#rows", RowList)

    def on_mount(self) -> None:
        super().on_mount()
        if self.FIRST_SORT:
            self.rows.sort_by(self.FIRST_SORT)
        self.rows.focus()
        self.begin()

    @work(exclusive=True, group="begin")
    async def begin(self) -> None:
        """Start the job, unless one is shown."""
        if not self.job_id:
            self.job_id = await self.home.start_job(self.request) or ""
            if not self.job_id:
                self.problem = "The job could not be started."
        self.jobs_changed()

    def jobs_changed(self) -> None:
        self.job = next((j for j in self.home.jobs if j.id == self.job_id), self.job)
        if self.job_id:
            self.take_rows()
        else:
            self.show()

    @work(exclusive=True, group="rows")
    async def take_rows(self) -> None:
        """Read the rows that are new, and the result once it is there."""
        try:
            while True:
                new, offset = await self.home.engine.rows(self.job_id, self._offset)
                if offset == self._offset:
                    break
                self._offset = offset
                self.rows_so_far += new
            outcome = self.job.outcome if self.job is not None else None
            if outcome is not None and outcome.get("state") == "done" and self.result is None:
                events, _ = await self.home.engine.events(self.job_id, {})
                self.result = next((e for e in reversed(events) if e["event"] == "result"), outcome)
        except EngineError as error:
            self.problem = error.message
        self.show()

    def show(self) -> None:
        """Draw what there is."""
        rows = [*self.rows_so_far, *self.more_rows()]
        if len(rows) != len(self.rows.all):
            self.rows.set_rows(rows, keep=True)
        if self.problem or (self.job is not None and not self.job.running):
            self.rows.empty = "No rows: it ended before any tensor was done." if self.result is None else "No rows."
            self.rows.refresh_inside()
        self.rows.title = self.sum_up(rows) or "Tensors"
        said = self.query_one("#said", Sheet)
        said.write(self._said, keep=True)
        self._tell()
        self.show_keys()

    @on(RowList.Moved, "#rows")
    def _tell(self) -> None:
        row = self.rows.current
        if row is not None:
            self.query_one("#pair", Sheet).write(lambda width: self.in_full(row, width))

    def _said(self, width: int) -> list[Line]:
        if self.problem:
            return wrap(self.problem, width, "error")
        if self.job is not None and self.job.state in ("failed", "lost", "cancelled"):
            return wrap(self.job.message or f"The job was {self.job.state}.", width, "error")
        if self.result is not None:
            return [*self.said(width), *self.below(width)]
        progress: Any = (self.job.progress if self.job is not None else None) or {}
        done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
        share = done / total if total else 0.0
        return [[*bar(share, max(4, width - 6), "accent"), (f" {share:4.0%}", "strong")], (), *self.below(width)]

    # Actions

    def refusal(self, action: str) -> str:
        if action == "cancel":
            return "" if self.job is not None and self.job.running else "it has ended."
        return ""

    def do_cancel(self) -> None:
        self.confirm("Stop this job?", self._stop)

    @work
    async def _stop(self) -> None:
        try:
            await self.home.engine.cancel(self.job_id)
        except EngineError as error:
            self.say(error.message, "error")
        self.home.look_at_jobs()

    def copied(self) -> str:
        row = self.rows.current
        return str(row.get("name", "")) if row is not None else ""
