"""Every screen, opened from one place; each is loaded when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardyard_tui.facts import Intent, JobView, Opened
from shardyard_tui.screens.page import Page
from shardyard_tui.textual_compat import Shell


class Doors(Shell):
    """The app's way from screen to screen: screens name each other through it, and import none of each other."""

    @property
    def page(self) -> Page | None:
        """The screen in front, if it is one of ours."""
        return self.screen if isinstance(self.screen, Page) else None

    def show_tensors(self, opened: Opened) -> None:
        from shardyard_tui.screens.tensors import Tensors

        self.push_screen(Tensors(opened))

    def show_tensor(self, opened: Opened, row: int) -> None:
        from shardyard_tui.screens.tensor import TensorScreen

        self.push_screen(TensorScreen(opened, row))

    def show_health(self, opened: Opened) -> None:
        from shardyard_tui.screens.health import Health

        self.push_screen(Health(opened))

    def show_files(self, opened: Opened) -> None:
        from shardyard_tui.screens.files import Files

        self.push_screen(Files(opened))

    def show_disk(self, folder: str) -> None:
        from shardyard_tui.screens.disk import Disk

        self.push_screen(Disk(folder))

    def show_plans(self, intents: Sequence[Intent], *, at_once: bool = False) -> None:
        from shardyard_tui.screens.plan import Plan

        self.push_screen(Plan(intents, at_once=at_once))

    def show_compare(self, a: str, b: str, job: JobView | None = None) -> None:
        from shardyard_tui.screens.compare import Compare

        self.push_screen(Compare(a, b, job))

    def show_statistics(self, path: str, options: Mapping[str, Any], job: JobView | None = None) -> None:
        from shardyard_tui.screens.statistics import Statistics

        self.push_screen(Statistics(path, options, job))

    def show_job(self, job: JobView) -> None:
        from shardyard_tui.screens.job import JobScreen

        self.push_screen(JobScreen(job))

    # Those with a key of their own, wherever one is

    def do_jobs(self) -> None:
        from shardyard_tui.screens.jobs import Jobs

        if not isinstance(self.screen, Jobs):
            self.push_screen(Jobs())

    def do_doctor(self) -> None:
        from shardyard_tui.screens.doctor import Doctor

        if not isinstance(self.screen, Doctor):
            self.push_screen(Doctor())

    def do_palette(self) -> None:
        from shardyard_tui.screens.palette import Palette

        if self.page is not None and not isinstance(self.page, Palette):
            self.push_screen(Palette(self.page))

    def do_help(self) -> None:
        from shardyard_tui.screens.help import Help

        if self.page is not None and not isinstance(self.page, Help):
            self.push_screen(Help(self.page))
