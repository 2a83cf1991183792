"""Every hostile file and place is described in a sentence, and that is all that happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hostile.inspect_all import problems
from shardyard.operations.inspect.report import report
from support.checkpoints import fixture_root

SCRIPT = Path(__file__).with_name("inspect_all.py")


@cache
def rows() -> list[dict[str, Any]]:
    """What one child process said of each case, in the order of the cases."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SHARDYARD_FIXTURES": str(fixture_root())}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rows"], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_case_was_looked_at() -> None:
    cases = json.loads((fixture_root() / "hostile" / "expected.json").read_text())["cases"]
    places = json.loads((fixture_root() / "hostile" / "expected_fs.json").read_text())
    assert len(rows()) == len(cases) + len(places) + 1 >= 347


def test_no_case_does_harm_or_goes_without_a_sentence() -> None:
    wrong = {row["path"]: found for row in rows() if (found := problems(row))}
    assert not wrong


def said(path: str) -> str:
    """The text that was printed for a case, on one line."""
    row = next(row for row in rows() if row["path"].endswith(path))
    return " ".join(str(row["text"]).split())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("code/os_system.pt", "os.system, which would run code"),
        ("code/header_expression.npy", "no plain literal"),
        ("code/object_array.npz", "holds Python objects (a pickle) and was not read"),
        ("safetensors/overlap.safetensors", "tensors a and b overlap"),
        ("safetensors/hole_between.safetensors", "8 bytes between a and b belong to no tensor"),
        ("safetensors/dup_keys_same.safetensors", "tensor name w stands twice"),
        ("safetensors/shape_overflow_times_zero.safetensors", "larger than 64 bits can count"),
        ("safetensors/truncated_data.safetensors", "need 16 bytes, 10 are there"),
        ("lfs/model.safetensors", "the real file has 5,368,709,120 bytes"),
        ("html/pytorch_model.bin", "a web page (403 Forbidden)"),
        ("html/model.pt", "Repository not found"),
        ("zeros/model.safetensors", "all zero bytes"),
        ("mislabelled/safetensors_named.pt", "is a safetensors file, whatever its name says"),
        ("mislabelled/elf.bin", "a program (ELF)"),
        ("mislabelled/gzipped.pt", "gzip-compressed file. Unpack it first."),
        ("gguf/version_99.gguf", "GGUF version 99 is unknown"),
        ("index/outside_path/model.safetensors.index.json", "points outside its folder"),
        (
            "index/missing_shard/model.safetensors.index.json",
            "1 shard is missing: model-00002-of-00002.safetensors (1 tensor: b)",
        ),
        ("index/swapped_shards/model.safetensors.index.json", "as the index says"),
        ("index/shard_is_pickle/model.safetensors.index.json", "is a torch file, not safetensors; it was not run"),
        ("/pipe.safetensors", "a named pipe, not a regular file; it was not opened"),
        ("/sock.pt", "a socket, not a regular file"),
        ("/zero.bin", "a device, not a regular file"),
        ("/dangling.safetensors", "a broken link"),
        ("/sparse.safetensors", "8.59 billion parameters"),
    ],
)
def test_the_sentence_names_the_cause(path: str, words: str) -> None:
    assert words in said(path)


def test_a_view_that_repeats_a_value_without_end_has_no_hash() -> None:
    (checkpoint,) = report(fixture_root() / "hostile" / "pickle" / "shape_expand_zero_stride.pt", hashes=True)["checkpoints"]
    rows = checkpoint["tensor_list"]
    assert isinstance(rows, list) and [(row["name"], row["bytes"], row["sha256"]) for row in rows] == [("w", 4 * 10**12, None)]
