"""One letter, one meaning; help and palette made from the bindings; the user's own keys; a command for every action."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec

import pytest

from shardyard_tui.keys import ACTIONS, EVERYWHERE, MOVES
from shardyard_tui.screens.browser import Browser
from shardyard_tui.screens.compare import Compare
from shardyard_tui.screens.disk import Disk
from shardyard_tui.screens.doctor import Doctor
from shardyard_tui.screens.files import Files
from shardyard_tui.screens.health import Health
from shardyard_tui.screens.help import Help
from shardyard_tui.screens.job import JobScreen
from shardyard_tui.screens.jobs import Jobs
from shardyard_tui.screens.page import Page
from shardyard_tui.screens.palette import Palette
from shardyard_tui.screens.plan import Plan
from shardyard_tui.screens.statistics import Statistics
from shardyard_tui.screens.tensor import TensorScreen
from shardyard_tui.screens.tensors import Tensors
from support.pilot import running

PAGES: tuple[type[Page], ...] = (
    *(Browser, Tensors, TensorScreen, Health, Files, Plan, Jobs, JobScreen, Compare, Statistics, Disk, Doctor, Help, Palette),
)


@lru_cache
def verbs() -> dict[str, argparse.ArgumentParser]:
    """The command line's verbs."""
    from shardyard import cli

    load = [verb for verb in cli.VERBS if find_spec(f"shardyard.cli.{verb}") is not None]
    (action,) = (a for a in cli.parser(load=load)._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name
                yield from options(inner)
        elif action.choices:
            yield from map(str, action.choices)


VIEW_ONLY = {
    *MOVES,
    *("open", "expand", "collapse", "parent", "next-pane", "previous-pane", "zoom", "filter", "next-match", "previous-match"),
    *("sort", "reverse", "fold", "hidden", "mark", "mark-range", "mark-all", "unmark", "copy", "copy-command", "scale"),
    *("next-value", "previous-value", "palette", "theme", "redraw", "suspend", "back", "quit"),
}
"""Actions that only move, mark, arrange or copy what is on the screen."""


@pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
def test_every_function_has_a_command_that_does_the_same(action) -> None:  # type: ignore[no-untyped-def]
    if action.id in VIEW_ONLY:
        assert not action.command
        return
    program, *words = shlex.split(action.command)
    assert program == "shardyard"
    if words == ["--help"]:
        return
    parser = verbs()[words[0]]
    assert set(words[1:]) <= set(options(parser)), f"{action.command} is no command"


FORM = {"start", "next-value", "previous-value"}
"""What keys do in a form; it has options where other screens have rows."""


def test_no_two_actions_share_a_key_but_those_of_forms() -> None:
    for actions in (set(ACTIONS) - FORM, FORM):
        keys: dict[str, str] = {}
        for name in actions:
            for key in ACTIONS[name].keys.split(","):
                assert key not in keys, f"{key}: {keys.get(key)} and {name}"
                keys[key] = name


@pytest.mark.parametrize("key", ["l", "right", "space", "h", "left"])
async def test_left_and_right_change_an_option_as_arrows_and_as_letters(key: str) -> None:
    async with running() as it:
        await it.press("j", "m", "j", key)
        assert it.page.values["dtype"] == ("float32" if key in ("l", "right", "space") else "float16")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_screens_offer_only_known_actions_that_they_can_do(page: type[Page]) -> None:
    from shardyard_tui.app import ShardyardApp

    for name in (*page.OFFERS, *page.ALSO):
        method = "do_" + name.replace("-", "_")
        widgets_do = name in ("open", "mark", "follow") or hasattr(page, method)
        assert name in ACTIONS
        assert widgets_do or hasattr(ShardyardApp, method), f"{page.__name__} offers {name} but cannot do it"
    assert page.NAME


def test_every_key_that_works_everywhere_is_done_by_the_app() -> None:
    from shardyard_tui.app import ShardyardApp

    for name in EVERYWHERE:
        assert hasattr(ShardyardApp, "do_" + name) or name == "back"


async def test_help_names_every_key_of_the_screen_and_why_some_are_off() -> None:
    async with running(size=(140, 40)) as it:
        await it.press("question_mark")
        assert it.page.NAME == "Help"
        offered = {action.id for actions in it.page.offered().values() for action in actions}
        assert set(Browser.OFFERS) | set(Browser.ALSO) | set(EVERYWHERE) | {"down", "mark-range", "expand"} <= offered
        assert (
            "m M e h i x V B 2 3 4 off: put the cursor on a checkpoint." in it.words
            or "off: put the cursor on a checkpoint." in it.words
        )
        await it.press("question_mark")
        assert it.page.NAME == "Checkpoints"


async def test_any_action_runs_by_its_name() -> None:
    async with running() as it:
        await it.press("j", "colon", *"disk", "enter")
        await it.settle()
        assert it.page.NAME == "Disk"


async def test_the_palette_shows_what_is_off_and_why() -> None:
    async with running(size=(120, 30)) as it:
        await it.press("colon", *"shrink")
        assert "put the cursor on a checkpoint." in it.text
        await it.press("escape")
        await it.settle()
        assert it.page.NAME == "Checkpoints"


async def test_letters_typed_into_a_filter_are_text_not_keys() -> None:
    async with running() as it:
        await it.press("slash", *"q", *"mq")
        assert it.page.NAME == "Checkpoints"
        assert it.page.browse.filter.source == "qmq"
        await it.press("escape")
        assert it.page.browse.filter.empty


async def test_esc_never_leaves_the_program() -> None:
    async with running() as it:
        await it.press(*["escape"] * 5)
        assert it.page.NAME == "Checkpoints"
        assert it.app.is_running


async def test_keys_can_be_mapped_anew() -> None:
    async with running(keys={"merge": "f5", "down": "t,down"}) as it:
        await it.press("t", "f5")
        assert it.page.NAME == "Plan"


async def test_control_c_stops_first_and_quits_the_second_time() -> None:
    async with running() as it:
        await it.press("ctrl+c")
        assert it.said == "Ctrl-C again quits; jobs go on."
        await it.press("ctrl+c")
    assert it.app.return_value == 130


async def test_colours_change_to_light_and_to_the_terminals_own() -> None:
    async with running() as it:
        seen = [it.app.look_name]
        for _ in range(3):
            await it.press("T")
            seen.append(it.app.look_name)
        assert seen == ["dark", "light", "terminal", "dark"]


async def test_what_is_copied_is_shown_and_left_in_a_file_of_ones_own(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with running() as it:
        await it.press("j", "y")
        assert it.said == "Copied: /scratch/anna/runs/llama-sft/checkpoint-200"
    clip = tmp_path / "shardyard.clip"
    assert clip.read_text() == "/scratch/anna/runs/llama-sft/checkpoint-200"
    assert clip.stat().st_mode & 0o777 == 0o600
