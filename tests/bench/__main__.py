"""`python -m tests.bench` (`make bench`): builds inputs, runs ours and the peers in turn, prints ratios, keeps the results.

Every figure is the median over alternating runs on the same bytes, synced, warm unless it says cold; `cp` means
`cp --reflink=never` and `sync` of the copied files.  `--only` picks rows by the beginnings of their names, `--curves` adds how
time and memory grow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench import RESULTS, compare, curves, opening, plots
from tests.bench.measure import MIB, Contender, copy_command, files_below, machine, ratio, run_all


@dataclass(frozen=True, slots=True)
class Work:
    """One row: what is done to which input, beside what."""

    name: str
    kind: str
    """Of the input, as `tests.bench.inputs` makes it."""
    options: tuple[str, ...]
    files: str
    """Pattern of the input's files that hold what is read: what `cp` copies."""
    aim: float
    """At most this many times `cp`."""
    most_mib: int
    """At most this much resident memory, with `--verify none`."""
    peer: str | None = None
    peer_aim: float = 0.0
    """At least this many times faster than the peer."""
    verb: str = "merge"
    copied: str | None = None
    """Kind of what `cp` copies instead of the input: the same weights without what is not kept."""
    cold: bool = False
    """The input is dropped from the page cache before each run."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Inputs that it needs."""
        return (self.kind,) if self.copied is None else (self.kind, self.copied)


WORKS = (
    Work("zero3", "zero3", (), "*optim*", 0.8, 60, "zero_to_fp32", 5),
    Work("zero3-cold", "zero3", (), "*optim*", 0.8, 60, cold=True),
    Work("zero3-bf16", "zero3", ("--dtype", "bfloat16"), "*optim*", 0.7, 120),
    Work("zero2", "zero2", (), "*optim*", 0.8, 60, "zero_to_fp32", 5),
    Work("dcp-rows", "dcp_rows", (), "*.distcp", 0.8, 60, "merge_weights", 5),
    Work("dcp-rows-torch", "dcp_rows", ("--format", "torch"), "*.distcp", 0.8, 60, "dcp_to_torch_save", 1),
    Work("dcp-columns", "dcp_columns", (), "*.distcp", 1.0, 120),
    Work("re-shard", "bin_shards", (), "*.bin", 0.8, 60, "load_and_save", 1),
    Work("shrink", "bloated", (), "*.bin", 1.0, 60, "clone_every_tensor", 1, verb="shrink", copied="bin_shards"),
)


@dataclass(slots=True)
class Row:
    """A measured row."""

    name: str
    seconds: float
    against_cp: float
    aim: float
    default_against_cp: float
    """The same with the default `--verify`."""
    faster_than_peer: float | None
    peer: str | None
    peak_mib: float
    anonymous_mib: float
    most_mib: int
    peer_mib: float | None
    read_mib: float
    written_mib: float

    @property
    def good(self) -> bool:
        return self.against_cp <= self.aim and self.default_against_cp <= 1.5 * self.aim and self.peak_mib <= self.most_mib


def measure(work: Work, folder: Path, gb: float, rounds: int, *, peers: bool) -> Row:
    """Build the input if need be and run everybody in turn."""
    source = folder / work.kind
    for kind in work.kinds:
        if not (folder / kind).exists():
            subprocess.run([sys.executable, "-m", "tests.bench.inputs", kind, str(folder / kind), str(gb)], check=True)
    out = folder / "out"
    verify = [] if work.verb == "shrink" else ["--verify", "none"]
    base = [sys.executable, "-m", "shardyard", work.verb, str(source), "-o", str(out), *work.options]
    ours, default = Contender("ours", [*base, *verify]), Contender("ours, checked", base)
    copied = files_below(folder / (work.copied or work.kind), work.files)
    copy = Contender("cp", copy_command(copied, out))
    contenders = [ours, default, copy]
    peer = None
    if peers and work.peer is not None:
        peer = Contender(work.peer, [sys.executable, "-m", "tests.bench.peers", work.peer, str(source), str(out)])
        contenders.append(peer)
    run_all(contenders, out, rounds, [*files_below(source), *copied], cold=work.cold)
    return Row(
        work.name,
        round(ours.median, 2),
        round(ratio(ours, copy), 2),
        work.aim,
        round(ratio(default, copy), 2),
        round(ratio(peer, ours), 1) if peer is not None else None,
        work.peer if peer is not None else None,
        round(ours.usage.peak_bytes / MIB, 1),
        round(ours.usage.anonymous_bytes / MIB, 1),
        work.most_mib,
        round(peer.usage.peak_bytes / MIB) if peer is not None else None,
        round(ours.usage.read_bytes / MIB),
        round(ours.usage.written_bytes / MIB),
    )


HEADER = "work                  s   x cp   aim  checked  x peer  peer                   MiB   peer   read  written"


def show(row: Row) -> str:
    """A row of the table."""
    faster = f"{row.faster_than_peer:.1f}" if row.faster_than_peer is not None else ""
    peer_mib = f"{row.peer_mib:.0f}" if row.peer_mib is not None else ""
    mark = "" if row.good else "  *"
    return (
        f"{row.name:<16}{row.seconds:>7.2f}{row.against_cp:>7.2f}{row.aim:>6.1f}{row.default_against_cp:>9.2f}{faster:>8}  "
        f"{row.peer or '':<20}{row.peak_mib:>6.0f}{peer_mib:>7}{row.read_mib:>7.0f}{row.written_mib:>9.0f}{mark}"
    )


def chosen(names: list[str], every: Iterator[str] | list[str]) -> Callable[[str], bool]:
    """Whether a row was asked for."""
    return lambda name: not names or any(name.startswith(n) for n in names)


def main() -> int:
    """Measure and print; returns 1 if an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--size", type=float, default=2.0, metavar="GB", help="of each checkpoint (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="alternating runs (default: 5)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="names of rows; also compare, opening, curves")
    parser.add_argument("--no-peers", action="store_true", help="only ours and cp")
    parser.add_argument("--curves", action="store_true", help="how time and memory grow with size, workers, ranks and tensors")
    parser.add_argument("--folder", type=Path, help="where inputs and outputs go (default: a temporary folder)")
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place)
        os.environ["SHARDYARD_STATE"] = str(folder / "state")
        results: dict[str, Any] = dict(_measure_all(folder, args))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() and args.only else {}
    merged = {
        **kept,
        "machine": machine(),
        "size_gb": args.size,
        **{part: _merged(kept.get(part), results[part]) for part in results},
    }
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n")
    if {"works", "curves"} <= merged.keys():
        plots.draw(merged)
    missed = [row["name"] for part in ("works", "compare", "opening") for row in results.get(part, []) if not row["good"]]
    print(f"Missed: {', '.join(missed)}." if missed else "All aims are met.")
    return 1 if missed else 0


def _merged(kept: Any, new: Any) -> Any:
    """Rows measured anew in the place of those of the same name; other rows stay."""
    if not isinstance(kept, list) or not isinstance(new, list):
        return new
    by_name = {row["name"]: row for row in (*kept, *new)}
    return list(by_name.values())


def _measure_all(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, object]]:
    wanted = chosen(args.only, [])
    rows = []
    print(HEADER)
    works = [work for work in WORKS if wanted(work.name)]
    for k, work in enumerate(works):
        for kind in {w.kind for w in WORKS}.difference(*(w.kinds for w in works[k:])):
            # Their pages would take the room in the page cache that the others need.
            shutil.rmtree(folder / kind, ignore_errors=True)
        row = measure(work, folder, args.size, args.rounds, peers=not args.no_peers)
        rows.append({**asdict(row), "good": row.good})
        print(show(row), flush=True)
    yield "works", rows
    if wanted("compare"):
        yield "compare", compare.measure(folder, args.rounds, peers=not args.no_peers)
    if wanted("opening"):
        yield "opening", opening.measure(folder, args.rounds)
    if args.curves or "curves" in args.only:
        yield "curves", curves.measure(folder)


if __name__ == "__main__":
    sys.exit(main())
