"""`shardyard doctor`: facts for a report, and advice where the machine stands in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardyard import __version__
from shardyard.cli import doctor, main
from shardyard.jobs import launch


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_report_has_versions_terminal_limits_disks_and_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    assert found["versions"]["shardyard"] == __version__
    assert found["versions"]["packages"]["numpy"]
    assert set(found["limits"]) >= {"anon", "working_set", "limit", "available", "ulimits", "cores", "workers", "groups"}
    assert {d["role"] for d in found["disks"]} >= {"current folder", "home", "jobs"}
    assert all(d["free"] <= d["total"] and d["kind"] for d in found["disks"])
    assert isinstance(found["slurm"]["found"], bool)
    assert found["terminal"]["size"][0] > 0


def test_the_text_says_the_same_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("Versions", "Terminal", "Limits", "Disks", "Slurm", "Jobs", __version__, "open files"):
        assert word in out


def test_limits_that_matter_come_with_advice() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (600, 600)); "
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from shardyard.cli import main; sys.exit(main(['doctor', '--json']))"
    )
    environment = {**launch.environment(), "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout)
    advice = " ".join(found["advice"])
    assert "10:00 of CPU time" in advice and "4.0 GiB" in advice and "TERM" in advice
    assert found["limits"]["available"] < 4 << 30 and found["limits"]["cpu_left"] < 600


def test_a_slurm_that_does_not_answer_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("sbatch", "echo slurm 22.05.8"), ("sinfo", "echo 'debug*|up|infinite|2'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    found = report(capsys)["slurm"]
    assert found["version"] == "slurm 22.05.8" and found["answers"]
    assert found["partitions"] == [{"name": "debug*", "state": "up", "time": "infinite", "nodes": "2"}]
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert any("does not answer" in text for text in report(capsys)["advice"])


@pytest.mark.parametrize(
    ("setting", "kills"), [("", False), ("KillUserProcesses=yes\n", True), ("#KillUserProcesses=yes\n", False)]
)
def test_a_machine_that_kills_at_logout_is_recognised(tmp_path: Path, setting: str, kills: bool) -> None:
    folder = tmp_path / "etc/systemd"
    folder.mkdir(parents=True)
    (folder / "logind.conf").write_text(f"[Login]\n{setting}")
    assert doctor._logging_out_kills(tmp_path) is kills
