"""Comparing a file with its copy, beside `cmp` of the same two files and what people do with torch; and with its own rounding."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.measure import MIB, Contender, files_below, ratio, run_all

MOST_MIB = 120
SHAPES = {f"model.layers.{i}.mlp.weight": (4096, 1280) for i in range(60)}
"""1.26 GB in float32."""


def measure(folder: Path, rounds: int, *, peers: bool) -> list[dict[str, object]]:
    """Both rows, printed as they come."""
    inputs = folder / "compare"
    a, copy, rounded = (inputs / f"{name}.safetensors" for name in ("a", "copy", "rounded"))
    if not inputs.exists():
        inputs.mkdir()
        _write(a, copy, rounded)
    cmp = Contender("cmp", ["cmp", str(a), str(copy)])
    same = Contender("ours", [sys.executable, "-m", "shardyard", "compare", str(a), str(copy), "--require", "identical"])
    close = Contender("ours", [sys.executable, "-m", "shardyard", "compare", str(a), str(rounded), "--require", "rounded"])
    contenders = [same, close, cmp]
    peer = Contender("allclose", [sys.executable, "-m", "tests.bench.peers", "allclose", str(a), str(copy)])
    if peers:
        contenders.append(peer)
    run_all(contenders, folder / "out", rounds, files_below(inputs))
    return [
        _row("compare: identical", same, cmp, 1.3, peer if peers else None),
        _row("compare: rounded to bfloat16", close, cmp, 2.0, None),
    ]


def _write(a: Path, copy: Path, rounded: Path) -> None:
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    save_file(tensors, a)
    save_file(tensors, copy)
    save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}, rounded)


def _row(name: str, ours: Contender, cmp: Contender, aim: float, peer: Contender | None) -> dict[str, object]:
    against, peak = ratio(ours, cmp), ours.usage.peak_bytes / MIB
    good = against <= aim and peak <= MOST_MIB
    faster = f", {ratio(peer, ours):.1f} x faster than {peer.name}" if peer is not None else ""
    mark = "" if good else "  *"
    print(f"{name:<30}{against:>6.2f} x cmp (aim {aim}){peak:>7.0f} MiB (at most {MOST_MIB}){faster}{mark}", flush=True)
    return {
        "name": name,
        "seconds": round(ours.median, 2),
        "against_cmp": round(against, 2),
        "aim": aim,
        "faster_than_peer": round(ratio(peer, ours), 1) if peer is not None else None,
        "peak_mib": round(peak, 1),
        "most_mib": MOST_MIB,
        "good": good,
    }
