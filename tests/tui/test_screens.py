"""Tensors, one tensor, health, files, compare, statistics, disk, doctor: what each answers, and its keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shardyard_tui.facts import Document, EngineError, JobRequest, Opened, PieceFacts, TensorDetail
from shardyard_tui.screens.tensor import place_of
from shardyard_tui.table import TensorTable
from shardyard_tui.widgets.byte_map import cells
from shardyard_tui.widgets.sheet import fact
from support.fake_engine import ROOT, FakeEngine, checkpoints, relation
from support.pilot import running

ZERO3, HF = f"{ROOT}/llama-sft/checkpoint-200", f"{ROOT}/llama-sft/hf"
TO_HF = ("j", "j")
TO_ACTOR = ("j", "j", "j", "j")
TO_BLOATED = (*TO_ACTOR, "j")


async def test_enter_shows_the_tensors_and_i_one_of_them_with_its_statistics() -> None:
    async with running(size=(120, 36)) as it:
        await it.press(*TO_HF, "enter")
        assert it.page.NAME == "Tensors"
        await it.press("slash", *"layers.1 q_proj", "enter", "i")
        assert it.page.NAME == "One tensor"
        for text in (
            "2048×2048",
            "bfloat16",
            "-0.8711 to 0.9023",
            "std 0.0241",
            "NaN 0",
            "8 pieces in 8 files",
            "rank_7.pt data/3 + 0",
            "Exact: every value",
        ):
            assert text in it.words
        assert any("█" in row for row in it.rows)
        await it.press("b")
        assert "linear counts" in it.text
        await it.press("escape")
        assert it.page.NAME == "Tensors"
        assert it.page.rows.count == 1


def test_where_a_piece_lies_is_said_in_full_without_what_a_torch_file_repeats() -> None:
    shown = place_of(PieceFacts("step/bf16_rank_0_optim_states.pt", "bf16_rank_0_optim_states/data/3", 512, 20, 0))
    assert shown == "step/bf16_rank_0_optim_states.pt data/3 + 512"
    assert place_of(PieceFacts("weights.npz", "model/norm.npy", 0, 20, 0)) == "weights.npz model/norm.npy + 0"


async def test_pieces_that_cannot_be_found_are_not_looked_for_for_ever() -> None:
    engine = FakeEngine()

    async def gone(path: str, name: str) -> TensorDetail:
        raise EngineError(f"There is no {path}.")

    engine.tensor = gone  # type: ignore[method-assign]
    async with running(engine) as it:
        await it.press(*TO_HF, "enter", "i")
        assert "There is no" in it.words
        assert "Pieces not known" in it.words


async def test_a_checkpoint_that_cannot_be_read_is_not_said_to_hold_no_tensors() -> None:
    found = checkpoints()
    actor = found[f"{ROOT}/qwen-ppo/actor"]
    assert isinstance(actor, Opened)
    async with running(FakeEngine({actor.path: replace(actor, table=TensorTable())})) as it:
        await it.press("j", "enter", "i")
        assert "No tensor can be read here; h says why." in it.text
        assert it.said == "There is no tensor under the cursor."


def test_a_narrow_fact_keeps_a_space_after_its_label() -> None:
    assert "".join(text for text, _ in fact("The same as", "norm", 30)[0]) == "The same as norm"


async def test_a_key_that_does_nothing_here_says_so() -> None:
    async with running() as it:
        await it.press(*TO_HF, "m", "u")
        assert it.said == "u does nothing here; ? lists the keys of this screen."


async def test_large_tensors_are_read_only_when_asked() -> None:
    found = checkpoints()
    opened = found[HF]
    assert isinstance(opened, Opened)
    table = opened.table
    table.facts = [f._replace(nbytes=f.nbytes << 10) for f in table.facts]
    async with running(FakeEngine({HF: replace(opened, table=table)})) as it:
        await it.press("j", "enter", "i")
        assert not [a for a in it.engine.asked if a.startswith("statistics")]
        assert "B reads its 125 GiB." in it.words
        await it.press("b")
        assert it.said == "Log scale is off: its values were not read yet."
        await it.press("B")
        assert it.engine.asked[-1] == "statistics lm_head.weight"


async def test_not_a_number_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    usual = engine.statistics

    async def statistics(path: str, name: str, **options: Any) -> Document:
        return {**await usual(path, name), "nan": 3}

    monkeypatch.setattr(engine, "statistics", statistics)
    async with running(engine, size=(120, 36)) as it:
        await it.press(*TO_HF, "enter", "i")
        assert "NaN 3" in it.words
        assert "Go back to a step before" in it.words


async def test_tensors_fold_into_patterns_and_one_opens_again() -> None:
    async with running() as it:
        await it.press(*TO_HF, "i", "f")
        assert it.page.rows.folded
        assert "layers.#.mlp.up_proj.weight  (4)" in it.text
        await it.press("slash", *"up_proj", "enter", "enter")
        assert not it.page.rows.folded
        assert it.page.rows.count == 4
        await it.press("escape")
        assert it.page.rows.count == 35


async def test_marked_tensors_go_into_the_command_and_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as it:
        copied: list[str] = []
        monkeypatch.setattr(it.app, "copy_to_clipboard", copied.append)
        await it.press(*TO_HF, "i", "space", "space", "Y", "y")
        assert copied == [
            f"shardyard stats {HF} --select lm_head.weight --select model.embed_tokens.weight",
            "lm_head.weight\nmodel.embed_tokens.weight",
        ]
        await it.press("B")
        assert it.engine.started == [
            JobRequest("stats", (HF,), None, {"select": ["lm_head.weight", "model.embed_tokens.weight"]})
        ]


async def test_sorting_waits_for_a_letter_and_says_which_there_are() -> None:
    async with running() as it:
        await it.press(*TO_HF, "i", "s")
        assert it.said == "Sort by:  n name  d dtype  s size"
        await it.press("s")
        assert it.page.rows.current is not None
        assert it.page.rows.name_at_hand in ("lm_head.weight", "model.embed_tokens.weight")
        await it.press("S")
        assert it.page.rows.name_at_hand in ("model.norm.weight", "model.layers.0.input_layernorm.weight")
        await it.press("s", "q")
        assert it.said.startswith("There is no column q")
        await it.press("s", "escape")
        assert it.page.NAME == "Tensors"


async def test_health_answers_what_why_what_to_do_and_how_it_is_known() -> None:
    async with running() as it:
        await it.press(*TO_ACTOR, "h")
        assert it.page.rows.title == "2 errors, 1 warning"
        for text in (
            "Rank 3 of 8 is missing",
            "Why it matters",
            "no tensor is whole",
            "What to do",
            "Look on the local disk",
            "Certain",
        ):
            assert text in it.words
        assert "checked: headers, ranks" in it.text
        await it.press("j", "j")
        assert "five times the bytes" in it.words
        assert "not read: checksums, values (V)" in it.text


async def test_nothing_found_is_told_apart_from_nothing_looked_at() -> None:
    async with running() as it:
        await it.press(*TO_HF, "h")
        assert "Nothing wrong was found." in it.words
        assert "Looked at: headers, shapes, ties." in it.words
        assert "Not looked at: checksums, values." in it.words


async def test_files_show_a_map_of_the_one_under_the_cursor() -> None:
    async with running(size=(100, 30)) as it:
        await it.press(*TO_BLOATED, "i", "4")
        assert it.page.NAME == "Files"
        assert "bloated/config.json" in it.page.copied() or it.page.copied().endswith("config.json")
        assert "holds no tensors" in it.text
        await it.press("j")
        await it.settle()
        assert any("!!!!" in row for row in it.rows)
        assert "unused 293 KiB" in it.text


def test_a_byte_map_covers_the_file_and_waste_is_never_hidden() -> None:
    from shardyard_tui.facts import ByteMap, Stretch

    found = ByteMap("f", 1000, (Stretch(0, 100, "header", ""), Stretch(100, 800, "weight", "w"), Stretch(900, 100, "unused", "")))
    assert cells(found, 10) == ["header", *["weight"] * 8, "unused"]
    assert cells(found, 3) == ["weight", "weight", "unused"]
    assert len(cells(found, 5000)) == 1000


async def test_two_are_compared_by_c_and_c_or_by_marks() -> None:
    async with running(size=(100, 30)) as it:
        await it.press("j", "c")
        assert it.said == "Now put the cursor on the one to compare checkpoint-200 with, and press c again."
        await it.press("j", "c")
        assert it.engine.started == [JobRequest("compare", (ZERO3, HF))]
        assert it.page.NAME == "Compare"
        await it.press("escape", "k", "space", "space", "c")
        assert it.engine.started[1] == JobRequest("compare", (ZERO3, HF))
        await it.press("escape", "G", "space", "c")
        assert it.said == "Two are compared, 3 are marked; U unmarks."


async def test_compared_rows_come_as_they_are_done_the_worst_first() -> None:
    async with running(size=(120, 32)) as it:
        await it.press("j", "c", "j", "c")
        job = it.engine.views[0].id
        it.engine.compared[job] = [
            relation("model.layers.0.mlp.up_proj.weight", "rounded-bfloat16", max_abs=0.001, differing=7),
            relation("model.layers.1.mlp.up_proj.weight", "different", max_abs=0.5, differing=9000),
            relation("model.norm.weight", "identical"),
        ]
        it.engine.change(job, progress={"event": "progress", "time": 1.0, "done": 1, "total": 2})
        await it.look_at_jobs()
        assert it.page.rows.title == "1 identical  1 rounded-bfloat16  1 different"
        assert it.page.rows.current["name"] == "model.layers.1.mlp.up_proj.weight"
        assert "Other values: another step of training" in it.words
        assert "Largest difference by layer" in it.words
        result = {
            "event": "result",
            "time": 2.0,
            "equal": False,
            "verdict": "Not the same weights.",
            "only_in_a": ["extra"],
            "only_in_b": [],
        }
        it.engine.replay(job, [result])
        await it.look_at_jobs()
        assert "Not the same weights." in it.words
        assert "1 only in A" in it.page.rows.title


async def test_statistics_put_what_is_not_finite_first() -> None:
    async with running(size=(120, 32)) as it:
        await it.press("j", "B")
        assert it.engine.started == [JobRequest("stats", (ZERO3,), None, {})]
        job = it.engine.views[0].id
        good = {
            "name": "a",
            "nan": 0,
            "inf": 0,
            "mean": 0.5,
            "std": 1.0,
            "min": -1.0,
            "max": 2.0,
            "norm": 3.0,
            "zeros": 1,
            "numel": 4,
        }
        it.engine.compared[job] = [good, {**good, "name": "b", "nan": 2}]
        it.engine.replay(job, [{"event": "result", "time": 2.0}])
        await it.look_at_jobs()
        assert it.page.rows.current["name"] == "b"
        assert "1 tensor holds NaN or inf" in it.words
        assert it.page.rows.title == "2 tensors, 1 with NaN or inf"


async def test_values_that_are_not_known_are_not_called_finite() -> None:
    async with running(size=(120, 32)) as it:
        await it.press("j", "B")
        job = it.engine.views[0].id
        known = {"name": "a", "nan": 0, "inf": 0, "mean": 0.5, "zeros": 1, "numel": 4}
        it.engine.compared[job] = [known, {"name": "b", "numel": 4, "note": "values of Q8_0 are not computed with"}]
        it.engine.replay(job, [{"event": "result", "time": 2.0}])
        await it.look_at_jobs()
        assert "All values of 1 tensor are finite." in it.words
        assert "Of 1 tensor no values are known; each says why." in it.words
        assert [line.split()[-2] for line in it.rows if line.startswith(("│ a ", "│ b "))] == ["25.0%", "-"]


async def test_a_finished_comparison_opens_from_the_jobs() -> None:
    async with running() as it:
        await it.press("j", "c", "j", "c", "escape", "J", "enter")
        assert it.page.NAME == "Compare"
        assert len(it.engine.started) == 1


async def test_disk_usage_is_by_role_with_what_could_be_given_back() -> None:
    async with running(size=(120, 36)) as it:
        await it.press("G", "k", "k", "k", "u")
        assert it.page.NAME == "Disk"
        assert it.page.rows.title == "7.0 GiB in 2 checkpoints"
        assert "2.0 GiB that no tensor uses" in it.words
        assert [s.name for s in (it.page.rows.all[i] for i in it.page.rows.shown)] == ["bloated", "actor"]
        await it.press("x")
        assert it.page.NAME == "Plan"


async def test_older_optimizer_states_are_counted_but_nothing_is_deleted() -> None:
    found = checkpoints()
    opened = found[ZERO3]
    assert isinstance(opened, Opened)
    older = replace(opened, path=f"{ROOT}/llama-sft/checkpoint-100", stamp=opened.stamp - 9000)
    async with running(FakeEngine({older.path: older, ZERO3: opened}), size=(120, 36)) as it:
        await it.press("u")
        assert "9.0 GiB are optimizer states of 1 save" in it.words
        assert "delete those folders yourself" in it.words


async def test_doctor_shows_what_a_report_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as it:
        copied: list[str] = []
        monkeypatch.setattr(it.app, "copy_to_clipboard", copied.append)
        await it.press("D")
        assert "xterm-256color" in it.words
        assert "80, 24" in it.words  # the app's terminal, not that of the process that was asked
        assert "available 14.0 GiB" in it.words
        await it.press("y")
        assert json.loads(copied[0])["terminal"]["size"] == [80, 24]
        assert '"python": "3.11.7"' in copied[0]


async def test_a_tensor_that_is_gone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardyard_tui.facts import EngineError

    engine = FakeEngine()

    async def tensor(path: str, name: str) -> TensorDetail:
        raise EngineError(f"{name} is not there any more; R reads again.")

    monkeypatch.setattr(engine, "tensor", tensor)
    async with running(engine) as it:
        await it.press(*TO_HF, "i", "i")
        assert "lm_head.weight is not there any more" in it.words


def test_every_code_that_the_engine_gives_is_explained() -> None:
    import re
    from pathlib import Path

    import shardyard
    from shardyard_tui.words import WHY

    used: set[str] = set()
    for source in Path(shardyard.__file__).parent.rglob("*.py"):
        used |= set(re.findall(r'(?:Finding\(\s*|code=)"([a-z][a-z0-9-]+)"', source.read_text()))
    assert len(used) > 20
    assert not used - set(WHY)


async def test_a_name_that_is_only_tied_is_no_difference() -> None:
    async with running(size=(120, 32)) as it:
        await it.press("j", "c", "j", "c")
        tied = [{"name": "lm_head.weight", "in": "a", "equals": "model.embed_tokens.weight"}]
        result = {"event": "result", "time": 2.0, "equal": True, "only_in_a": ["lm_head.weight"], "tied": tied}
        it.engine.compared[it.engine.views[0].id] = [relation("model.norm.weight", "identical")]
        it.engine.replay(it.engine.views[0].id, [result])
        await it.look_at_jobs()
        assert it.page.rows.title == "1 identical  1 tied"
        assert "The same as model.embed_tokens.weight" in it.words
