"""Keys that come faster than screens: typed ahead, pasted, or let go by a slow line all at once."""

from __future__ import annotations

import random

import pytest
from textual import events
from textual.keys import _character_to_key

from support.fake_engine import FakeEngine
from support.pilot import Driver, running

SPECIAL = [
    "enter",
    "escape",
    "tab",
    "shift+tab",
    "up",
    "down",
    "left",
    "right",
    "pagedown",
    "ctrl+d",
    "ctrl+u",
    "home",
    "end",
    "backspace",
]
LETTERS = "jkgGhluinNsSfbBmMexcVyYJFXrCDTRvU*.+-/:?1234 "


def burst(it: Driver, *keys: str) -> None:
    """Keys all at once."""
    for key in keys:
        single = len(key) == 1
        it.app.post_message(events.Key(_character_to_key(key) if single else key, key if single else None))


async def test_what_is_typed_right_after_a_slash_is_text() -> None:
    async with running() as it:
        burst(it, "/", *"mexq", "enter")
        await it.settle()
        assert it.page.NAME == "Checkpoints"
        assert it.page.browse.filter.source == "mexq"
        assert not it.engine.started


async def test_enter_right_after_m_starts_no_plan_that_nobody_has_seen() -> None:
    async with running() as it:
        await it.press("j")
        burst(it, "m", "enter")
        await it.settle()
        assert it.page.NAME == "Plan"
        assert not it.engine.started


async def test_keys_typed_ahead_of_a_screen_reach_it() -> None:
    async with running() as it:
        await it.press("j")
        burst(it, "i", "j", "j", "j", "/", *"q_proj", "enter")
        await it.settle()
        assert it.page.NAME == "Tensors"
        assert it.page.rows.filter.source == "q_proj"


async def test_a_pasted_path_is_typed_up_to_its_line_end() -> None:
    async with running() as it:
        await it.press("j", "m", "space", "ctrl+u")
        it.app.post_message(events.Paste("/data/out\nrm -rf x\n"))
        await it.settle()
        await it.press("enter")
        assert it.page.values["out"] == "/data/out"


async def test_the_line_can_be_edited() -> None:
    async with running() as it:
        await it.press(
            "slash", *"actor hf", "ctrl+w", "left", "left", "backspace", "delete", "ctrl+e", "x", "home", "y", "ctrl+k", "z"
        )
        assert it.page.browse.filter.source == "yz"
        await it.press("escape")
        assert it.page.browse.filter.source == ""


@pytest.mark.parametrize("seed", range(6))
async def test_any_keys_in_any_order_at_any_speed_leave_it_standing(seed: int) -> None:
    rng = random.Random(seed)
    async with running(FakeEngine(), size=rng.choice([(80, 24), (120, 36)])) as it:
        for _ in range(25):
            keys = [rng.choice(SPECIAL) if rng.random() < 0.25 else rng.choice(LETTERS) for _ in range(rng.randrange(1, 7))]
            burst(it, *keys)
            if rng.random() < 0.5:
                await it.pilot.pause()
        await it.settle()
        assert it.app.is_running
        for _ in range(12):
            await it.pilot.press("escape")
        await it.settle()
        assert it.page.NAME == "Checkpoints"
