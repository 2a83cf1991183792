"""The first screen: what it finds, what it says of it, and that it never waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shardyard_tui.facts import EngineError, Found, Opened
from shardyard_tui.widgets.panel import fit
from support.fake_engine import ROOT, FakeEngine, checkpoints, finding
from support.pilot import held, running

ZERO3, HF, ACTOR = f"{ROOT}/llama-sft/checkpoint-200", f"{ROOT}/llama-sft/hf", f"{ROOT}/qwen-ppo/actor"


async def test_the_tree_shows_checkpoints_with_kind_state_and_size() -> None:
    async with running(size=(140, 40)) as it:
        rows = [row[: it.page.browse.size.width] for row in it.rows]
        assert any("checkpoint-200/" in r and "DeepSpeed ZeRO-3" in r and "complete" in r and "13.0 GiB" in r for r in rows)
        assert any("actor/" in r and "incomplete" in r for r in rows)
        assert any("old.ckpt" in r and "unreadable" in r for r in rows)
        assert it.page.browse.title == "5 checkpoints"


async def test_the_summary_tells_the_verdict_where_the_bytes_are_and_what_to_do() -> None:
    async with running(size=(140, 40)) as it:
        await it.press("j")
        assert it.page.detail.opened.path == ZERO3
        for text in (
            "The whole model in fp32 masters",
            "fp32 masters",
            "69%",
            "9.0 GiB",
            "1 note",
            "merge into one set of weights",
        ):
            assert text in it.text


async def test_a_folder_with_one_checkpoint_stands_for_it() -> None:
    found = checkpoints()
    async with running(FakeEngine({HF: found[HF]})) as it:
        assert it.page.browse.current.value.name == "llama-sft"
        assert it.page.target_at_hand().path == HF
        assert "ready to load" in it.words


async def test_a_broken_file_is_explained_and_nothing_else_suffers() -> None:
    async with running() as it:
        await it.press("G")
        assert "ends 512 bytes too early" in it.words
        await it.press("m")
        assert it.said.startswith("Merge is off: ")


async def test_a_grey_key_says_why() -> None:
    async with running() as it:
        await it.press("j", "j", "j", "j", "m")
        assert it.said == "Merge is off: Rank 3 of 8 is missing: there is no model_world_size_8_rank_3.pt."
        await it.press("x")
        assert it.said == "Shrink is off: no stored byte is unused here."
        await it.press("k", "m")
        assert it.said == "Merge is off: put the cursor on a checkpoint."


async def test_reading_only_turns_off_what_writes() -> None:
    async with running(read_only=True) as it:
        await it.press("j")
        for key in ("m", "M", "e", "x"):
            await it.press(key)
            assert "--read-only" in it.said
        assert "Read-only: merge, export and shrink are off." in it.words


async def test_the_list_can_be_used_while_the_search_runs_and_esc_stops_it() -> None:
    engine = FakeEngine()
    engine.hold = asyncio.Event()
    async with running(engine) as it:
        assert it.page.browse.title.startswith("1 checkpoint, looking")
        await it.press("j")
        assert it.page.browse.current.key == ZERO3
        await it.press("escape")
        assert it.said == "Stopped; what was found so far is shown. R looks again."
        assert it.page.browse.title == "1 checkpoint"
        engine.hold.set()
        await it.press("R")
        assert it.page.browse.title == "5 checkpoints"


async def test_nothing_found_is_said_kindly_and_files_are_listed() -> None:
    async with running(FakeEngine({})) as it:
        assert "No checkpoint was found here." in it.words
        assert "notes-0.txt" in it.text


async def test_a_folder_that_cannot_be_listed_says_why() -> None:
    engine = FakeEngine({})

    async def scan(folder: str):  # type: ignore[no-untyped-def]
        raise EngineError("runs cannot be listed: permission denied.")
        yield

    engine.scan = scan  # type: ignore[method-assign]
    async with running(engine) as it:
        assert "permission denied" in it.words


async def test_a_folder_that_cannot_be_looked_at_has_a_row_that_says_why() -> None:
    engine = FakeEngine()
    engine.unread = {f"{ROOT}/private": "private cannot be listed: Permission denied."}
    async with running(engine) as it:
        assert "5 checkpoints, 1 folder not read" in it.text
        await it.press("slash", *"private", "enter")
        assert it.page.browse.current.key == f"{ROOT}/private"
        assert "private cannot be listed: Permission denied. R looks again." in it.words
        await it.press("full_stop", "full_stop")
        assert it.page.places.at(f"{ROOT}/private") is not None
    async with running(engine) as it:
        it.app.show_disk(ROOT)
        await it.settle()
        assert "Not counted private cannot be listed: Permission denied." in it.words


async def test_a_checkpoint_opens_to_its_files_and_dot_shows_the_rest() -> None:
    async with running(size=(100, 30)) as it:
        await it.press("j", "l")
        assert any("zero_to_fp32.py" in row for row in it.rows)
        await it.press("full_stop")
        assert "All files and folders are shown" in it.said
        assert any("notes-0.txt" in row for row in it.rows)
        await it.press("full_stop")
        assert not any("notes-0.txt" in row for row in it.rows)


async def test_tabs_show_tensors_health_and_files_in_place() -> None:
    async with running(size=(100, 30)) as it:
        await it.press("j", "2")
        assert "lm_head.weight" in it.text
        await it.press("3")
        assert "lm_head.weight is" in it.text
        await it.press("4")
        assert "zero_to_fp32.py" in it.text
        await it.press("1")
        assert "Weights" in it.text


async def test_zoom_gives_one_pane_the_screen_and_esc_gives_it_back() -> None:
    async with running() as it:
        await it.press("tab", "plus")
        assert not it.page.browse.display or it.page.browse.size.width == 0
        await it.press("escape")
        assert it.page.browse.size.width > 30


async def test_what_changed_on_disk_is_read_again_when_the_terminal_comes_back() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j")
        before = engine.found[ZERO3]
        assert isinstance(before, Opened)
        engine.stamps[ZERO3] = before.stamp + 60
        engine.found[ZERO3] = replace(before, stamp=before.stamp + 60, report={**before.report, "verdict": "It has changed."})
        it.page.came_back()
        await it.settle()
        assert "It has changed." in it.text
        assert "checkpoint-200 has changed" in it.said


async def test_what_did_not_change_is_not_read_again() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j")
        opened = sum(a.startswith("open") for a in engine.asked)
        it.page.came_back()
        await it.settle()
        assert sum(a.startswith("open") for a in engine.asked) == opened


async def test_the_cursor_comes_back_to_its_row_after_reading_again() -> None:
    async with running() as it:
        await it.press("j", "j", "R")
        assert it.page.browse.current.key == HF


async def test_filtering_shows_matches_with_their_folders() -> None:
    async with running() as it:
        await it.press("slash", *"actor", "enter")
        keys = [it.page.browse.all[i].value.name for i in it.page.browse.shown]
        assert keys == ["qwen-ppo", "actor"]
        await it.press("escape")
        assert len(it.page.browse.shown) == 7


async def test_values_that_were_read_in_a_job_join_the_findings() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j", "j", "V")
        assert engine.started[0].verb == "inspect-deep"
        assert "Reading all its data" in it.said
        opened = engine.found[HF]
        assert isinstance(opened, Opened)
        report = {**opened.report, "path": ".", "findings": [finding("nan", "error", "lm_head.weight holds 3 NaN.")]}
        job = engine.views[0].id
        engine.replay(job, [{"event": "result", "time": 2.0, "checkpoints": [report]}])
        await it.look_at_jobs()
        await it.press("h")
        assert "lm_head.weight holds 3 NaN." in it.text


async def test_values_are_read_of_all_that_is_marked_wherever_the_cursor_is() -> None:
    async with running() as it:
        await it.press("j", "space", "space", "G", "V")
        assert [(r.verb, r.sources) for r in it.engine.started] == [("inspect-deep", (ZERO3,)), ("inspect-deep", (HF,))]
        assert it.said == "Reading all the data of 2. What is found joins the health (h); J follows it."


def test_a_folder_cut_short_keeps_the_step_that_tells_it_from_the_next() -> None:
    assert fit("    ▸ checkpoint-2000/", 20, cut="tree") == "    ▸ checkp…t-2000/"
    assert fit("  notes-*.txt  (5,000)", 20, cut="tree") == "  notes-*.tx…(5,000)"
    assert fit("    optimizer.safetensors", 20, cut="tree") == "    optimizer.safet…"


async def test_the_kind_in_short_is_what_was_read_not_what_the_name_made_likely() -> None:
    found = checkpoints()
    opened = found[ZERO3]
    assert isinstance(opened, Opened)

    class Guessing(FakeEngine):
        async def scan(self, folder: str) -> Any:
            async for item in super().scan(folder):
                yield replace(item, kind="deepspeed-zero2") if isinstance(item, Found) else item

    async with running(Guessing({ZERO3: opened})) as it:
        row = next(line for line in it.rows if "checkpoint-200/" in line)
        assert "zero3" in row


async def test_a_terminal_that_is_too_small_says_so() -> None:
    async with running(size=(50, 12)) as it:
        assert it.rows[0].startswith("Too small: 60x15 is needed.")
        await it.pilot.resize_terminal(80, 24)
        await it.settle()
        assert it.rows[0].startswith(" shardyard")


async def test_a_folder_that_is_a_checkpoint_itself_has_a_row() -> None:
    found = checkpoints()
    async with running(FakeEngine({ZERO3: found[ZERO3]}), path=ZERO3) as it:
        assert it.page.browse.current.key == ZERO3
        assert it.page.target_at_hand().path == ZERO3
        await it.press("R")
        assert it.page.target_at_hand().path == ZERO3
        await it.press("full_stop", "full_stop")
        assert it.page.browse.count == 1


async def test_a_checkpoint_is_read_once_for_both_panes() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j", "j", "j", "k")
        opened = [a for a in engine.asked if a.startswith("open")]
        assert len(opened) == len(set(opened)) == 5


async def test_what_a_job_wrote_here_joins_the_tree() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j", "m", "enter")
        out = f"{ZERO3}-merged"
        made = engine.found[HF]
        assert isinstance(made, Opened)
        engine.found[out] = replace(made, path=out)
        await it.look_at_jobs()
        engine.replay(engine.views[0].id, [{"event": "result", "time": 3.0}])
        await it.look_at_jobs()
        assert it.page.places.at(out) is not None
        assert it.page.browse.current.key == ZERO3


async def test_what_a_job_wrote_gets_a_row_and_the_cursor_stays() -> None:
    engine = FakeEngine()
    async with running(engine) as it:
        await it.press("j", "m", "enter")
        job, out = engine.views[0].id, engine.started[0].out
        assert out is not None
        opened = engine.found[HF]
        assert isinstance(opened, Opened)
        engine.found[out] = replace(opened, path=out)
        here = it.page.browse.current.key
        engine.replay(job, [{"event": "result", "time": 2.0}])
        await it.look_at_jobs()
        assert out in [node.key for node in it.page.browse.all]
        assert it.page.browse.current.key == here


async def test_a_refusal_goes_when_it_no_longer_holds() -> None:
    async with running() as it:
        await it.press("j")
        page = it.page
        kept = dict(page.kept)
        page.kept.clear()
        page.action_do("health")
        assert it.said == "Health is off: its headers are not read yet."
        page.kept.update(kept)
        page.show_keys()
        assert it.said == ""


@pytest.mark.parametrize(("then", "in_front"), [("", "Health"), ("j", "Checkpoints"), ("escape", "Checkpoints")])
async def test_a_key_that_comes_before_the_headers_are_read_counts_once_they_are(
    monkeypatch: pytest.MonkeyPatch, then: str, in_front: str
) -> None:
    engine = FakeEngine()
    may_go_on = held(engine, "open", monkeypatch)
    async with running(engine) as it:
        for key in ("j", "h", *([then] if then else [])):
            await it.pilot.press(key)
        may_go_on.set()
        await it.settle()
        assert in_front == it.page.NAME
