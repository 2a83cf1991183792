"""Two checkpoints, tensor by tensor: a job does it, and its rows are shown as it writes them."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal

from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError, JobRequest, JobView
from shardyard_tui.screens.page import Page
from shardyard_tui.views.relations import COLUMNS, in_full, rank
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import RowList
from shardyard_tui.widgets.sheet import Sheet, bar, wrap

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)\.")


class Compare(Page):
    """See the module."""

    NAME = "Compare"
    EXPLAINS = "Are these the same weights? In any two containers, with no merge first. Names on one side only come as rows too."
    OFFERS = ("filter", "sort", "cancel", "copy", "copy-command", "back")
    ALSO = ("reverse",)

    def __init__(self, a: str, b: str, job: JobView | None = None) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.job_id = job.id if job is not None else ""
        self.job = job
        self.rows_so_far: list[Document] = []
        self._offset = 0
        self.result: Document | None = None
        self.problem = ""

    def body(self) -> ComposeResult:
        yield RowList(COLUMNS, lambda r: f"{r.get('name')} {r.get('relation')}", "Tensors", empty="Nothing compared yet.",
                      marks=False, id="rows")  # fmt: skip
        with Horizontal(id="below"):
            yield Sheet(id="said")
            yield Sheet(id="pair")

    @property
    def rows(self) -> RowList[Document]:
        return self.query_one("#rows", RowList)

    def on_mount(self) -> None:
        super().on_mount()
        self.rows.sort_by("r")
        self.rows.focus()
        self.begin()

    def where(self) -> Sequence[str]:
        return ("compare", f"A {os.path.basename(self.a)}", f"B {os.path.basename(self.b)}")

    @work(exclusive=True, group="begin")
    async def begin(self) -> None:
        """Start the job, unless one is shown."""
        if not self.job_id:
            self.job_id = await self.home.start_job(JobRequest("compare", (self.a, self.b))) or ""
            if not self.job_id:
                self.problem = "The comparison could not be started."
        self.jobs_changed()

    def jobs_changed(self) -> None:
        self.job = next((j for j in self.home.jobs if j.id == self.job_id), self.job)
        if self.job_id:
            self.take_rows()

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
        except EngineError as error:
            self.problem = error.message
        outcome = self.job.outcome if self.job is not None else None
        if outcome is not None and outcome.get("state") == "done" and self.result is None:
            events, _ = await self.home.engine.events(self.job_id, {})
            self.result = next((e for e in reversed(events) if e["event"] == "result"), outcome)
        self.show()

    def show(self) -> None:
        """Draw what there is."""
        alone = [
            {"name": name, "relation": f"only in {side.upper()}"}
            for side in ("a", "b")
            for name in (self.result or {}).get(f"only_in_{side}") or ()
        ]
        self.rows.set_rows([*self.rows_so_far, *alone], keep=True)
        counted = Counter(str(r.get("relation")) for r in self.rows.all)
        order = sorted(counted, key=lambda relation: rank({"relation": relation}))
        self.rows.title = "  ".join(f"{units.count(counted[r])} {r}" for r in order) or "Tensors"
        said = self.query_one("#said", Sheet)
        said.title = "Verdict" if self.result is not None else "Comparing"
        said.write(self._said, keep=True)
        self._tell()
        self.show_keys()

    @on(RowList.Moved, "#rows")
    def _tell(self) -> None:
        row = self.rows.current
        if row is not None:
            self.query_one("#pair", Sheet).write(lambda width: in_full(row, width))

    def _said(self, width: int) -> list[Line]:
        if self.problem:
            return wrap(self.problem, width, "error")
        if self.job is not None and self.job.state in ("failed", "lost", "cancelled"):
            return wrap(self.job.message or f"The comparison was {self.job.state}.", width, "error")
        lines: list[Line] = []
        if self.result is not None:
            style = "ok" if self.result.get("equal") else "warning"
            lines += [*wrap(str(self.result.get("verdict") or ""), width, style), ()]
            if self.result.get("prefix_hint"):
                lines += [*wrap(f"The names differ by a prefix: {self.result['prefix_hint']}", width), ()]
        else:
            progress: Any = (self.job.progress if self.job is not None else None) or {}
            done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
            share = done / total if total else 0.0
            lines += [[*bar(share, max(4, width - 6), "accent"), (f" {share:4.0%}", "strong")], ()]
        return [*lines, *self._layers(width)]

    def _layers(self, width: int) -> list[Line]:
        """The largest difference of each layer, as bars."""
        worst: dict[int, float] = {}
        for row in self.rows_so_far:
            found = _LAYER.search(str(row.get("name", "")))
            value = row.get("max_abs")
            if found and isinstance(value, (int, float)):
                layer = int(found[1])
                worst[layer] = max(worst.get(layer, 0.0), float(value))
        top = max(worst.values(), default=0.0)
        if not top:
            return []
        lines: list[Line] = [[("Largest difference by layer", "head")]]
        room = max(6, min(40, width - 20))
        return lines + [
            [(f"{layer:>4}  ", "dim"), *bar(worst[layer] / top, room, "accent"), (f"  {worst[layer]:.3g}", "dim")]
            for layer in sorted(worst)[:200]
        ]

    # Actions

    def refusal(self, action: str) -> str:
        if action == "cancel":
            return "" if self.job is not None and self.job.running else "it has ended."
        return ""

    def do_cancel(self) -> None:
        self.confirm("Stop comparing?", self._stop)

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

    def command(self) -> str:
        return f"shardyard compare {shlex.quote(self.a)} {shlex.quote(self.b)}"
