"""Driving the app without a terminal, on the made-up engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from textual.pilot import Pilot

from shardyard_tui.app import ShardyardApp
from shardyard_tui.config import Config
from support.fake_engine import ROOT, FakeEngine

Running = Pilot[int]


def held(engine: FakeEngine, method: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold every call of a method of the engine until the event is set."""
    may_go_on = asyncio.Event()
    call = getattr(engine, method)

    async def wait(*args: Any, **options: Any) -> Any:
        await may_go_on.wait()
        return await call(*args, **options)

    monkeypatch.setattr(engine, method, wait)
    return may_go_on


@contextlib.asynccontextmanager
async def running(
    engine: FakeEngine | None = None, *, size: tuple[int, int] = (80, 24), path: str = ROOT, **options: Any
) -> AsyncIterator[Driver]:
    """The app, started and at rest."""
    made = engine or FakeEngine()
    theme = options.pop("theme", "dark")
    app = ShardyardApp(made, path, config=Config(theme=theme, keys=options.pop("keys", {})), **options)
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, made)
        await driver.settle()
        yield driver


class Driver:
    """Keys in, pictures out."""

    def __init__(self, app: ShardyardApp, pilot: Running, engine: FakeEngine) -> None:
        self.app, self.pilot, self.engine = app, pilot, engine

    async def settle(self) -> None:
        """Wait until timers that wait for the cursor to rest have fired, and nothing works any more."""
        for _ in range(100):
            await self.pilot.pause()
            await asyncio.sleep(0.02)
            busy = [w for w in self.app.workers if w.is_running and w.group != "jobs"]
            if not busy and self._rested:
                break
            self._rested = not busy
        self._rested = False
        await asyncio.sleep(0.1)
        await self.pilot.pause()

    _rested = False

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, and wait for what they do."""
        for key in keys:
            await self.pilot.press(key)
        await self.settle()

    async def look_at_jobs(self) -> None:
        """Let the app notice what has become of the jobs."""
        self.app.look_at_jobs()
        await self.settle()
        await self.settle()

    @property
    def page(self) -> Any:
        """The screen in front."""
        return self.app.screen

    @property
    def rows(self) -> list[str]:
        """The screen as lines of text."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return [strip.text.rstrip() for strip in strips]

    @property
    def text(self) -> str:
        """The screen as text."""
        return "\n".join(self.rows)

    @property
    def words(self) -> str:
        """What the sheets say, without frames and line breaks."""
        from shardyard_tui.widgets.sheet import Sheet

        sheets = [sheet for sheet in self.app.screen.query(Sheet) if sheet.is_on_screen]
        return " ".join(" ".join("".join(text for text, _ in line) for sheet in sheets for line in sheet.lines).split())

    @property
    def last_line(self) -> str:
        """Keys, or a message."""
        return self.rows[-1]

    @property
    def said(self) -> str:
        """The message in the last line, whole."""
        from shardyard_tui.widgets.chrome import KeyLine

        return str(self.app.screen.query_one(KeyLine).said)
