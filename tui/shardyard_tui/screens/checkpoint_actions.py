"""What can be done with a checkpoint, the same from every screen that shows one."""

from __future__ import annotations

import os

from textual import work

from shardyard_tui.facts import Intent, JobRequest, Opened
from shardyard_tui.screens.page import Page

ACTS = ("health", "look", "stats", "tab-2", "tab-3", "tab-4")
"""What opens a screen: on the one at hand, whatever is marked."""
WRITES = ("merge", "merge-now", "export", "shrink")
NO_CHECKPOINT = "put the cursor on a checkpoint."
NOT_READ = "its headers are not read yet."


class CheckpointActions(Page):
    """Subclasses say which checkpoints are meant."""

    def targets(self) -> list[str]:
        """Paths of the checkpoints that actions act on: the marked ones, else the one at hand."""
        opened = self.target_at_hand()
        return [opened.path] if opened is not None else []

    def target_at_hand(self) -> Opened | None:
        """The opened checkpoint at hand."""
        return None

    def known(self, path: str) -> Opened | None:
        """A checkpoint of `targets`, if its headers were read; its tensors may be left out."""
        opened = self.target_at_hand()
        return opened if opened is not None and opened.path == path else None

    def refusal(self, action: str) -> str:
        if action in WRITES:
            return "the app was started with --read-only." if self.home.read_only else self._why_not_written(action)
        if action in ("compare", "verify"):
            return "" if self.targets() else NO_CHECKPOINT
        if action in ACTS and self.target_at_hand() is None:
            return NO_CHECKPOINT if not self.targets() else NOT_READ
        return ""

    def _why_not_written(self, action: str) -> str:
        """Of several, one that can is enough; parts of one checkpoint can together what none can alone."""
        targets = self.targets()
        if not targets:
            return NO_CHECKPOINT
        known = [opened for path in targets if (opened := self.known(path)) is not None]
        unread = len(targets) - len(known)
        if unread:
            return NOT_READ if len(targets) == 1 else f"of the marked, {unread} are not read yet."
        reasons = [why_not(action, opened) for opened in known]
        if len(known) == 1:
            return reasons[0]
        if action == "shrink" and all(reasons):
            return "no stored byte is unused in what is marked."
        return ""

    def _opened(self) -> Opened:
        opened = self.target_at_hand()
        assert opened is not None, "refusal() lets no action through without one"
        return opened

    def do_merge(self) -> None:
        self._plan("merge")

    def do_merge_now(self) -> None:
        self._plan("merge", at_once=True)

    def do_export(self) -> None:
        self._plan("export")

    def do_shrink(self) -> None:
        self._plan("shrink")

    def _plan(self, verb: str, *, at_once: bool = False) -> None:
        """A plan for each that is meant, one after the other; for those of which none is whole, one for all together."""
        known = [opened for path in self.targets() if (opened := self.known(path)) is not None]
        reasons = {opened.path: why_not(verb, opened) for opened in known}
        able = [opened for opened in known if not reasons[opened.path]]
        if not able:
            self.home.show_plans([Intent(verb, known[0], tuple(opened.path for opened in known[1:]))], at_once=at_once)
            return
        select = tuple(self.selected_names()) if verb != "shrink" else ()
        self.home.show_plans([Intent(verb, opened, select=select) for opened in able], at_once=at_once)
        left_out = [f"{os.path.basename(path)} is left out: {why}" for path, why in reasons.items() if why]
        if left_out:
            self.home.say("  ".join(left_out), "warning")

    def do_health(self) -> None:
        self.home.show_health(self._opened())

    def do_tab_2(self) -> None:
        self.home.show_tensors(self._opened())

    def do_tab_3(self) -> None:
        self.do_health()

    def do_tab_4(self) -> None:
        self.home.show_files(self._opened())

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
        self.home.show_compare(targets[0], targets[1])

    def do_disk(self) -> None:
        self.home.show_disk(self.folder_at_hand())

    def folder_at_hand(self) -> str:
        """The folder whose disk usage `u` shows."""
        opened = self.target_at_hand()
        return opened.path if opened is not None else self.home.path

    def do_verify(self) -> None:
        self.verify_in_job()

    def do_stats(self) -> None:
        """Of the marked tensors where tensors are shown, else of all."""
        names = self.selected_names()
        self.home.show_statistics(self._opened().path, {"select": names} if names else {})

    def selected_names(self) -> list[str]:
        """Names of marked tensors."""
        return []

    @work
    async def verify_in_job(self) -> None:
        """Read all the data of what is meant, a job for each; what is found joins its findings."""
        targets = self.targets()
        for path in targets:
            if await self.home.start_job(JobRequest("inspect-deep", (path,))) is None:
                return
        of = "its data" if len(targets) == 1 else f"the data of {len(targets)}"
        self.say(f"Reading all {of}. What is found joins the health (h); J follows it.")


def why_not(verb: str, opened: Opened) -> str:
    """Why this one cannot be merged, exported or shrunk, one sentence; empty when it can."""
    if verb != "shrink" or opened.state == "unreadable":
        return opened.why_not_merge
    return "" if (opened.report.get("bytes") or {}).get("wasted") else "no stored byte is unused here."
