"""Jobs on a real Slurm: two nodes on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shardyard.cli import main
from shardyard.cli.exits import code_of
from shardyard.errors import JobError, UsageError
from shardyard.jobs import launch, slurm, store
from shardyard.jobs.folder import Spec, State, write_json
from shardyard.jobs.store import Job
from support import fake_worker
from support import slurm as lab
from support.merges import digests, slowed, write_source
from support.slurm import answer, wait_for

pytestmark = pytest.mark.services

REAL_WORKER = launch.WORKER
UNIT = 64 << 20
"""A work unit of a merge."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Path]:
    with lab.cluster() as folder:
        yield folder


@pytest.fixture(autouse=True)
def fake_verbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "WORKER", fake_worker.COMMAND)
    slurm._clock.reset()
    yield
    for job in store.jobs():
        if not state(job).ended:
            job.cancel()
            wait_for(lambda job=job: state(job).ended, 20)  # type: ignore[misc]


def submit(tmp_path: Path, steps: int = 4, wait: float = 0.0, **settings: str) -> Job:
    job = store.create(Spec("share", (str(tmp_path),), str(tmp_path / "out"), {"steps": steps, "wait": wait}, settings))
    job.start()
    return job


def state(job: Job) -> State:
    slurm.refresh([job], now=True)
    return job.state()


def results(job: Job) -> list[dict[str, Any]]:
    return [e for e in job.events()[0] if e["event"] == "result" and "steps" in e]


def number(job: Job) -> str:
    return str(slurm.details(job)["id"])


def made(job: Job) -> int:
    out = Path(str(job.spec.out))
    return sum(len(f.read_text().splitlines()) for f in out.parent.glob(f"{out.name}.ledger.*"))


def worker_pids(job: Job) -> dict[int, int]:
    return {task: owner.pid for task in range(job.spec.tasks) if (owner := job.owner(task)) is not None}


def test_one_task_runs_on_a_node_and_tells_its_story_in_the_same_folder(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=3, wait=0.5, time="5")
    assert job.state() is State.QUEUED
    seen = list(job.follow(every_s=0.1))
    assert job.state() is State.DONE
    assert seen[0]["event"] == "plan" and seen[-1]["event"] == "result"
    assert results(job)[0]["nodes"] == ["n1"]
    assert job.plan() == {"steps": 3}


def test_four_tasks_on_two_nodes_share_the_work_and_read_as_one_job(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=12, wait=0.6, nodes="2", tasks="4")
    seen = list(job.follow(every_s=0.1))
    assert job.state() is State.DONE, (job.folder / "log.txt").read_text()
    (result,) = results(job)
    assert result["steps"] == 12 and result["nodes"] == ["n1", "n2"]
    assert sorted(p.name for p in job.folder.glob("events*.jsonl")) == [
        "events.1.jsonl", "events.2.jsonl", "events.3.jsonl", "events.jsonl",
    ]  # fmt: skip
    last = [e for e in seen if e["event"] == "progress"][-1]
    assert last["done"] == last["total"] == 1200 and last["tasks"] == 4
    assert made(job) == 12


def test_the_node_and_slurms_own_state_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = submit(tmp_path, steps=100, wait=0.2)
    wait_for(lambda: state(job) is State.RUNNING and made(job) > 0, 20)
    assert slurm.describe(job) == f"Slurm job {number(job)}: running on n1"
    assert main(["jobs", "list"]) == 0
    assert f"[Slurm job {number(job)}: running on n1]" in capsys.readouterr().out


def test_pending_reasons_are_shown_and_cancel_needs_no_node(tmp_path: Path) -> None:
    job = submit(tmp_path, begin="now+1hour")
    wait_for(lambda: state(job) is State.QUEUED and "BeginTime" in slurm.describe(job), 20)
    job.cancel()
    assert job.state() is State.CANCELLED
    assert answer("squeue", "-h", "-t", "pending,running", "-o", "%i").split() == []


def test_cancel_is_scancel_and_resume_a_new_submission(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=30, wait=0.2, nodes="2", tasks="4")
    wait_for(lambda: made(job) >= 5, 20)
    first = number(job)
    assert job.cancel()
    wait_for(lambda: state(job) is State.CANCELLED, 20)
    wait_for(lambda: answer("squeue", "-h", "-t", "running,completing", "-o", "%i") == "", 20)
    before = made(job)
    assert before < 30
    job.resume()
    assert number(job) != first
    list(job.follow(every_s=0.1))
    assert job.state() is State.DONE
    assert made(job) == 30 and results(job)[-1]["steps"] == 30


def test_a_killed_task_fails_the_job_in_words_and_the_resumed_job_does_the_rest(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=24, wait=0.3, nodes="2", tasks="4")
    wait_for(lambda: made(job) >= 4 and len(worker_pids(job)) == 4, 20)
    os.kill(worker_pids(job)[2], signal.SIGKILL)
    list(job.follow(every_s=0.1))
    assert job.state() is State.FAILED
    before = made(job)
    # The other three went on to their ends.
    assert 18 <= before < 24
    outcome = job.outcome()
    assert outcome is not None and outcome["message"] == f"{24 - before} steps are missing."
    job.resume()
    list(job.follow(every_s=0.1))
    assert job.state() is State.DONE and made(job) == 24


def test_a_preempted_job_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=64, wait=0.4, nodes="2", tasks="4", exclusive="yes")
    wait_for(lambda: made(job) >= 4, 20)
    urgent = answer("sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: state(job) is State.QUEUED, 30)
    assert not job.state().ended
    wait_for(lambda: answer("squeue", "-h", "-j", urgent, "-t", "pending,running,completing") == "", 30)
    before = made(job)
    assert 0 < before < 64
    # A requeued job waits two minutes by itself.
    until = time.monotonic() + 60
    while made(job) == before and time.monotonic() < until:
        subprocess.run(["scontrol", "update", f"jobid={number(job)}", "StartTime=now"], capture_output=True)
        time.sleep(0.5)
    list(job.follow(every_s=0.1))
    assert job.state() is State.DONE, (job.folder / "log.txt").read_text()
    assert made(job) == 64
    assert any(e["event"] == "message" and "Slurm stopped it" in e["message"] for e in job.events()[0])


def test_a_job_that_slurm_has_forgotten_and_that_left_no_word_is_lost(tmp_path: Path) -> None:
    job = submit(tmp_path, steps=100, wait=0.2)
    wait_for(lambda: made(job) >= 1, 20)
    os.kill(worker_pids(job)[0], signal.SIGKILL)
    wait_for(lambda: state(job) is State.LOST, 30)
    wait_for(lambda: answer("squeue", "-h", "-t", "all", "-j", number(job)) == "", 30)
    data = slurm.details(job)
    write_json(job.folder / "slurm.json", {**data, "state": "RUNNING"})
    assert state(job) is State.LOST
    assert "no longer known" in slurm.describe(job)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven and a half units of weights, as one file."""
    folder = tmp_path_factory.mktemp("weights")
    write_source(folder / "model.safetensors", 15, UNIT // 2)
    return folder


def merge(source: Path, out: Path, options: Mapping[str, Any] | None = None, **settings: str) -> Job:
    job = store.create(Spec("merge", (str(source),), str(out), options or {}, settings))
    job.start()
    return job


def log_of(job: Job) -> str:
    return (job.folder / "log.txt").read_text()


def test_a_merge_by_one_task_and_by_four_are_equal_and_each_reads_its_quarter(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "WORKER", REAL_WORKER)
    options = {"max_shard_size": "none"}
    one, four = merge(weights, tmp_path / "one", options), merge(weights, tmp_path / "four", options, nodes="2", tasks="4")
    for job in (one, four):
        list(job.follow(every_s=0.1))
        assert job.state() is State.DONE, (job.outcome(), log_of(job))
    assert digests(tmp_path / "one") == digests(tmp_path / "four")
    total = (weights / "model.safetensors").stat().st_size
    read = {e["task"]: e["read"] for e in four.events()[0] if e["event"] == "progress" and "task" in e}
    assert set(read) == {0, 1, 2, 3}
    # Seven and a half units for four tasks: each has two, the last one and a half.
    assert all(0.18 < share / total < 0.29 for share in read.values())
    assert sum(read.values()) < 1.05 * total
    (result,) = [e for e in four.events()[0] if e["event"] == "result" and "out" in e]
    assert result["complete"] and "task" not in result
    assert sorted(p.name for p in tmp_path.iterdir()) == ["four", "one"]


def test_a_merge_with_a_killed_task_resumes_to_the_same_bytes(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "WORKER", slowed(*REAL_WORKER))
    options = {"dtype": "bfloat16", "workers": 1}
    job = merge(weights, tmp_path / "out", options, nodes="2", tasks="4")
    wait_for(lambda: len(worker_pids(job)) == 4 and (job.last_progress() or {}).get("written"), 40)
    os.kill(worker_pids(job)[1], signal.SIGKILL)
    list(job.follow(every_s=0.1))
    assert job.state() is State.FAILED
    outcome = job.outcome()
    assert outcome is not None and "of 5 work units are not done yet" in outcome["message"]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(launch, "WORKER", REAL_WORKER)
    job.resume()
    list(job.follow(every_s=0.1))
    assert job.state() is State.DONE, (job.outcome(), log_of(job))
    reference = merge(weights, tmp_path / "reference", {"dtype": "bfloat16"})
    list(reference.follow(every_s=0.1))
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "reference"]


def test_a_refusal_on_the_node_ends_the_job_with_its_own_sentence_and_exit_code(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "WORKER", REAL_WORKER)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    arguments = ["merge", str(weights), "-o", str(tmp_path / "out"), "--slurm", "nodes=2,tasks=4"]
    assert main(arguments) == 5
    assert "is there already" in capsys.readouterr().err.splitlines()[-1]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition": "nope"}, r"Slurm refused the job \(.*partition.*without --slurm"),
        ({"output": "/x"}, "cannot take output"),
        ({"bad key": "1"}, "cannot take bad key"),
        ({"tasks": "none"}, "tasks= takes a number"),
    ],
)
def test_what_slurm_or_we_refuse_is_said_at_once(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submit(tmp_path, **settings)
    (job,) = store.jobs()
    assert job.state() is State.FAILED


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: fatal: Unable to process configuration file",
        "sbatch does not answer (TimeoutExpired)",
    ],
)
def test_a_controller_out_of_reach_is_no_wrong_use_and_the_job_can_be_submitted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slurm, "_run", lambda command, *rest: subprocess.CompletedProcess(command, 1, "", f"noise\n{said}\n"))
        with pytest.raises(JobError, match=r"Slurm cannot be asked now \(.*shardyard jobs resume") as caught:
            submit(tmp_path)
    assert code_of(caught.value) == 6
    (job,) = store.jobs()
    assert job.state() is State.FAILED
    job.resume()
    wait_for(lambda: state(job) is State.DONE, 30)


def test_one_question_covers_all_jobs_and_the_gaps_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [submit(tmp_path / str(k), begin="now+1hour") for k in range(3)]
    wait_for(lambda: all("BeginTime" in slurm.describe(j) or slurm.refresh(jobs, now=True) for j in jobs), 20)
    asked: list[str] = []
    run = slurm._run
    monkeypatch.setattr(slurm, "_run", lambda command, *rest: (asked.append(command[0]), run(command, *rest))[1])
    clock = [1000.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])
    slurm._clock.reset()
    times = []
    while clock[0] < 1300.0:
        before = len(asked)
        slurm.refresh(jobs)
        if len(asked) > before:
            times.append(clock[0])
        clock[0] += 1.0
    assert set(asked) == {"squeue"}
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps[:4] == [4.0, 8.0, 16.0, 32.0] and set(gaps[4:]) == {60.0}
