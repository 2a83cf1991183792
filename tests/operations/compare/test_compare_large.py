"""Large files: one flipped bit is found and placed, and memory does not grow with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.arrays import sparse_safetensors

MEASURE = """
import json, sys
from shardyard.operations.compare.run import compare_paths
from shardyard.operations.statistics.run import stats_path
paths = sys.argv[1:]
result = compare_paths(*paths) if len(paths) == 2 else stats_path(paths[0])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"result": result, "peak": peak * 1024}))
"""
MOST = 150 << 20


def measured(*paths: Path) -> dict[str, Any]:
    """The result, and the peak memory of the process that made it."""
    command = [sys.executable, "-c", MEASURE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_flipped_bit_in_four_gigabytes_is_found_and_placed(tmp_path: Path) -> None:
    shapes = {f"layers.{i}.weight": (8192, 32768) for i in range(4)}
    starts = [sparse_safetensors(tmp_path / f"{side}.safetensors", shapes) for side in "ab"]
    row, column = 6001, 20_017
    with open(tmp_path / "b.safetensors", "r+b") as file:
        file.seek(starts[1]["layers.2.weight"] + 4 * (row * 32768 + column) + 3)
        file.write(bytes([0x40]))  # 0.0 becomes 2.0
    found = measured(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    result = found["result"]
    assert not result["equal"]
    assert [r["relation"] for r in result["tensors"]] == ["identical", "identical", "different", "identical"]
    changed = result["tensors"][2]
    assert (changed["differing"], changed["place"]) == (1, [row, column])
    assert found["peak"] < MOST


def test_a_rounding_of_a_large_tensor_is_streamed(tmp_path: Path) -> None:
    shapes = {"w": (4096, 16384)}
    sparse_safetensors(tmp_path / "a.safetensors", shapes)
    start = sparse_safetensors(tmp_path / "b.safetensors", shapes, "BF16", 2)["w"]
    with open(tmp_path / "b.safetensors", "r+b") as file:
        file.seek(start + 2 * 12_345_678)
        file.write(b"\x80\x3f")
    found = measured(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    (row,) = found["result"]["tensors"]
    assert (row["relation"], row["differing"], row["unexplained"], row["max_abs"]) == ("different", 1, 1, 1.0)
    assert row["argmax"] == 12_345_678
    assert found["peak"] < MOST


def test_statistics_of_a_large_tensor_are_streamed(tmp_path: Path) -> None:
    start = sparse_safetensors(tmp_path / "a.safetensors", {"w": (4096, 16384)})["w"]
    with open(tmp_path / "a.safetensors", "r+b") as file:
        file.seek(start + 4 * 50_000_000)
        file.write(b"\x00\x00\x80\x3f\x00\x00\x00\xc0")
    found = measured(tmp_path / "a.safetensors")
    (row,) = found["result"]["tensors"]
    assert (row["min"], row["max"], row["zeros"]) == (-2.0, 1.0, 4096 * 16384 - 2)
    assert row["quantiles"]["0.5"] == 0.0
    assert found["peak"] < MOST
