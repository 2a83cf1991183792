"""`shardyard jobs` as a person and a script use it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardyard.cli import main
from shardyard.jobs import launch, store
from shardyard.jobs.folder import Spec, State
from shardyard.jobs.store import Job
from support import fake_worker


@pytest.fixture(autouse=True)
def fake_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "WORKER", fake_worker.COMMAND)


def new(tmp_path: Path, verb: str = "count", name: str = "out", **options: Any) -> Job:
    job = store.create(Spec(verb, (str(tmp_path / "source"),), str(tmp_path / name), options))
    job.start()
    return job


def wait_until_ended(job: Job) -> State:
    list(job.follow(every_s=0.02))
    return job.state()


def killed(tmp_path: Path, name: str = "out") -> Job:
    """A job whose worker was killed."""
    job = new(tmp_path, name=name, steps=500, wait=0.05)
    owner = job.owner()
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while job.state() is not State.LOST:
        assert time.monotonic() < until
    return job


def test_the_list_shows_every_state_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out == "No jobs.\n"
    done, lost, failed = new(tmp_path, steps=2), killed(tmp_path), new(tmp_path, "fail", how="ours")
    wait_until_ended(done), wait_until_ended(failed)
    assert main(["jobs", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[failed.id, "failed"], [lost.id, "lost"], [done.id, "done"]]
    assert lines[-1].endswith("count source -> out")
    assert main(["jobs", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(j["id"], j["state"]) for j in found["jobs"]] == [(failed.id, "failed"), (lost.id, "lost"), (done.id, "done")]
    assert found["jobs"][-1]["progress"]["done"] == 200


def test_show_tells_how_it_ended_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = new(tmp_path, "fail", how="ours")
    wait_until_ended(failed)
    assert main(["jobs", "show", failed.id]) == 0
    out = capsys.readouterr().out
    assert "Rank 3 is missing." in out and f"shardyard jobs resume {failed.id}" in out and str(tmp_path / "source") in out
    lost = killed(tmp_path)
    assert main(["jobs", "show", lost.id[-7:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "lost" and found["host"] and found["pid"] and found["outcome"] is None


def test_follow_ends_with_the_exit_code_of_the_jobs_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = new(tmp_path, steps=3, wait=0.05)
    assert main(["jobs", "follow", job.id, "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["event"] == "plan" and events[-1]["event"] == "result" and events[-1]["steps"] == 3
    for how, code in (("ours", 3), ("full", 4), ("ourfault", 6)):
        failed = new(tmp_path, "fail", how=how)
        assert main(["jobs", "follow", failed.id]) == code
    assert capsys.readouterr().err.splitlines()[-1].startswith("Shardyard met a fault")


def test_cancel_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = new(tmp_path, steps=60, wait=0.03)
    assert main(["jobs", "cancel", job.id]) == 0
    assert wait_until_ended(job) is State.CANCELLED
    assert main(["jobs", "follow", job.id]) == 130
    capsys.readouterr()
    assert main(["jobs", "cancel", job.id]) == 0
    assert "had ended already" in capsys.readouterr().out
    assert main(["jobs", "resume", job.id, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # What the first try said is not told again.
    assert [e["event"] for e in lines].count("plan") == 1 and not [e for e in lines if e["event"] == "error"]
    assert lines[-1]["event"] == "result"
    assert main(["jobs", "resume", job.id]) == 2
    assert "nothing to resume" in capsys.readouterr().err


@pytest.mark.parametrize("left", [None, "", '{"verb": "mer', '{"verb": 3}', '{"verb": "merge", "sources": ["a"], "slurm": 5}'])
def test_a_job_whose_job_json_is_damaged_is_listed_and_cleaned_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str | None
) -> None:
    whole = new(tmp_path, steps=1)
    wait_until_ended(whole)
    broken = store.root() / "20200101-000000-000"
    broken.mkdir()
    if left is not None:
        (broken / "job.json").write_text(left)
    assert main(["jobs"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split()[:2] == [broken.name, "failed"] and line.endswith("broken: job.json is missing or damaged")
    assert main(["jobs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][-1]["state"] == "failed"
    assert main(["jobs", "show", broken.name]) == 0
    assert re.search("ended +What job .* was to do is not known.*\ngo on +shardyard jobs clean\n", capsys.readouterr().out)
    for action in ("resume", "follow"):
        assert main(["jobs", action, broken.name]) == 6
        assert "Run the command again." in capsys.readouterr().err
    assert main(["jobs", "clean", "--yes"]) == 0
    assert "broken: job.json is missing or damaged" in capsys.readouterr().out
    assert [job.id for job in store.jobs()] == [whole.id]


def test_a_job_that_is_being_made_is_not_broken() -> None:
    (store.root() / time.strftime("%Y%m%d-%H%M%S-000", time.gmtime())).mkdir(parents=True)
    assert store.jobs() == []


def test_an_unknown_job_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "show", "\x1b[31m"]) == 2
    assert capsys.readouterr().err == "There is no job \\x1b[31m; see: shardyard jobs list\n"


def test_interrupting_follow_leaves_the_job_running(tmp_path: Path) -> None:
    job = new(tmp_path, steps=200, wait=0.05)
    command = [sys.executable, "-m", "shardyard", "jobs", "follow", job.id]
    looker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=launch.environment())
    assert looker.stderr is not None
    looker.stderr.readline()
    looker.send_signal(signal.SIGINT)
    _, err = looker.communicate(timeout=20)
    assert looker.returncode == 130 and f"shardyard jobs follow {job.id}" in err
    assert job.state() is State.RUNNING
    job.cancel()
    wait_until_ended(job)


def test_clean_lists_sizes_and_removes_only_with_consent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost, running = killed(tmp_path), new(tmp_path, name="busy", steps=500, wait=0.05)
    done = new(tmp_path, name="done", steps=1)
    wait_until_ended(done)
    staging, busy, orphan, fresh = (tmp_path / f"{name}.shardyard-partial" for name in ("out", "busy", "orphan", "fresh"))
    for folder in (staging, busy, orphan, fresh):
        folder.mkdir()
        with open(folder / "data", "wb") as file:
            file.write(b"x" * 100_000)
            file.truncate(1 << 30)
    old = time.time() - 1000
    for path in (orphan / "data", orphan):
        os.utime(path, (old, old))
    (tmp_path / "out").mkdir()
    assert main(["jobs", "clean"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"9\d\.\d KiB +|1\d\d\.\d KiB  {re.escape(str(staging))}  \(job {lost.id} is lost\)", out)
    assert str(orphan) in out and "no job of yours knows it" in out and str(lost.folder) in out
    assert not any(str(path) in out for path in (busy, fresh, running.folder, done.folder))
    assert out.endswith("add --yes to remove all of these.\n")
    assert staging.exists() and lost.folder.exists()
    assert main(["jobs", "clean", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["removed"] and {row["kind"] for row in found["leftovers"]} == {"staging", "job"}
    assert all(90_000 < row["bytes"] < 200_000 for row in found["leftovers"] if row["kind"] == "staging")
    assert main(["jobs", "clean", "--yes"]) == 0
    assert "Removed 3." in capsys.readouterr().out
    assert not staging.exists() and not orphan.exists() and not lost.folder.exists()
    assert busy.exists() and fresh.exists() and running.folder.exists() and done.folder.exists() and (tmp_path / "out").exists()
    assert main(["jobs", "clean", "--yes", "--done"]) == 0
    assert not done.folder.exists() and running.folder.exists()
    running.cancel()
    wait_until_ended(running)


@pytest.mark.parametrize(("answer", "removed"), [("n", False), ("", False), ("y", True)])
def test_clean_asks_a_person_at_a_terminal(tmp_path: Path, answer: str, removed: bool) -> None:
    lost = killed(tmp_path)
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "shardyard", "jobs", "clean"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=launch.environment())
    os.close(terminal)
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(main_end, 4096)
    os.write(main_end, answer.encode() + b"\n")
    assert process.wait(timeout=20) == 0
    os.close(main_end)
    assert lost.folder.exists() != removed
