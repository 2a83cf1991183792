"""Comparing a file with its copy, against `cmp` of the same two files in the same minute; and against its own rounding.

The bar: at most 1.3 times `cmp`, in less than 150 MB, whatever the files' size.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_RATIO = 1.3
MOST_BYTES = 150 << 20
SHAPES = {f"model.layers.{i}.mlp.weight": (4096, 1280) for i in range(60)}
"""1.26 GB in float32."""

_CHILD = """
import sys, time
start = time.perf_counter()
from shardyard.operations.compare.run import compare_paths
result = compare_paths(*sys.argv[1:])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - start, peak * 1024, result["worst"])
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the benchmark."""

    what: str
    seconds: float
    peak_bytes: int = 0
    relation: str = ""


def measure(folder: Path, *, rounds: int = 3) -> Iterator[Measured]:
    """Write the files into `folder` and time, best of `rounds`."""
    import ml_dtypes
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    a, b, c = (folder / f"{name}.safetensors" for name in ("a", "copy", "rounded"))
    save_file(tensors, a)
    save_file(tensors, b)
    save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}, c)
    tensors.clear()
    yield _best("cmp, 1.26 GB against its copy", rounds, lambda: _cmp(a, b))
    yield _best("shardyard compare, the same files", rounds, lambda: _ours(a, b))
    yield _best("shardyard compare, against its bfloat16 rounding", rounds, lambda: _ours(a, c))


def _best(what: str, rounds: int, run: Callable[[], tuple[float, int, str]]) -> Measured:
    return Measured(what, *min(run() for _ in range(rounds)))


def _cmp(a: Path, b: Path) -> tuple[float, int, str]:
    start = time.perf_counter()
    subprocess.run(["cmp", a, b], check=True)
    return time.perf_counter() - start, 0, ""


def _ours(a: Path, b: Path) -> tuple[float, int, str]:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _CHILD, str(a), str(b)], check=True, capture_output=True, text=True)
    _, peak, relation = done.stdout.split()
    return time.perf_counter() - start, int(peak), relation  # with the interpreter's start and all imports


def main() -> int:
    """Print the figures; 1 if a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        plain, ours, rounded = measure(Path(folder))
    for line in (plain, ours, rounded):
        memory = f"{line.peak_bytes / 2**20:6.0f} MiB" if line.peak_bytes else ""
        print(f"{line.what:<50}{line.seconds:7.2f} s  {memory}  {line.relation}")
    ratio = ours.seconds / plain.seconds
    print(f"ratio to cmp: {ratio:.2f} (at most {MOST_RATIO})")
    good = ratio <= MOST_RATIO and max(ours.peak_bytes, rounded.peak_bytes) <= MOST_BYTES
    return 0 if good and ours.relation == "identical" and rounded.relation == "rounded-bfloat16" else 1


if __name__ == "__main__":
    raise SystemExit(main())
