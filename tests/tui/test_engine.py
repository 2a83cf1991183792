"""The real engine behind the screens: readers in processes of their own, jobs in folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shardyard.jobs import store
from shardyard.jobs.folder import Spec, State
from shardyard_tui.engine import RealEngine
from shardyard_tui.facts import EngineError, Found, JobRequest, Scanning
from shardyard_tui.job_book import JobBook
from shardyard_tui.reader import Reader
from support.checkpoints import cases


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Real processes need the real time."""


@pytest.fixture
async def engine() -> AsyncIterator[RealEngine]:
    made = RealEngine()
    yield made
    await made.close()


@pytest.fixture
def zero3(fixtures: Path, tmp_path: Path) -> Path:
    """A copy of a ZeRO-3 checkpoint, in a tree with a note beside it."""
    source = next(case for case in cases("deepspeed") if case.name == "trainer_z3_llama")
    target = tmp_path / "runs" / "z3"
    shutil.copytree(checkpoint_in(source), target)
    (tmp_path / "runs" / "notes.txt").write_text("hello")
    return target


def checkpoint_in(case: Path) -> Path:
    """The folder that holds `latest`."""
    return next(case.rglob("latest")).parent


async def test_a_tree_is_searched_and_what_is_found_opens(engine: RealEngine, zero3: Path) -> None:
    items = [item async for item in engine.scan(str(zero3.parent))]
    found = [item for item in items if isinstance(item, Found)]
    assert str(zero3) in {f.path for f in found}
    assert isinstance(items[-1], Scanning)
    opened = await engine.open(str(zero3))
    assert opened.report["kind"] == "deepspeed-zero3"
    assert opened.report["verdict"]
    names = [opened.table.name(row) for row in range(len(opened.table))]
    assert "model.embed_tokens.weight" in names
    assert opened.stamp == pytest.approx(max(f.stat().st_mtime for f in zero3.rglob("*") if f.is_file()), abs=1)


async def test_the_app_reads_no_format_and_no_numbers_library_itself(engine: RealEngine, zero3: Path) -> None:
    opened = await engine.open(str(zero3))
    row = next(r for r in range(len(opened.table)) if opened.table.name(r) == "model.embed_tokens.weight")
    detail = await engine.tensor(str(zero3), "model.embed_tokens.weight")
    facts = opened.table.of(row)
    assert sum(p.nbytes for p in detail.pieces) == facts.nbytes
    statistics = await engine.statistics(str(zero3), "model.embed_tokens.weight")
    assert statistics["numel"] == facts.parameters
    assert statistics["nan"] == 0
    with pytest.raises(EngineError, match="is not here"):
        await engine.statistics(str(zero3), "no.such.tensor")


async def test_a_byte_map_is_in_order_and_covers_the_file(engine: RealEngine, zero3: Path) -> None:
    opened = await engine.open(str(zero3))
    file = next(str(f["path"]) for f in opened.report["files"] if f["role"] == "masters+optimizer")
    found = await engine.byte_map(str(zero3), file)
    assert found.nbytes == (zero3 / file).stat().st_size
    at = 0
    for stretch in found.stretches:
        assert stretch.start == at
        at += stretch.nbytes
    assert at == found.nbytes
    assert {"master", "optimizer"} & {s.what for s in found.stretches}


async def test_a_plan_is_the_one_of_dry_run_with_the_limits_beside_it(engine: RealEngine, zero3: Path, tmp_path: Path) -> None:
    plan = await engine.plan(JobRequest("merge", (str(zero3),), str(tmp_path / "out"), {"dtype": "bfloat16"}))
    assert plan["bytes_read"] > plan["bytes_written"] > 0
    assert plan["casts"]
    assert "memory" in plan["limits"]
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    with pytest.raises(EngineError) as refused:
        await engine.plan(JobRequest("merge", (str(zero3),), str(tmp_path / "full")))
    assert refused.value.kind == "OutputExistsError"
    export = await engine.plan(JobRequest("export", (str(zero3),), str(tmp_path / "exported")))
    assert any(f["name"] == "config.json" for f in export["files"])


async def test_a_free_name_is_proposed_beside_the_source(engine: RealEngine, zero3: Path) -> None:
    assert await engine.default_out(str(zero3), "merge", "/") == f"{zero3}-merged"
    (zero3.parent / "z3-merged").mkdir()
    assert await engine.default_out(str(zero3), "merge", "/") == f"{zero3}-merged-2"


async def test_a_merge_runs_as_a_job_that_anybody_can_follow(engine: RealEngine, zero3: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = await engine.start(JobRequest("merge", (str(zero3),), str(out)))
    view = await ended(engine, job)
    assert view.state == "done", view.message
    assert (out / "model.safetensors").exists()
    events, offset = await engine.events(job, {})
    assert {"plan", "result"} <= {e["event"] for e in events}
    assert (await engine.events(job, offset))[0] == []
    assert await engine.clean() == 1
    assert await engine.jobs() == []


def test_ended_jobs_are_not_read_again_until_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_STATE", str(tmp_path))
    job = store.create(Spec("merge", ("/a",), "/b"))
    book = JobBook()
    assert [view.state for view in book.jobs()] == ["queued"]
    job.begin_attempt()
    job.end(State.FAILED, {"message": "no room"})
    assert [view.state for view in book.jobs()] == ["failed"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "jobs", lambda: pytest.fail("nothing has changed"))
        assert [view.message for view in book.jobs()] == ["no room"]
    job.begin_attempt()
    assert [view.state for view in book.jobs()] == ["queued"]
    job.end(State.DONE)
    store.create(Spec("merge", ("/a",), "/c"))
    assert [view.state for view in book.jobs()] == ["queued", "done"]


async def test_compared_rows_can_be_read_from_the_job(engine: RealEngine, zero3: Path, tmp_path: Path) -> None:
    job = await engine.start(JobRequest("compare", (str(zero3), str(zero3))))
    view = await ended(engine, job)
    assert view.state == "done", view.message
    rows, offset = await engine.rows(job, 0)
    assert rows and all(r["relation"] == "identical" for r in rows)
    assert await engine.rows(job, offset) == ([], offset)


async def ended(engine: RealEngine, job: str) -> Any:
    """The job's view once it has ended."""
    for _ in range(600):
        view = next(v for v in await engine.jobs() if v.id == job)
        if not view.running:
            return view
        await asyncio.sleep(0.05)
    raise AssertionError("the job did not end")


async def test_no_such_path_and_no_such_job_are_sentences(engine: RealEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="There is no"):
        await engine.open(str(tmp_path / "nothing"))
    with pytest.raises(EngineError, match="There is no job"):
        await engine.cancel("20000101")
    listing = await engine.listing(str(tmp_path / "nothing"))
    assert not listing.entries
    assert listing.problem == "nothing cannot be listed: no such file or directory."


async def test_a_reader_that_dies_costs_one_answer(engine: RealEngine, zero3: Path) -> None:
    await engine.open(str(zero3))
    lane = engine._lane("look")
    process = lane._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(engine.open(str(zero3)))
    await asyncio.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="ended"):
        await asking
    assert (await engine.open(str(zero3))).table


async def test_leaving_a_question_ends_the_reader_at_once(engine: RealEngine, zero3: Path) -> None:
    await engine.listing(str(zero3))
    process = engine._lane("list")._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # as a read from a dead mount would
    asking = asyncio.ensure_future(engine.listing(str(zero3)))
    await asyncio.sleep(0.1)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(process.wait(), 5)
    assert (await engine.listing(str(zero3))).entries


async def test_links_fifos_and_odd_names_are_listed_safely(engine: RealEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "bad\x1b[31m").write_text("x")
    listing = await engine.listing(str(tmp_path))
    assert {e.name for e in listing.entries} == {"fifo", "dangling", "bad\x1b[31m"}
    items = [item async for item in engine.scan(str(tmp_path))]
    assert not [i for i in items if isinstance(i, Found)]


def test_a_search_tells_what_it_could_not_look_at(zero3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = zero3.parent / "locked"
    locked.mkdir()
    list_folder = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(locked):
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    told = [item for item in Reader().scan(str(zero3.parent)) if isinstance(item, Scanning) and item.problem]
    assert [item.unread for item in told] == [str(locked)]
    assert "Permission denied" in told[0].problem
