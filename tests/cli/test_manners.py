"""What a shell does to a command: closed and full streams, old locales, empty variables, closed folders, long names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardyard.cli import streams
from shardyard.errors import JobError, NoRoomError, UsageError
from shardyard.limits.system import refusal
from support.checkpoints import fixture_root
from support.command import last_line, shardyard

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "modèle"
    folder.mkdir()
    save_file({"größe.weight": np.arange(9, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def in_shell(script: str, *args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = f'run() {{ "{sys.executable}" -m shardyard "$@"; }}; {script}'
    words = ["bash", "-c", command, "bash", *map(str, args)]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", [["inspect", "--tensors"], ["stats"], ["merge", "--help"], ["doctor"]])
def test_a_locale_without_unicode_is_no_fault(command: list[str], model: Path) -> None:
    asked = command if command[-1] in ("--help", "doctor") else [*command, str(model)]
    done = shardyard(*asked, **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_signs_of_ours_have_plain_stand_ins() -> None:
    streams.prepare()
    assert "a…▁█→".encode("ascii", "shardyard") == b"a..._#->"
    assert "é\udcff".encode("ascii", "shardyard") == b"\\xe9\xff"
    assert "é\udcff".encode("utf-8", "shardyard") == b"\xc3\xa9\xff"


def test_closed_streams_are_no_fault(model: Path, tmp_path: Path) -> None:
    done = in_shell('run merge "$1" -o "$2" >&- 2>&-', model, tmp_path / "out", SHARDYARD_STATE=str(tmp_path / "state"))
    assert done.returncode == 0 and (tmp_path / "out" / "model.safetensors").exists()
    assert in_shell('run inspect "$1" <&- >&- 2>&-', model).returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_stream_is_told(model: Path) -> None:
    done = in_shell('run inspect "$1" >/dev/full', model)
    assert done.returncode == 4
    assert done.stderr == "The output stream cannot be written: No space left on device.\n"


@pytest.mark.parametrize(
    "words",
    [["merge", "", "-o", "x"], ["merge", "{}", "-o", ""], ["inspect", ""], ["compare", "{}", ""], ["shrink", "{}", "-o", ""]],
)
def test_an_empty_path_is_not_the_current_folder(words: list[str], model: Path, tmp_path: Path) -> None:
    done = shardyard(*(w.format(model) for w in words), cwd=tmp_path, SHARDYARD_STATE=str(tmp_path / "state"))
    assert done.returncode == 2 and "an empty path" in last_line(done)
    assert [p.name for p in tmp_path.iterdir()] == [model.name]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["merge"], "Following arguments are required: SRC, -o/--output; see shardyard merge --help."),
        (["merge", "a", "-o", "b", "--workers", "0"], "--workers: '0' is no number of at least 1; see shardyard merge --help."),
        (["compare", "a", "b", "--rtol", "x"], "--rtol: 'x' is no number from 0 on; see shardyard compare --help."),
        (["jobs", "show", ""], "No job's ID was given; see: shardyard jobs list"),
        (["export", "{}", "-o", "x", "--like", "/nowhere/base"], "There is no /nowhere/base, which --like names."),
        (["compare", "a", "b", "--workers", "-2"], "--workers: '-2' is no number of at least 1; see shardyard compare --help."),
    ],
)
def test_wrong_arguments_are_one_sentence(words: list[str], sentence: str, model: Path, tmp_path: Path) -> None:
    done = shardyard(*(w.format(model) for w in words), cwd=tmp_path, SHARDYARD_STATE=str(tmp_path / "state"))
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", sentence)


def test_a_name_that_is_too_long_is_told(model: Path, tmp_path: Path) -> None:
    done = shardyard("merge", model, "-o", tmp_path / ("x" * 300), SHARDYARD_STATE=str(tmp_path / "state"))
    assert done.returncode == 2 and "too long a name" in last_line(done)
    assert "fault of its own" not in done.stderr


def test_refusals_of_the_system_say_what_to_do() -> None:
    assert "ulimit -n" in refusal(OSError(24, "", "a.pt")).message
    assert isinstance(refusal(OSError(28, "")), NoRoomError)
    assert isinstance(refusal(PermissionError(13, "", "/closed/x")), UsageError)
    assert refusal(OSError(5, "", "/disk/x")).message == "/disk/x cannot be used: Input/output error."
    assert isinstance(refusal(OSError(5, ""), "/job"), JobError)


def test_what_cannot_be_seen_is_said_in_the_plan(tmp_path: Path) -> None:
    done = shardyard("merge", fixture_root() / "dcp" / "hf_sharded_w3" / "ckpt", "-o", tmp_path / "out", "--dry-run")
    assert done.returncode == 0 and "\nnote     No shard says how many there were" in done.stdout
