"""How a merge's time and memory grow: with the model, the workers, the ranks, the tensors, and slow calls."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from tests.bench.measure import warm

from shardyard.operations.gather import BLOCK

ROUNDS = 3

_MERGE = """
import json, sys, time
start = time.perf_counter()
from shardyard.operations.merge.run import merge
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge
plan = plan_merge([sys.argv[1]], sys.argv[2], MergeOptions.parse(json.loads(sys.argv[3])))
merge(plan)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - start, peak / 1024)
"""
Points = list[tuple[float, float, float]]
"""(what varies, seconds, peak MiB)."""


def measure(folder: Path) -> dict[str, Points]:
    """All curves, printed as they come."""
    found: dict[str, Points] = {}
    sources = {gb: _safetensors(folder, 64, gb) for gb in (0.5, 1, 2, 4, 8)}
    found["size_gb"] = [(gb, *_merge(folder, path)) for gb, path in sources.items()]
    found["workers"] = [(n, *_merge(folder, sources[2], workers=n)) for n in (1, 2, 4)]
    for path in sources.values():
        path.unlink()
    found["tensors"] = [(n, *_merge(folder, _sharded(folder, n), max_shard_size=800_000)) for n in (10, 1000, 100_000, 1_000_000)]
    found["ranks"] = [(n, *_merge(folder, _ranks(folder, n))) for n in (8, 64, 1024)]
    found["slow_calls"] = _slow(folder)
    for name, points in found.items():
        for at, seconds, peak in points:
            print(f"{name:<12}{at:>10g}{seconds:>9.2f} s{peak:>8.0f} MiB", flush=True)
    return found


def _merge(folder: Path, source: Path, *, preload: str | None = None, **options: object) -> tuple[float, float]:
    out = folder / "curve-out"
    shutil.rmtree(out, ignore_errors=True)
    given = json.dumps({"verify": "none", **options})
    command = [sys.executable, "-c", _MERGE, str(source), str(out), given]
    environment = {"LD_PRELOAD": preload} if preload else None
    if source.is_file():
        warm([source])
    runs = []
    for _ in range(ROUNDS):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        shutil.rmtree(out, ignore_errors=True)
        runs.append([float(figure) for figure in done.stdout.split()])
    return round(statistics.median(r[0] for r in runs), 3), round(max(r[1] for r in runs), 1)


def _safetensors(folder: Path, tensors: int, gb: float) -> Path:
    """A file of zeros: holes read as fast as the page cache."""
    from tests.support.arrays import sparse_safetensors

    path = folder / f"{tensors}-{gb}.safetensors"
    numel = max(1, int(gb * 1e9 / 4 / tensors))
    sparse_safetensors(path, {f"layers.{k}.weight": (numel,) for k in range(tensors)})
    return path


def _sharded(folder: Path, tensors: int) -> Path:
    """Tiny tensors in files of at most 100,000: more would need a longer header than readers accept."""
    from tests.support.arrays import sparse_safetensors

    made = folder / f"tensors-{tensors}"
    made.mkdir()
    count = -(-tensors // 100_000)
    weight_map = {}
    for k in range(count):
        name = f"model-{k + 1:05d}-of-{count:05d}.safetensors"
        names = [f"layers.{n}.weight" for n in range(k * tensors // count, (k + 1) * tensors // count)]
        sparse_safetensors(made / name, dict.fromkeys(names, (2,)))
        weight_map.update(dict.fromkeys(names, name))
    index = {"metadata": {"total_size": 8 * tensors}, "weight_map": weight_map}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def _ranks(folder: Path, world: int) -> Path:
    from tests.support import sparse_deepspeed

    made = folder / f"ranks-{world}"
    sparse_deepspeed.zero3(made, {f"layers.{k}.weight": (1024, 64) for k in range(100)}, world)
    return made


_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>
#define SLOW(type, name, parameters, arguments) \\
    type name parameters { \\
        static type (*next) parameters; \\
        if (!next) *(void **)(&next) = dlsym(RTLD_NEXT, #name); \\
        usleep(1000); \\
        return next arguments; \\
    }
SLOW(ssize_t, pread64, (int fd, void *buffer, size_t n, off_t at), (fd, buffer, n, at))
SLOW(ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t at, int flags), (fd, v, n, at, flags))
SLOW(ssize_t, preadv64v2, (int fd, const struct iovec *v, int n, off_t at, int flags), (fd, v, n, at, flags))
SLOW(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
SLOW(ssize_t, preadv64, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
"""


def _slow(folder: Path) -> Points:
    """Each read takes 1 ms longer, as on a network file system: seconds against the number of blocks that must be read."""
    if shutil.which("cc") is None:
        print("slow_calls: needs a C compiler")
        return []
    (folder / "slow.c").write_text(_SHIM)
    library = folder / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "slow.c"), "-ldl"], check=True)
    points: Points = []
    for gb in (0.25, 0.5, 1.0):
        source = _safetensors(folder, 64, gb)
        seconds, peak = _merge(folder, source, preload=str(library), workers=1)
        points.append((-(-source.stat().st_size // BLOCK), seconds, peak))
    return points
