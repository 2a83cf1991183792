"""The man page says what the parsers say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from shardyard.cli import VERBS, manual

PAGE = Path(__file__).parents[2] / "docs" / "shardyard.1"


def test_the_page_in_the_documents_is_the_one_that_the_parsers_give() -> None:
    assert PAGE.read_text() == manual.page(), "make man writes it anew"


def test_every_verb_and_exit_code_is_in_it() -> None:
    page = manual.page()
    assert all(f".SS {verb}\n" in page for verb in VERBS)
    assert ".B 130\n" in page


def test_man_formats_it_without_a_warning() -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "--warnings", "-l", str(PAGE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "--max-shard-size" in done.stdout.replace("\x08", "").replace("‐", "-")
