"""`shardyard stats`: exact statistics of tensors, read block by block."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from shardyard.cli.arguments import count, path
from shardyard.cli.exits import ExitCode
from shardyard.text import printable

_BAR = " ▁▂▃▄▅▆▇█"


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("stats", help="exact statistics of tensors", description=__doc__)
    parser.add_argument("path", type=path, metavar="PATH", help="a checkpoint: a folder or a file, in any format")
    parser.add_argument("--select", action="append", default=[], metavar="GLOB", help="only these tensors; repeatable")
    parser.add_argument("--part", metavar="P", help="a component such as optimizer; default: the model")
    parser.add_argument("--slice", metavar="S", help="show these values too, as in Python: 0:4, -1")
    parser.add_argument(
        "--workers", type=count, default=0, metavar="N", help="threads (default: from the cores that may be used)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from shardyard.cli.progress import live
    from shardyard.operations.statistics.run import StatsOptions, stats_path

    options = StatsOptions(tuple(args.select), args.part, args.slice, max(0, args.workers))
    with live(sys.stderr) as context:
        result = stats_path(args.path, options, context)
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        rows = result["tensors"]
        print("\n".join(card(rows[0]) if len(rows) == 1 else table(rows)))
    return ExitCode.DONE


def table(rows: list[Mapping[str, Any]]) -> list[str]:
    """One line a tensor."""
    cells = [("min", "max", "mean", "std", "zeros", "NaN", "inf", "dtype", "tensor"), *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(8)]
    return ["  ".join([f"{line[i]:>{widths[i]}}" for i in range(8)] + [line[8]]) for line in cells]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{printable(row['name'])} {_shape(row)}"
    if "note" in row:
        return "", "", "", "", "", "", "", row["dtype"], name
    figures = tuple(_number(row[key]) for key in ("min", "max", "mean", "std"))
    return *figures, *(f"{row[key]:,}" for key in ("zeros", "nan", "inf")), row["dtype"], name


def card(row: Mapping[str, Any]) -> list[str]:
    """All there is to say of one tensor."""
    lines = [f"{printable(row['name'])}  {row['dtype']} {_shape(row)}  {row['numel']:,} elements, {row['bytes']:,} bytes"]
    if "note" in row:
        return [*lines, row["note"], f"sha256     {row['sha256']}"]
    if row["of"] == "magnitudes":
        lines.append("of the magnitudes of complex values:")
    figures = (("min", "max", "mean"), ("std", "std_sample", "norm"), ("zeros", "nan", "inf", "denormals"))
    lines += ["".join(f"{name:<11}{_number(row[name]):<16}" for name in names).rstrip() for names in figures]
    if row["quantiles"]:
        lines.append("quantiles  " + "  ".join(f"{float(q):.1%} {_number(v)}" for q, v in row["quantiles"].items()))
    linear = row["histogram"]["linear"]
    if row["finite"]:
        lines.append(f"histogram  {_number(linear['from'])} {_bars(linear['counts'])} {_number(linear['to'])}")
        lines += [f"{name:<11}{text}" for name, text in _log_lines(row["histogram"]["log"])]
    lines.append("first      " + ", ".join(_number(v) for v in row["first"][:8]) + (" …" if row["numel"] > 8 else ""))
    if "slice" in row:
        part = row["slice"]
        lines.append(f"[{printable(part['slice'])}] {part['shape']}: " + ", ".join(_number(v) for v in part["values"]))
    lines.append(f"sha256     {row['sha256']}")
    return lines


def _log_lines(log: Mapping[str, Any]) -> list[tuple[str, str]]:
    """|x| by powers of two, one line a sign."""
    powers = sorted({int(p) for sign in ("positive", "negative") for p in log[sign]})
    if not powers:
        return []
    span = range(powers[0], powers[-1] + 1)
    signs = [
        (label, [log[sign].get(str(p), 0) for p in span])
        for label, sign in (("log2 x > 0", "positive"), ("log2 x < 0", "negative"))
    ]
    return [(label, f"2^{span[0]} {_bars(counts)} 2^{span[-1] + 1}") for label, counts in signs if any(counts)]


def _bars(counts: list[int]) -> str:
    """Counts as a row of bars; anything but zero is seen."""
    top = max(counts, default=0)
    return "".join(_BAR[0] if not n else _BAR[1 + int(7 * n / top)] for n in counts)


def _shape(row: Mapping[str, Any]) -> str:
    return "[" + ", ".join(str(n) for n in row["shape"]) + "]"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"({_number(value[0])}, {_number(value[1])}i)"
    if isinstance(value, (bool, str)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
