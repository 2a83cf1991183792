"""All jobs, running and finished; Enter opens one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from textual import on, work
from textual.app import ComposeResult

from shardyard_tui import units
from shardyard_tui.facts import EngineError, JobView
from shardyard_tui.screens.page import Page
from shardyard_tui.widgets.job_strip import ending
from shardyard_tui.widgets.row_list import Column, RowList

STATES = {
    "queued": "dim",
    "running": "accent",
    "done": "ok",
    "failed": "error",
    "cancelled": "warning",
    "lost": "error",
}
_LIVE_FIRST = {"running": 0, "queued": 1}


def _progress(job: JobView) -> str:
    if not job.running:
        return "".join(text for text, _ in ending(job, 200)).strip()
    if job.cancelling:
        return "stopping at the next unit"
    progress = job.progress or {}
    done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
    if not total:
        return job.slurm if job.slurm and job.state == "queued" else "starting"
    eta = progress.get("eta")
    left = f", {units.duration(float(eta))} left" if eta is not None else ""
    return f"{done / total:.0%} of {units.size(total)}, {units.size(float(progress.get('rate') or 0))}/s{left}"


COLUMNS: Sequence[Column[JobView]] = (
    Column("State", lambda j: j.state, 9, style=lambda j: STATES.get(j.state, "text"), sort="s"),
    Column("What", lambda j: j.title, cut="middle", sort="n"),
    Column("How it goes", _progress, style="dim"),
    Column("Started", lambda j: datetime.fromtimestamp(j.created).strftime("%m-%d %H:%M"), 11, least=90, style="dim", sort="t",
           key=lambda j: j.created, falling=True),
    Column("Host", lambda j: j.host or ("slurm" if j.slurm else ""), 12, least=120, style="dim"),
    Column("ID", lambda j: j.id, 19, least=140, style="faint"),
)  # fmt: skip


class Jobs(Page):
    """See the module."""

    NAME = "Jobs"
    EXPLAINS = "Jobs run in processes of their own: they go on when you quit or lose the line, and are found again here."
    OFFERS = ("open", "cancel", "resume", "filter", "clean", "sort", "copy", "back")
    ALSO = ("follow", "reverse", "copy-command")

    def body(self) -> ComposeResult:
        yield RowList(
            COLUMNS,
            lambda j: f"{j.state} {j.title} {j.id}",
            "Jobs",
            empty="No job yet: m on a checkpoint starts one.",
            marks=False,
            id="jobs",
        )

    @property
    def rows(self) -> RowList[JobView]:
        return self.query_one("#jobs", RowList)

    def on_mount(self) -> None:
        super().on_mount()
        self.rows.focus()
        self.jobs_changed()

    def where(self) -> Sequence[str]:
        return ("jobs",)

    def jobs_changed(self) -> None:
        jobs = sorted(self.home.jobs, key=lambda j: (_LIVE_FIRST.get(j.state, 2), -j.created))
        before = [self.rows.all[i].id for i in self.rows.shown]
        if [j.id for j in jobs] == before and self.rows.filter.empty and self.rows.sorted_by is None:
            changed = [n for n, i in enumerate(self.rows.shown) if self.rows.all[i] != jobs[n]]
            self.rows.all = jobs
            self.rows.refresh_rows(*(n - self.rows.top + self.rows.header_rows for n in changed))
        else:
            self.rows.set_rows(jobs, keep=True)
        if self.home.jobs_problem:
            self.say(self.home.jobs_problem, "error")
        self.show_keys()

    def refusal(self, action: str) -> str:
        if action in ("open", "cancel", "resume", "follow", "copy", "copy-command"):
            job = self.rows.current if self.is_mounted else None
            return job.why_not(action) if job is not None else "there is no job under the cursor."
        return ""

    @on(RowList.Chosen)
    def _chosen(self) -> None:
        self.do_follow()

    def do_follow(self) -> None:
        """The job's own screen; one whose answer is rows shows them."""
        job = self.rows.current
        if job is None:
            return
        if job.verb == "compare" and len(job.sources) == 2:
            self.home.show_compare(job.sources[0], job.sources[1], job)
        elif job.verb == "stats":
            self.home.show_statistics(job.sources[0], job.options, job)
        else:
            self.home.show_job(job)

    def do_cancel(self) -> None:
        job = self.rows.current
        if job is not None:
            self.confirm(f"Stop {job.title}? What it has done so far can be resumed.", lambda: self._change("cancel", job))

    def do_resume(self) -> None:
        job = self.rows.current
        if job is not None:
            self._change("resume", job)

    def do_clean(self) -> None:
        self.confirm("Forget all jobs that are done or cancelled? What they wrote stays.", lambda: self._change("clean"))

    @work
    async def _change(self, what: str, job: JobView | None = None) -> None:
        engine = self.home.engine
        try:
            if what == "clean":
                self.say(f"{units.plural(await engine.clean(), 'job')} forgotten.")
            elif job is not None and what == "cancel":
                await engine.cancel(job.id)
                self.say(f"{job.title} stops at the next unit.")
            elif job is not None:
                await engine.resume(job.id)
                self.say(f"{job.title} goes on.")
        except EngineError as error:
            self.say(error.message, "error")
        self.home.look_at_jobs()

    def copied(self) -> str:
        job = self.rows.current
        return (job.out or job.id) if job is not None else ""

    def command(self) -> str:
        job = self.rows.current
        return f"shardyard jobs show {job.id}" if job is not None else "shardyard jobs list"
