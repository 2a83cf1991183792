"""Jobs: the strip, the list, one job's screen, and what becomes of them."""

from __future__ import annotations

from shardyard_tui.facts import JobRequest, JobView
from shardyard_tui.history import History
from support.fake_engine import NOW, ROOT, FakeEngine, recording
from support.pilot import running

MERGE = JobRequest("merge", (f"{ROOT}/llama-sft/checkpoint-200",), f"{ROOT}/hf-200")


async def started() -> tuple[FakeEngine, str]:
    engine = FakeEngine()
    job = await engine.start(MERGE)
    engine.change(job, host="login3", pid=41822, folder="/home/anna/.local/state/shardyard/jobs/" + job)
    return engine, job


async def test_a_running_job_is_in_sight_from_start_to_end() -> None:
    engine, job = await started()
    async with running(engine) as it:
        events = recording("merge")
        half = len(events) // 2
        engine.replay(job, events[:half])
        await it.look_at_jobs()
        line = next(row for row in it.rows if "merge checkpoint" in row or "merge ch" in row)
        assert "%" in line and "/s" in line and "left" in line
        assert it.rows[0].endswith("1 job")
        engine.replay(job, events[half:])
        await it.look_at_jobs()
        assert it.said == "merge checkpoint-200 -> hf-200: done."
        assert any("done in" in row for row in it.rows)


async def test_a_job_that_ends_behind_another_screen_is_ended_in_the_first_one_too() -> None:
    engine, job = await started()
    async with running(engine) as it:
        await it.look_at_jobs()
        await it.press("J")
        engine.replay(job, recording("merge"))
        await it.look_at_jobs()
        await it.press("escape")
        assert it.page.NAME == "Checkpoints"
        assert any("done in" in row for row in it.rows)


async def test_the_list_shows_the_running_ones_first() -> None:
    engine, _ = await started()
    engine.views.append(JobView("old", "merge", "merge a -> b", "done", created=NOW + 5, ended=NOW + 9))
    engine.views.append(JobView("bad", "merge", "merge c -> d", "failed", outcome={"message": "No space left on /scratch."}))
    async with running(engine, size=(140, 40)) as it:
        await it.press("J")
        states = [it.page.rows.all[i].state for i in it.page.rows.shown]
        assert states == ["running", "done", "failed"]
        assert "No space left on /scratch." in it.text


async def test_a_job_is_followed_with_rates_memory_and_log() -> None:
    engine, job = await started()
    engine.replay(job, recording("merge"))
    async with running(engine, size=(140, 40)) as it:
        await it.press("J", "enter")
        assert it.page.NAME == "One job"
        assert "done" in it.page.query_one("#progress").note
        for text in ("Read", "Written", "on average", "Memory", "plan made: 34 tensors", "Output"):
            assert text in it.words
        await it.press("escape")
        assert it.page.NAME == "Jobs"


async def test_a_job_that_only_reads_tells_no_rates_it_does_not_have() -> None:
    async with running() as it:
        await it.press("j", "V")
        job = it.engine.views[0].id
        read = {"event": "progress", "time": 2.0, "read": 50_000, "written": 0, "memory": {"anon": 10}, "done": 1, "total": 1}
        it.engine.replay(job, [read, {"event": "result", "time": 2.0}])
        await it.look_at_jobs()
        await it.press("J", "enter")
        assert "Read 48.8 KiB" in it.words
        assert "0 B/s" not in it.words
        assert "Written" not in it.words
        assert "the plan said" not in it.words


async def test_cancelling_asks_first_and_only_y_does_it() -> None:
    engine, job = await started()
    async with running(engine) as it:
        await it.press("J", "X")
        assert it.said.startswith("Stop merge checkpoint-200 -> hf-200?")
        await it.press("x")
        assert it.said == "Nothing was done."
        assert not [a for a in engine.asked if a.startswith("cancel")]
        await it.press("X", "y")
        assert engine.asked[-1] == f"cancel {job}"
        await it.look_at_jobs()
        assert "stopping at the next unit" in it.text


async def test_what_failed_says_why_and_can_be_resumed() -> None:
    engine, job = await started()
    engine.replay(job, [{"event": "error", "time": NOW, "message": "No space left on /scratch (needs 12 GiB)."}])
    async with running(engine) as it:
        await it.press("J", "enter")
        assert "No space left on /scratch (needs 12 GiB)." in it.words
        await it.press("r")
        assert engine.asked[-1] == f"resume {job}"
        assert it.said == "It goes on from the last finished unit."
        await it.look_at_jobs()
        await it.press("r")
        assert it.said == "Resume is off: it is running."


async def test_finished_jobs_are_forgotten_only_when_confirmed() -> None:
    engine, job = await started()
    engine.change(job, state="done", ended=NOW)
    async with running(engine) as it:
        await it.press("J", "C", "n")
        assert len(engine.views) == 1
        await it.press("C", "y")
        assert it.said == "1 job forgotten."
        await it.look_at_jobs()
        assert "No job yet" in it.text


async def test_quitting_leaves_jobs_running_and_the_code_is_zero() -> None:
    engine, _ = await started()
    async with running(engine) as it:
        await it.press("q")
    assert it.app.return_value == 0
    assert not [a for a in engine.asked if a.startswith("cancel")]
    assert engine.closed


async def test_a_job_without_an_end_is_told_as_lost() -> None:
    engine, job = await started()
    engine.change(job, state="lost")
    async with running(engine, size=(120, 30)) as it:
        await it.press("J")
        assert "its process is gone; r goes on" in it.text


def progress(at: float, read: int, written: int, anon: int = 10) -> dict[str, object]:
    return {"event": "progress", "time": at, "read": read, "written": written, "memory": {"anon": anon}, "done": 0, "total": 1}


def test_rates_are_of_the_last_seconds_and_of_all_time() -> None:
    history = History()
    history.take([progress(float(t), t * 100, t * 50) for t in range(11)])
    history.take([progress(20.0, 1000, 500), progress(21.0, 2000, 500)])
    assert history.rates() == (1000.0, 0.0)
    assert history.averages() == (2000 / 21, 500 / 21)


def test_curves_have_a_value_for_every_column_and_bridge_gaps() -> None:
    history = History()
    history.take([progress(0.0, 0, 0, 5), progress(1.0, 100, 0, 7), progress(60.0, 200, 0, 9)])
    curve = history.curve("anon", 6)
    assert len(curve) == 6
    assert curve[-1] == 9
    assert curve[0] in (5.0, 6.0, 7.0)
    assert all(value > 0 for value in curve)
    assert History().curve("read", 5) == []


def test_a_resumed_job_counts_anew_without_negative_rates() -> None:
    history = History()
    history.take([progress(0.0, 0, 0), progress(1.0, 500, 0), progress(9.0, 0, 0), progress(10.0, 50, 0)])
    assert history.rates() == (50.0, 0.0)


def test_events_of_a_newer_version_are_passed_over() -> None:
    history = History()
    assert history.take([{"event": "hologram", "time": 1.0}])
    assert not history.log


def test_damaged_events_cannot_stop_the_screens() -> None:
    from shardyard_tui.job_book import sound

    event = {
        "event": "progress",
        "time": 1.0,
        "done": "many",
        "total": None,
        "rate": True,
        "memory": [1],
        "disk": {"free": "x"},
        "item": 5,
    }
    clean = sound(event)
    assert (clean["done"], clean["rate"], clean["memory"], clean["disk"], clean["item"]) == (None, None, {}, {"free": None}, "5")
    history = History()
    history.take([clean, clean])
    assert history.rates() == (0.0, 0.0)
    other = {"event": "message", "time": 1.0, "message": "x"}
    assert sound(other) is other


def test_a_job_folder_that_is_none_is_passed_over() -> None:
    from shardyard.jobs import store
    from shardyard_tui.job_book import JobBook

    job = store.create(store.Spec("merge", ("/a",), "/b"))
    broken = store.create(store.Spec("merge", ("/a",), "/b"))
    (broken.folder / "outcome.json").write_text('{"state": "done", "time": "yesterday"}')
    (job.folder / "events.jsonl").write_text('{"event": "progress", "time": 1, "done": {}}\nrubbish\n')
    (store.root() / "note").mkdir()
    assert [view.id for view in JobBook().jobs()] == [job.id]
