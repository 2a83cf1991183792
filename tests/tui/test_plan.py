"""From a key to a running job: the plan, its options, refusals, and starting at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardyard_tui.facts import EngineError, JobRequest, Opened
from shardyard_tui.plan_text import checks, command, options_of, plan_lines
from support.fake_engine import GIB, ROOT, FakeEngine, checkpoints, plan
from support.pilot import held, running

ZERO3 = f"{ROOT}/llama-sft/checkpoint-200"


async def test_m_shows_the_plan_and_enter_starts_it() -> None:
    async with running() as it:
        await it.press("j", "m")
        assert it.page.NAME == "Plan"
        for text in ("Read", "4.0 GiB", "free 1.9 TiB", "61.0 MiB", "bit for bit", "written once"):
            assert text in it.words
        assert not it.engine.started
        await it.press("enter")
        assert it.engine.started == [JobRequest("merge", (ZERO3,), f"{ZERO3}-merged", {})]
        assert it.page.NAME == "Checkpoints"
        assert "It goes on if you quit" in it.said
        assert any("merge" in row and "0%" in row for row in it.rows)


async def test_changing_an_option_makes_the_plan_again() -> None:
    async with running() as it:
        await it.press("j", "m", "j", "l", "l")
        assert it.engine.asked[-1] == "plan merge bfloat16"
        assert "34 tensors float32 → bfloat16: the same range" in it.words
        await it.press("left")
        assert it.engine.asked[-1] == "plan merge float32"
        await it.press("space", "enter")
        assert it.engine.started[0].options == {"dtype": "bfloat16"}


async def test_the_output_is_typed_in_the_last_line() -> None:
    async with running() as it:
        await it.press("j", "m", "space")
        assert it.last_line.startswith(" Output: /scratch")
        await it.press("ctrl+u", *"/tmp/out", "enter", "enter")
        assert it.engine.started[0].out == "/tmp/out"


async def test_esc_while_typing_keeps_what_was_there() -> None:
    async with running() as it:
        await it.press("j", "m", "space", *"xyz", "escape", "enter")
        assert it.engine.started[0].out == f"{ZERO3}-merged"


async def test_a_refusal_is_shown_and_enter_says_it_again() -> None:
    engine = FakeEngine()
    engine.refuses = EngineError("out is not empty; choose another output.", "OutputExistsError")
    async with running(engine) as it:
        await it.press("j", "m")
        assert "out is not empty" in it.words
        assert "Nothing was read or written." in it.words
        await it.press("enter")
        assert it.said == "Start is off: out is not empty; choose another output."
        assert not engine.started
        await it.press("escape")
        assert it.page.NAME == "Checkpoints"


async def test_e_exports_with_all_options() -> None:
    async with running() as it:
        await it.press("j", "e")
        labels = [c.label for c in it.page.options.choices]
        assert {"Output", "Dtype", "Step", "Shard size", "Tied", "Format", "Verify", "Like", "Incomplete", "Overwrite"} <= set(
            labels
        )
        await it.press("enter")
        assert it.engine.started == [JobRequest("export", (ZERO3,), f"{ZERO3}-exported", {})]


async def test_x_shrinks_only_what_has_waste() -> None:
    async with running() as it:
        await it.press("j", "j", "j", "j", "j", "x")
        await it.press("l", "enter")
        assert it.engine.started == [JobRequest("shrink", (f"{ROOT}/qwen-ppo/bloated",), None, {"in_place": True})]


async def test_capital_m_starts_at_once_when_every_check_passes() -> None:
    async with running() as it:
        await it.press("j", "M")
        await it.settle()
        assert it.engine.started == [JobRequest("merge", (ZERO3,), f"{ZERO3}-merged", {})]
        assert it.page.NAME == "Checkpoints"


BLOATED, HF = f"{ROOT}/qwen-ppo/bloated", f"{ROOT}/llama-sft/hf"


async def test_what_is_marked_is_planned_one_after_the_other() -> None:
    async with running() as it:
        await it.press("j", "space", "space", "m")
        assert it.page.options.title == "Merge checkpoint-200"
        assert it.page.options.note == "then 1 more"
        await it.press("enter")
        assert it.page.options.title == "Merge hf"
        assert it.page.options.note == ""
        assert it.said == "Started: merge checkpoint-200. It goes on if you quit. J shows it."
        await it.press("enter")
        assert [request.sources for request in it.engine.started] == [(ZERO3,), (HF,)]
        assert it.page.NAME == "Checkpoints"


async def test_capital_m_starts_all_that_is_marked_wherever_the_cursor_is() -> None:
    async with running() as it:
        await it.press("j", "space", "space", "G", "M")
        await it.settle()
        assert [request.sources for request in it.engine.started] == [(ZERO3,), (HF,)]
        assert it.page.NAME == "Checkpoints"


async def test_of_what_is_marked_that_which_cannot_be_done_is_left_out_and_why() -> None:
    async with running() as it:
        await it.press("asterisk", "x")
        assert it.page.options.title == "Shrink bloated"
        assert "hf is left out: no stored byte is unused here." in it.said
        await it.press("escape", "U", "j", "space", "space", "x")
        assert it.said == "Shrink is off: no stored byte is unused in what is marked."


async def test_parts_of_which_none_is_whole_are_planned_together() -> None:
    found = checkpoints()
    broken = found[f"{ROOT}/qwen-ppo/actor"]
    assert isinstance(broken, Opened)
    parts = {f"{ROOT}/{name}": replace(broken, path=f"{ROOT}/{name}") for name in ("node0", "node1")}
    async with running(FakeEngine(parts)) as it:
        await it.press("m")
        assert it.said.startswith("Merge is off: Rank 3 of 8 is missing")
        await it.press("asterisk", "m")
        assert it.page.options.title == "Merge node0 + node1"
        await it.press("enter")
        assert it.engine.started == [JobRequest("merge", tuple(parts), f"{ROOT}/node0-merged", {})]


async def test_files_of_a_checkpoint_mean_the_checkpoint() -> None:
    async with running() as it:
        await it.press("j", "l", "l", "m")
        assert it.page.options.title == "Merge checkpoint-200"
        await it.press("escape", "space", "up", "up", "space", "m")
        assert it.page.options.title == "Merge checkpoint-200"
        assert it.page.options.note == ""


async def test_marked_tensors_are_merged_alone() -> None:
    async with running() as it:
        await it.press("j", "enter", "space", "space", "m")
        assert it.page.values["select"].split() == ["lm_head.weight", "model.embed_tokens.weight"]
        await it.press("enter")
        assert it.engine.started[0].options == {"select": ["lm_head.weight", "model.embed_tokens.weight"]}


async def test_capital_m_asks_when_something_is_odd(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    async def tight(request: JobRequest) -> dict[str, Any]:
        return {**plan(request), "limits": {"memory": 1 << 20}}

    monkeypatch.setattr(engine, "plan", tight)
    async with running(engine) as it:
        await it.press("j", "M")
        assert not engine.started
        assert it.page.NAME == "Plan"
        assert it.said == "Not started at once, look at: memory. Enter starts it all the same."
        await it.press("enter")
        assert len(engine.started) == 1


async def test_the_plan_is_copied_as_the_command_that_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as it:
        copied: list[str] = []
        monkeypatch.setattr(it.app, "copy_to_clipboard", copied.append)
        await it.press("j", "m", "j", "l", "l", "Y")
        assert copied == [f"shardyard merge {ZERO3} -o {ZERO3}-merged --dtype bfloat16"]


def test_only_what_was_asked_for_is_passed_on() -> None:
    assert options_of({"out": "/x", "dtype": "", "tied": "auto", "overwrite": "no"}) == {}
    asked = {"tied": "both", "overwrite": "yes", "select": "*.a *.b", "max_shard_size": "none", "tag": "global_step1"}
    assert options_of(asked) == {
        "tied": "both",
        "overwrite": True,
        "select": ["*.a", "*.b"],
        "max_shard_size": "none",
        "tag": "global_step1",
    }


def test_a_command_quotes_what_a_shell_would_take_apart() -> None:
    request = JobRequest("merge", ("/a b/c",), "/out;x", {"select": ["*.weight"], "overwrite": True, "tied": "both"})
    assert command(request) == "shardyard merge '/a b/c' -o '/out;x' --select '*.weight' --overwrite --tied both"


def test_checks_see_what_is_missing_too_large_or_odd() -> None:
    good = plan(JobRequest("merge", ("a",), "b"))
    assert all(ok for ok, _, _ in checks(good))
    bad = [
        {"complete": False},
        {"disk": {"needed": 2 * GIB, "free": GIB}},
        {"limits": {"available": 10}},
        {"findings": [{"severity": "warning"}]},
    ]
    for change in bad:
        assert sum(not ok for ok, _, _ in checks({**good, **change})) == 1
    assert all(ok for ok, _, _ in checks({**good, "limits": {}, "findings": [{"severity": "info"}]}))


async def test_a_step_can_be_chosen_where_there_are_several() -> None:
    async with running() as it:
        await it.press("j", "m", "j", "j", "l", "enter")
        assert it.engine.started[0].options == {"tag": "global_step100"}


async def test_a_job_that_cannot_be_started_leaves_the_plan_open(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    async def start(request: JobRequest) -> str:
        raise EngineError("The job folder cannot be written.")

    monkeypatch.setattr(engine, "start", start)
    async with running(engine) as it:
        await it.press("j", "m", "enter")
        assert it.page.NAME == "Plan"
        assert it.said == "The job folder cannot be written."


async def test_a_plan_that_starts_behind_another_screen_leaves_that_one_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    may_go_on = held(engine, "start", monkeypatch)
    async with running(engine) as it:
        await it.press("j", "m")
        for key in ("enter", "enter", "J"):
            await it.pilot.press(key)
        may_go_on.set()
        await it.settle()
        assert it.page.NAME == "Jobs"
        assert len(engine.started) == 1
        await it.press("escape")
        assert it.page.NAME == "Checkpoints"


async def test_esc_while_a_job_is_being_started_leaves_the_plan_and_the_start_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()
    may_go_on = held(engine, "start", monkeypatch)
    async with running(engine) as it:
        await it.press("j", "space", "space", "m")
        for key in ("enter", "escape"):
            await it.pilot.press(key)
        await it.pilot.pause()
        assert it.page.NAME == "Checkpoints"
        may_go_on.set()
        await it.settle()
        assert len(engine.started) == 1
        assert it.said.startswith("Started: merge checkpoint-200.")
        assert it.page.NAME == "Checkpoints"


def test_the_disk_that_is_written_to_keeps_the_end_of_its_path() -> None:
    plan = {"disk": {"path": "/scratch/" + "deep/" * 30 + "runs", "free": 2**30, "needed": 2**20}}
    request = JobRequest("merge", ("/in",), "/out", {})
    lines = ["".join(text for text, _ in line) for line in plan_lines(plan, request, 70)]
    disk = next(line for line in lines if line.startswith("Disk"))
    assert disk.endswith("deep/runs")
    assert "in …" in disk
    assert len(disk) <= 70


def test_a_shrink_shows_what_each_file_gives_back() -> None:
    shown = {
        "files": [
            {"name": "a.bin", "before": 3 * GIB, "after": GIB, "saved": 2 * GIB, "action": "shrink", "tensors": 4},
            {"name": "b.bin", "before": GIB, "after": GIB, "saved": 0, "action": "leave", "why": "every stored byte is used"},
        ],
        "before": 4 * GIB,
        "saved": 2 * GIB,
    }
    request = JobRequest("shrink", ("a",), None, {"in_place": True})
    text = "\n".join("".join(part for part, _ in line) for line in plan_lines(shown, request, 200))
    assert "a.bin: 3 GiB → 1 GiB" in text.replace(".0 ", " ") and "b.bin: left as it is: every stored byte is used" in text
    assert "replaced once the new one was read back" in text and "Nothing under the source" not in text


async def test_where_there_is_slurm_a_job_can_be_handed_to_it() -> None:
    engine = FakeEngine()
    engine.slurm = True
    async with running(engine) as it:
        await it.press("j", "m", "G", "space", *"partition=cpu,time=1:00:00", "enter")
        assert "--slurm=partition=cpu,time=1:00:00" in it.words
        await it.press("enter")
        assert engine.started[0].slurm == {"partition": "cpu", "time": "1:00:00"}
        assert engine.started[0].options == {}


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({"dtype": "bfloat16", "tied": "both", "max_shard_size": "500MB", "overwrite": "yes", "select": "*.a *.b"}, 5),
        ({"format": "torch", "verify": "full", "strip_prefix": "none", "lora": "fold", "allow_incomplete": "yes"}, 5),
        ({"like": "/base", "exclude": "x", "keep_dtype": "y", "tag": "global_step1", "slurm": "time=5"}, 5),
    ],
)
def test_what_y_copies_is_what_the_command_line_takes(values: dict[str, str], arguments: int) -> None:
    import shlex

    from shardyard import cli
    from shardyard_tui.plan_text import slurm_of

    request = JobRequest("export", ("/src",), "/out", options_of(values), slurm_of(values))
    parsed = cli.parser(load=["export"]).parse_args(shlex.split(command(request))[1:])
    assert sum(getattr(parsed, name) not in (None, False, [], ()) for name in values) == arguments
