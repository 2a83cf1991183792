"""The jobs that run, in a line each, wherever work is done; nothing at all when there are none."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shardyard_tui import units
from shardyard_tui.facts import JobView
from shardyard_tui.glyphs import ERROR, OK
from shardyard_tui.widgets.panel import Line, Panel, Span, fit, width_of
from shardyard_tui.widgets.sheet import bar

FRESH_S = 120.0
"""How long a job that has ended stays in the strip."""
MOST = 3


class JobStrip(Panel):
    """One line a job, the running ones first."""

    DEFAULT_CSS = "JobStrip { height: auto; width: 1fr; } JobStrip.-idle { display: none; }"

    def __init__(self) -> None:
        super().__init__("Jobs", id="strip", classes="-idle")
        self.jobs: Sequence[JobView] = ()

    def show(self, jobs: Sequence[JobView], problem: str = "") -> None:
        """Running and just ended jobs of this list."""
        now = time.time()
        chosen = [j for j in jobs if j.running] + [j for j in jobs if not j.running and now - j.ended < FRESH_S]
        room = 1 if self.screen.size.height < 30 else MOST
        shown = chosen[:room]
        grown = len(shown) != len(self.jobs)
        changed = [i for i, job in enumerate(shown) if i >= len(self.jobs) or job != self.jobs[i]]
        self.jobs = shown
        more = len(chosen) - len(shown)
        self.note = (f"{more} more   " if more else "") + (problem or "J opens")
        if grown:
            self.set_class(not shown, "-idle")
            self.styles.height = len(shown) + 2 if shown else 0
            self.refresh(layout=True)
        else:
            self.refresh_rows(*changed)

    def row(self, y: int) -> Line:
        return job_line(self.jobs[y], self.inner_width) if y < len(self.jobs) else ()


def job_line(job: JobView, width: int) -> Line:
    """A job in one line: what, how far, how fast, how long still, how much memory."""
    name_room = max(16, min(44, width // 3))
    if job.state in ("done", "cancelled"):
        # Nothing but a short word follows: the name may have the rest.
        said = sum(width_of(text.rstrip()) for text, _ in ending(job, width)) + 1
        name_room = max(name_room, min(width_of(job.title), width - said - 1))
    spans: list[Span] = [(fit(job.title, name_room, cut="middle") + " ", "text")]
    left = width - name_room - 1
    if job.state == "queued":
        return [*spans, (fit(job.slurm or "starting", left), "dim")]
    if job.running:
        return [*spans, *_running(job, left)]
    return [*spans, *ending(job, left)]


def _running(job: JobView, width: int) -> list[Span]:
    progress = job.progress or {}
    done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
    share = done / total if total else 0.0
    if job.cancelling:
        tail = " stopping at the next unit"
    else:
        tail = f" {share:4.0%}  {units.size(float(progress.get('rate') or 0)):>9}/s"
        eta = progress.get("eta")
        tail += f"  {units.duration(float(eta)) if eta is not None else '-:--':>5} left"
        memory = progress.get("memory") or {}
        if width >= 70 and memory.get("anon") is not None:
            limit = f" of {units.size(memory['limit'])}" if memory.get("limit") else ""
            tail += f"  memory {units.size(memory['anon'])}{limit}"
    room = max(4, width - len(tail))
    return [*bar(share, min(room, 40), "accent"), (tail, "dim")]


def ending(job: JobView, width: int) -> list[Span]:
    """How it ended, in a phrase."""
    if job.state == "done":
        took = units.duration(job.ended - job.created) if job.ended else ""
        return [(f"{OK} ", "ok"), (fit(f"done in {took}", width - 2), "dim")]
    if job.state == "cancelled":
        return [(fit("cancelled; nothing was left under a final name", width), "warning")]
    if job.state == "lost":
        return [(f"{ERROR} ", "error"), (fit("its process is gone; r goes on from the last finished unit", width - 2), "text")]
    return [(f"{ERROR} ", "error"), (fit(job.message or "failed", width - 2), "text")]
