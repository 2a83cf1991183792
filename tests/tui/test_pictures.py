"""Ten screens at three sizes, as text that reads well in a diff and as the SVG that a person sees.

UPDATE_PICTURES=1 writes them anew: look at them before they are committed.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from shardyard_tui.facts import JobRequest
from support.fake_engine import ROOT, FakeEngine, recording, relation
from support.pilot import Driver, running

TOUR = Path(__file__).parents[2] / "screenshots"
PICTURES = Path(__file__).parent / "pictures"
SIZES = ((80, 24), (100, 30), (140, 40))
UPDATE = os.environ.get("UPDATE_PICTURES") == "1"
DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}
"""Other versions draw other SVGs of the same text."""

SCREENS: dict[str, Sequence[str]] = {
    "browser": ("j",),
    "tensors": ("j", "i"),
    "tensor": ("j", "i", "j", "i"),
    "health": ("j", "j", "j", "j", "h"),
    "files": ("j", "j", "j", "j", "j", "i", "4", "j"),
    "plan": ("j", "m", "j", "l", "l"),
    "job": ("J", "enter"),
    "compare": ("j", "c", "j", "c"),
    "disk": ("u",),
    "help": ("question_mark",),
}


def test_the_tour_leads_from_the_tree_to_a_finished_merge() -> None:
    header, *pieces = map(json.loads, (TOUR / "tour.cast").read_text().splitlines())
    assert (header["version"], header["width"], header["height"]) == (2, 100, 30)
    moments = [moment for moment, _, _ in pieces]
    assert moments == sorted(moments) and 20 < moments[-1] < 90
    assert {kind for _, kind, _ in pieces} == {"o"}
    shown = "".join(text for _, _, text in pieces)
    at = -1
    for stop in ("7 checkpoints", "Why it matters", "Dtype", "Distribution", "nothing is written yet", "done in"):
        at = shown.find(stop, at + 1)
        assert at >= 0, f"{stop!r} does not come, or too early"


async def open_screen(name: str, size: tuple[int, int]) -> tuple[str, str]:
    """The screen's text and SVG."""
    engine = FakeEngine()
    job = await engine.start(JobRequest("merge", (f"{ROOT}/llama-sft/checkpoint-200",), f"{ROOT}/hf-200"))
    engine.change(job, host="login3", pid=41822, folder=f"/home/anna/.local/state/shardyard/jobs/{job}")
    engine.replay(job, recording("merge")[:50])
    engine.started.clear()
    async with running(engine, size=size) as it:
        await it.press(*SCREENS[name])
        if name == "compare":
            await compare(it)
        return it.text + "\n", it.app.export_screenshot(title="shardyard", simplify=True)


async def compare(it: Driver) -> None:
    """Give the comparison its rows and its end."""
    job = it.engine.views[0].id
    it.engine.compared[job] = [
        relation("model.layers.0.mlp.up_proj.weight", "rounded-bfloat16", max_abs=0.00098, differing=11_010_048),
        relation("model.layers.1.mlp.up_proj.weight", "different", max_abs=0.53, differing=11_534_336),
        relation("model.layers.2.mlp.up_proj.weight", "rounded-bfloat16", max_abs=0.00195, differing=11_010_048),
        relation("model.norm.weight", "identical"),
    ]
    verdict = "Not the same weights: 1 of 4 tensors differs beyond rounding."
    it.engine.replay(
        job, [{"event": "result", "time": 2.0, "equal": False, "verdict": verdict, "only_in_a": [], "only_in_b": []}]
    )
    await it.look_at_jobs()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_looks_as_it_did(name: str, size: tuple[int, int]) -> None:
    text, svg = await open_screen(name, size)
    place = PICTURES / f"{name}-{size[0]}x{size[1]}"
    if UPDATE:
        PICTURES.mkdir(exist_ok=True)
        place.with_suffix(".txt").write_text(text)
        place.with_suffix(".svg").write_text(svg)
    before = place.with_suffix(".txt").read_text()
    assert text == before, "\n".join(difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "now", lineterm=""))
    if {package: version(package) for package in DRAWN_WITH} == DRAWN_WITH:
        assert svg == place.with_suffix(".svg").read_text(), f"{place.name}.svg: the same text in other colours"


def test_no_line_is_wider_than_its_terminal() -> None:
    for width, height in SIZES:
        for picture in PICTURES.glob(f"*-{width}x{height}.txt"):
            lines = picture.read_text().splitlines()
            assert len(lines) == height, picture.name
            assert max(map(len, lines)) <= width, picture.name
