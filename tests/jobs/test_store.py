"""Jobs live in files and in processes of their own; whoever looks sees the same."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardyard.errors import DamagedError, IncompleteError, JobError, NoRoomError, UsageError
from shardyard.jobs import events, launch, store
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.owner import LOST_AFTER_S, Owner
from shardyard.jobs.store import Job
from support import fake_worker


@pytest.fixture(autouse=True)
def fake_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "WORKER", fake_worker.COMMAND)


def new(verb: str, tmp_path: Path, **options: Any) -> Job:
    return store.create(Spec(verb, (str(tmp_path),), str(tmp_path / "out"), options))


def wait_for(true: Callable[[], object], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def ended(job: Job) -> State:
    wait_for(lambda: job.state().ended)
    return job.state()


def made(job: Job) -> int:
    ledger = Path(f"{job.spec.out}.ledger")
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def of_kind(job: Job, kind: str) -> list[dict[str, Any]]:
    return [e for e in job.events()[0] if e["event"] == kind]


def test_a_job_runs_to_its_result_and_leaves_its_story(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=3)
    assert job.state() is State.QUEUED
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    job.start()
    assert ended(job) is State.DONE
    kinds = [e["event"] for e in job.events()[0]]
    assert kinds[0] == "plan" and kinds[-1] == "result" and "progress" in kinds
    assert job.plan() == {"steps": 3}
    (result,) = of_kind(job, "result")
    assert result["steps"] == 3 and result["pid"] != os.getpid()
    progress = of_kind(job, "progress")[-1]
    assert progress["done"] == progress["total"] == 300
    assert set(progress) >= {"time", "done", "total", "read", "written", "item", "rate", "eta", "memory", "disk", "cpu"}
    assert set(progress["memory"]) == {"anon", "working_set", "limit", "available"}
    assert progress["memory"]["anon"] > 1_000_000 and progress["disk"]["free"] > 0
    assert json.loads((job.folder / "job.json").read_text())["sources"] == [str(tmp_path)]


def test_ids_sort_by_time_and_are_found_by_their_ends(tmp_path: Path) -> None:
    made_jobs = [new("count", tmp_path) for _ in range(5)]
    ids = [job.id for job in made_jobs]
    assert ids == sorted(ids) and len(set(ids)) == 5
    assert [job.id for job in store.jobs()] == ids[::-1]
    assert store.find(ids[2]).id == ids[2]
    assert store.find(ids[2][-6:]).id == ids[2]
    with pytest.raises(UsageError, match="no job"):
        store.find("nothing")
    with pytest.raises(UsageError, match="5 jobs match"):
        store.find(ids[0][:8])


def test_the_worker_is_in_a_session_of_its_own_and_outlives_its_parent_and_a_hang_up(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from shardyard.jobs import launch, store; from support import fake_worker\n"
        "from shardyard.jobs.folder import Spec\n"
        "from shardyard.jobs.folder import Spec\n"
        "launch.WORKER = fake_worker.COMMAND\n"
        f"job = store.create(Spec('count', ('/',), {str(tmp_path / 'out')!r}, {{'steps': 40, 'wait': 0.03}}))\n"
        "job.start(); print(job.id); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join([str(Path(fake_worker.__file__).parents[1]), launch.environment()["PYTHONPATH"]])
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert parent.returncode == -signal.SIGKILL
    job = store.find(parent.stdout.strip())
    wait_for(lambda: made(job) > 0)
    owner = job.owner()
    assert owner is not None and os.getsid(owner.pid) == owner.pid != os.getsid(0)
    os.kill(owner.pid, signal.SIGHUP)
    assert job.state() is State.RUNNING
    assert ended(job) is State.DONE and made(job) == 40


def test_cancel_stops_at_the_next_step_and_resume_does_only_what_is_missing(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=60, wait=0.03)
    job.start()
    wait_for(lambda: made(job) >= 2)
    assert job.cancel()
    assert ended(job) is State.CANCELLED
    before = made(job)
    assert 2 <= before < 60
    assert of_kind(job, "error")[-1]["error"] == "Cancelled"
    assert not job.cancel()
    job.resume()
    assert ended(job) is State.DONE
    assert of_kind(job, "result")[-1]["made_now"] == 60 - before
    with pytest.raises(UsageError, match="nothing to resume"):
        job.resume()


def test_cancel_goes_through_a_file_where_the_host_differs(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=400, wait=0.02)
    job.start()
    wait_for(lambda: made(job) >= 1)
    (job.folder / "cancel").touch()
    assert ended(job) is State.CANCELLED


def test_a_killed_worker_is_lost_and_resumes(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=30, wait=0.03)
    job.start()
    wait_for(lambda: made(job) >= 3)
    owner = job.owner()
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: job.state() is State.LOST)
    before = made(job)
    # The file may end in a torn line; the next try must not lose its own first event to it.
    with open(job.folder / "events.jsonl", "ab") as file:
        file.write(b'{"event": "progr')
    job.resume()
    assert ended(job) is State.DONE
    assert of_kind(job, "result")[-1]["made_now"] == 30 - before
    assert len(of_kind(job, "plan")) == 2


def test_a_running_job_cannot_be_started_twice(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=100, wait=0.05)
    job.start()
    with pytest.raises((UsageError, JobError)):
        job.resume()
    job.cancel()
    ended(job)


def test_another_host_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    job = new("count", tmp_path)
    job.own(Owner("elsewhere", os.getpid(), 1, "another boot"))
    assert job.state() is State.LOST
    (job.folder / "heartbeat").write_text(f"{time.time():.1f}")
    assert job.state() is State.RUNNING
    assert job.cancel() and job.cancel_asked
    (job.folder / "heartbeat").write_text(f"{time.time() - LOST_AFTER_S - 1:.1f}")
    assert job.state() is State.CANCELLED


def test_a_used_again_process_id_is_not_the_worker(tmp_path: Path) -> None:
    job = new("count", tmp_path)
    me = Owner.of(os.getpid())
    assert me is not None and me.alive(None)
    job.own(Owner(me.host, me.pid, me.started + 1, me.boot))
    assert job.state() is State.LOST


def test_events_come_at_most_ten_a_second_and_never_later_than_two_seconds(tmp_path: Path) -> None:
    job = new("chatter", tmp_path, talk=2.0, silence=3.6)
    job.start()
    ended(job)
    (result,) = of_kind(job, "result")
    assert result["calls"] > 1000
    times = [e["time"] for e in job.events()[0]]
    assert all(sum(1 for t in times if start <= t < start + 1.0) <= 10 for start in times)
    assert max(b - a for a, b in itertools.pairwise(times)) <= 2.0
    heartbeat = job.heartbeat()
    assert heartbeat is not None and times[-1] - heartbeat < 3.0


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("ours", "IncompleteError", "Rank 3 is missing."),
        ("full", "NoRoomError", "The disk at /some/where is full; free some room, then resume."),
        ("quota", "NoRoomError", "The quota at /some/where is used up; free some of it, then resume."),
        ("memory", "NoRoomError", "no more memory"),
        ("ourfault", "JobError", "ZeroDivisionError"),
    ],
)
def test_failures_end_as_one_sentence(tmp_path: Path, how: str, kind: str, words: str) -> None:
    job = new("fail", tmp_path, how=how)
    job.start()
    assert ended(job) is State.FAILED
    assert [f["bytes"] for f in of_kind(job, "finding")] == [5]
    assert of_kind(job, "message")[0]["message"] == "About to fail."
    (event,) = of_kind(job, "error")
    assert event["error"] == kind and words in event["message"]
    error = events.error_of(event)
    assert type(error).__name__ == kind
    if isinstance(error, IncompleteError):
        assert (error.code, error.path, error.tensors) == ("missing-rank", "x.pt", ("a", "b"))
    traceback = (job.folder / "log.txt").read_text()
    assert ("Traceback" in traceback) == (how != "ours")


def test_an_error_of_a_kind_that_only_a_reader_knows_keeps_its_exit_code() -> None:
    from shardyard.formats.pickles import PickleError

    error = events.error_of(events.error_event(PickleError("model.pt, data.pkl: it ends before its end.", path="model.pt")))
    assert isinstance(error, DamagedError) and error.message.startswith("model.pt")


def test_an_unknown_verb_fails_in_words(tmp_path: Path) -> None:
    job = new("dance", tmp_path)
    job.start()
    assert ended(job) is State.FAILED
    assert "dance" in of_kind(job, "error")[0]["message"]


def test_running_out_of_cpu_time_is_said_before_the_kernel_kills(tmp_path: Path) -> None:
    job = new("fail", tmp_path, how="spin")
    command = [*fake_worker.COMMAND, str(job.folder)]
    limited = f"import resource, os, sys; resource.setrlimit(resource.RLIMIT_CPU, (5, 5)); os.execv(sys.executable, {command!r})"
    assert subprocess.run([sys.executable, "-c", limited], env=launch.environment()).returncode == 1
    assert job.state() is State.FAILED
    outcome = job.outcome()
    assert outcome is not None and isinstance(events.error_of(outcome), NoRoomError)
    assert "--slurm" in outcome["message"]


def test_following_yields_everything_once_and_ends(tmp_path: Path) -> None:
    job = new("count", tmp_path, steps=10, wait=0.05)
    job.start()
    seen = list(job.follow(every_s=0.02))
    assert seen == job.events()[0]
    assert seen[-1]["event"] == "result"


def test_reading_goes_on_from_an_offset_and_leaves_a_torn_line_for_later(tmp_path: Path) -> None:
    log = events.EventLog(tmp_path)
    log.append({"event": "message", "time": 1.0, "message": "one"})
    first, offset = events.read(tmp_path)
    assert [e["message"] for e in first] == ["one"]
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"event": "message", "time": 2.0, ')
        file.flush()
        assert events.read(tmp_path, offset) == ([], offset)
        file.write(b'"message": "two"}\nnot json\n[1]\n{"event": 3}\n')
    second, offset = events.read(tmp_path, json.loads(json.dumps(offset)))
    assert [e["message"] for e in second] == ["two"]
    assert events.read(tmp_path, offset)[0] == []


def test_tasks_have_files_of_their_own_and_read_as_one(tmp_path: Path) -> None:
    def progress(time: float, done: int, anon: int, working_set: int, free: int) -> dict[str, Any]:
        return {
            "event": "progress", "time": time, "done": done, "total": 100, "read": done, "written": done, "item": "x", "rate": 10,
            "eta": 1, "memory": {"anon": anon, "working_set": working_set, "limit": 100, "available": 5},
            "disk": {"free": free},
        }  # fmt: skip

    logs = [events.EventLog(tmp_path, task, 2) for task in (0, 1)]
    logs[1].append(progress(1.0, 40, 7, 50, 1000))
    logs[0].append(progress(2.0, 20, 5, 90, 900))
    read, _ = events.read(tmp_path)
    assert [e["task"] for e in read] == [1, 0]
    whole = events.Combined().take(read)[-1]
    assert (whole["done"], whole["total"], whole["rate"], whole["eta"]) == (60, 200, 20, 7.0)
    assert whole["memory"] == {"anon": 12, "working_set": 90, "limit": 100, "available": 5}
    assert whole["disk"] == {"free": 900}


def test_a_full_disk_at_the_job_folder_does_not_end_the_work(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = events.EventLog(tmp_path)
    log.append({"event": "message", "time": 1.0, "message": "lost"})
    assert log.dropped == 1


def test_where_no_job_folder_can_be_made_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHARDYARD_STATE", str(tmp_path / "file"))
    with pytest.raises(NoRoomError, match="SHARDYARD_STATE"):
        new("count", tmp_path)
    assert store.jobs() == []


def test_foreign_folders_among_the_jobs_are_passed_over(tmp_path: Path) -> None:
    job = new("count", tmp_path)
    (store.root() / "zzz").mkdir()
    (store.root() / "zzy").mkdir()
    (store.root() / "zzy" / "job.json").write_text('{"verb": 3}')
    assert [j.id for j in store.jobs()] == [job.id]


def test_looking_at_jobs_and_starting_a_worker_import_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'numpy', 'torch', 'textual', 'psutil'}"
    code = f"import sys, shardyard.jobs.store, shardyard.jobs.launch; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=launch.environment())
    assert done.stdout.strip() == "[]"
    job = new("modules", tmp_path)
    job.start()
    ended(job)
    assert of_kind(job, "result")[0]["heavy"] == []
