"""What can be done with a checkpoint, the same from every screen that shows one."""

from __future__ import annotations

import os

from textual import work

from shardyard_tui.facts import Document, JobRequest, Opened
from shardyard_tui.screens.page import Page

ACTS = ("merge", "merge-now", "export", "shrink", "compare", "health", "look", "verify", "stats", "tab-2", "tab-3", "tab-4")
WRITES = ("merge", "merge-now", "export", "shrink")


class CheckpointActions(Page):
    """Subclasses say which checkpoints are meant."""

    def targets(self) -> list[str]:
        """Paths of the checkpoints that actions act on: the marked ones, else the one at hand."""
        opened = self.target_at_hand()
        return [opened.path] if opened is not None else []

    def target_at_hand(self) -> Opened | None:
        """The opened checkpoint at hand."""
        return None

    def refusal(self, action: str) -> str:
        if action in WRITES and self.home.read_only:
            return "the app was started with --read-only."
        opened = self.target_at_hand()
        targets = self.targets()
        if action == "compare":
            return "" if targets else "put the cursor on a checkpoint."
        if action in ACTS and opened is None:
            return "put the cursor on a checkpoint." if not targets else "its headers are not read yet."
        if opened is None:
            return ""
        if action in ("merge", "merge-now", "export"):
            return opened.why_not_merge
        if action == "shrink" and not (opened.report.get("bytes") or {}).get("wasted"):
            return "no stored byte is unused here."
        return ""

    def _opened(self) -> Opened:
        opened = self.target_at_hand()
        assert opened is not None, "refusal() lets no action through without one"
        return opened

    def do_merge(self) -> None:
        self._plan("merge")

    def do_export(self) -> None:
        self._plan("export")

    def do_shrink(self) -> None:
        self._plan("shrink")

    def _plan(self, verb: str, *, at_once: bool = False) -> None:
        from shardyard_tui.screens.plan import Plan

        self.app.push_screen(Plan(verb, self._opened(), at_once=at_once))

    def do_merge_now(self) -> None:
        self._plan("merge", at_once=True)

    def do_health(self) -> None:
        from shardyard_tui.screens.health import Health

        self.app.push_screen(Health(self._opened()))

    def do_tab_2(self) -> None:
        from shardyard_tui.screens.tensors import Tensors

        self.app.push_screen(Tensors(self._opened()))

    def do_tab_3(self) -> None:
        self.do_health()

    def do_tab_4(self) -> None:
        from shardyard_tui.screens.files import Files

        self.app.push_screen(Files(self._opened()))

    def do_look(self) -> None:
        CheckpointActions.do_tab_2(self)

    def do_compare(self) -> None:
        """Two are needed: both marked, or one remembered and one at hand."""
        targets = self.targets()
        if len(targets) > 2:
            self.say(f"Two are compared, {len(targets)} are marked; U unmarks.", "warning")
            return
        if len(targets) < 2:
            before = self.home.compare_with
            if before is None or before == targets[0]:
                self.home.compare_with = targets[0]
                self.say(f"Now put the cursor on the one to compare {os.path.basename(targets[0])} with, and press c again.")
                return
            targets = [before, targets[0]]
        self.home.compare_with = None
        from shardyard_tui.screens.compare import Compare

        self.app.push_screen(Compare(targets[0], targets[1]))

    def do_disk(self) -> None:
        from shardyard_tui.screens.disk import Disk

        self.app.push_screen(Disk(self.folder_at_hand()))

    def folder_at_hand(self) -> str:
        """The folder whose disk usage `u` shows."""
        opened = self.target_at_hand()
        return opened.path if opened is not None else self.home.path

    def do_verify(self) -> None:
        self.verify_in_job()

    def do_stats(self) -> None:
        """Of the marked tensors where tensors are shown, else of all."""
        from shardyard_tui.screens.statistics import Statistics

        names = self.selected_names()
        self.app.push_screen(Statistics(self._opened().path, {"select": names} if names else {}))

    def selected_names(self) -> list[str]:
        """Names of marked tensors."""
        return []

    @work
    async def verify_in_job(self) -> None:
        """Read all the data of the one at hand; what is found joins its findings."""
        if await self.home.start_job(JobRequest("inspect-deep", (self._opened().path,))) is not None:
            self.say("Reading all its data. What is found joins its health (h); J follows it.")

    def deep_known(self, path: str, report: Document) -> None:
        """All the data of a checkpoint was read: there is a fuller report."""
