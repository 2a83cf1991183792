"""Where the bytes are, by role, and what could be given back: each checkpoint below a folder, the largest first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from textual import on, work
from textual.app import ComposeResult

from shardyard.text import printable
from shardyard_tui import units
from shardyard_tui.facts import EngineError, Found, Opened
from shardyard_tui.glyphs import ERROR
from shardyard_tui.screens.checkpoint_actions import CheckpointActions
from shardyard_tui.summary import where_the_bytes_are
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column, RowList
from shardyard_tui.widgets.sheet import Sheet, fact, wrap
from shardyard_tui.words import ROLES, short_kind


@dataclass(frozen=True, slots=True)
class Share:
    """One checkpoint's bytes."""

    name: str
    path: str
    nbytes: int
    kind: str
    run: str
    """The folder that holds its siblings."""
    opened: Opened | None = None
    problem: str = ""
    mtime: float = 0.0

    @property
    def usage(self) -> Mapping[str, int]:
        return self.opened.report.get("bytes") or {} if self.opened is not None else {}

    @property
    def wasted(self) -> int:
        return int(self.usage.get("wasted") or 0)


class Disk(CheckpointActions):
    """See the module."""

    NAME = "Disk"
    EXPLAINS = (
        "Bytes by role. What no tensor uses, x gives back. Optimizer states are only needed to go on training; "
        "nothing is deleted here."
    )
    OFFERS = ("shrink", "merge", "sort", "filter", "health", "look", "reread", "copy", "back")
    ALSO = ("export", "merge-now", "open", "reverse", "copy-command", "mark", "compare", "tab-3", "tab-4")

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.shares: dict[str, Share] = {}
        self.unread: list[str] = []
        """Why folders could not be looked at."""
        self.looking = ""

    def body(self) -> ComposeResult:
        columns: Sequence[Column[Share]] = (
            Column("Size", lambda s: units.size(s.nbytes), 9, right=True, sort="s", key=lambda s: s.nbytes, falling=True),
            Column("", self._bar, 16, least=76, style="accent"),
            Column("What", lambda s: s.name + (f"  {ERROR}" if s.problem else ""), cut="left", sort="n",
                   style=lambda s: "error" if s.problem else "text"),
            Column("Kind", lambda s: short_kind(s.kind), 9, style="dim", sort="k"),
            Column("Weights", lambda s: self._part(s, "weights", "masters"), 9, right=True, least=104, style="dim"),
            Column("Optimizer", lambda s: self._part(s, "optimizer"), 9, right=True, least=90, style="dim", sort="o",
                   key=lambda s: int(s.usage.get("optimizer") or 0), falling=True),
            Column("Wasted", lambda s: units.size(s.wasted) if s.wasted else "", 9, right=True, style="wasted", sort="w",
                   key=lambda s: s.wasted, falling=True),
        )  # fmt: skip
        yield RowList(columns, lambda s: f"{s.name} {s.kind}", "Disk", empty="Looking.", id="rows")
        yield Sheet("Where the bytes are", id="below")

    @property
    def rows(self) -> RowList[Share]:
        return self.query_one("#rows", RowList)

    def _bar(self, share: Share) -> str:
        largest = max((s.nbytes for s in self.shares.values()), default=1) or 1
        return "━" * max(1, round(share.nbytes / largest * 16))

    def _part(self, share: Share, *roles: str) -> str:
        amount = sum(int(share.usage.get(role) or 0) for role in roles)
        return units.size(amount) if amount else ""

    def on_mount(self) -> None:
        super().on_mount()
        self.rows.sort_by("s")
        self.rows.focus()
        self.scan()

    def where(self) -> Sequence[str]:
        return (*[printable(p) for p in self.folder.strip("/").split("/")[-3:]], "disk")

    @work(exclusive=True, group="scan")
    async def scan(self) -> None:
        """Find, then open one after the other; Esc stops with what there is."""
        self.looking = "looking for checkpoints"
        self.shares = {}
        self.unread = []
        self.show()
        try:
            async for item in self.home.engine.scan(self.folder):
                if isinstance(item, Found):
                    below = os.path.relpath(item.path, self.folder)
                    name = printable(below if below != "." else os.path.basename(item.path))
                    run = os.path.dirname(item.path)
                    self.shares[item.path] = Share(name, item.path, item.nbytes, item.kind, run, mtime=item.mtime)
                elif item.problem:
                    self.unread.append(item.problem)
            self.show()
            for number, share in enumerate(sorted(self.shares.values(), key=lambda s: -s.nbytes), 1):
                self.looking = f"reading headers, {number} of {len(self.shares)}"
                await self._open(share)
                self.show()
        except EngineError as error:
            self.say(error.message, "error")
        finally:
            self.looking = ""
        self.rows.empty = "No checkpoint lies here."
        self.show()

    async def _open(self, share: Share) -> None:
        try:
            opened = await self.home.engine.open(share.path, lane="scan")
        except EngineError as error:
            self.shares[share.path] = replace(share, problem=error.message)
            return
        self.shares[share.path] = replace(
            share,
            nbytes=opened.nbytes or share.nbytes,
            kind=str(opened.report.get("kind") or share.kind),
            opened=opened,
            mtime=opened.stamp or share.mtime,
        )

    def show(self) -> None:
        """Draw what there is."""
        self.rows.set_rows(list(self.shares.values()), keep=True)
        total = sum(s.nbytes for s in self.shares.values())
        self.rows.title = f"{units.size(total)} in {units.plural(len(self.shares), 'checkpoint')}" + (
            f", {self.looking} (Esc stops)" if self.looking else ""
        )
        self._tell()

    @on(RowList.Moved, "#rows")
    def _tell(self) -> None:
        self.query_one("#below", Sheet).write(self._lines, keep=True)
        self.show_keys()

    def _lines(self, width: int) -> list[Line]:
        usage = {role: sum(int(s.usage.get(role) or 0) for s in self.shares.values()) for role in ROLES}
        lines = [*where_the_bytes_are(usage, width), ()]
        if usage["wasted"]:
            text = f"{units.size(usage['wasted'])} that no tensor uses: x on the rows with a figure under Wasted."
            lines += fact("Give back", text, width)
        older, count = self.older_optimizers()
        if older:
            text = (
                f"{units.size(older)} are optimizer states of {units.plural(count, 'save')} that a newer one in the same folder "
                "follows. They are only needed to go on from there: merge what you want to keep (m), then delete those "
                "folders yourself."
            )
            lines += fact("Could go", text, width)
        for problem in self.unread[:3]:
            lines += fact("Not counted", problem, width, "warning")
        if len(self.unread) > 3:
            lines += fact("", f"and {units.count(len(self.unread) - 3)} more folders", width, "warning")
        if not usage["wasted"] and not older and not self.looking:
            lines += wrap("Nothing here is stored in vain.", width, "ok")
        share = self.rows.current
        if share is not None:
            lines += [(), [(share.name, "head")]]
            if share.problem:
                lines += wrap(share.problem, width, "error")
            elif len(self.shares) > 1:
                lines += where_the_bytes_are(share.usage, width)
            if share.opened is not None:
                lines += wrap(str(share.opened.report.get("verdict") or ""), width, "dim")
        return lines

    def older_optimizers(self) -> tuple[int, int]:
        """Bytes of optimizer states in saves that are not the newest of their folder, and of how many saves."""
        # Only a save that training can go on from makes an older one needless: a merged output beside it does not.
        saves = [s for s in self.shares.values() if s.usage.get("optimizer")]
        newest: dict[str, Share] = {}
        for share in saves:
            if share.run not in newest or share.mtime > newest[share.run].mtime:
                newest[share.run] = share
        old = [s for s in saves if newest[s.run] is not s]
        return sum(int(s.usage["optimizer"]) for s in old), len(old)

    # Actions

    def targets(self) -> list[str]:
        return [share.path for share in self.rows.chosen]

    def target_at_hand(self) -> Opened | None:
        share = self.rows.current if self.is_mounted else None
        return share.opened if share is not None else None

    def known(self, path: str) -> Opened | None:
        share = self.shares.get(path)
        if share is None:
            return None
        return Opened.unreadable(path, share.problem) if share.problem else share.opened

    @on(RowList.Chosen, "#rows")
    def _chosen(self) -> None:
        if self.target_at_hand() is not None:
            self.do_look()

    def do_reread(self) -> None:
        self.scan()

    def do_back(self) -> None:
        if self.looking:
            self.workers.cancel_group(self, "scan")
            self.looking = ""
            self.say("Stopped; totals are of what was read so far. R looks again.")
            self.show()
        else:
            super().do_back()

    def copied(self) -> str:
        share = self.rows.current
        return share.path if share is not None else self.folder

    def command(self) -> str:
        return f"shardyard inspect --json {shlex.quote(self.folder)}"
