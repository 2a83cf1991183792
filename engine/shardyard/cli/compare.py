"""`shardyard compare`: are these the same weights, whatever they are stored in. Exit codes as diff's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from shardyard.cli.arguments import count, path
from shardyard.cli.exits import ExitCode
from shardyard.text import printable

MOST_ROWS = 20
"""Tensors that are shown to a person; `--all` and `--json` show every one."""
MOST_EQUAL = 5
"""Tensors that are shown where nothing is wrong."""


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("compare", help="are these the same weights", description=__doc__)
    parser.add_argument("a", type=path, metavar="A", help="a checkpoint: a folder or a file, in any format")
    parser.add_argument("b", type=path, metavar="B", help="another one, in any other format")
    parser.add_argument("--rtol", type=_tolerance, default=0.0, metavar="R", help="relative tolerance, of |b| (default: 0)")
    parser.add_argument("--atol", type=_tolerance, default=0.0, metavar="A", help="absolute tolerance (default: 0)")
    parser.add_argument(
        "--require",
        choices=("identical", "equal", "rounded"),
        default="rounded",
        help="what counts as equal: the same bits, the same values, or one exactly the other rounded to 16 bits (default)",
    )
    parser.add_argument(
        "--strip-prefix", action="append", default=[], metavar="P", help="match names without this prefix; repeatable; or auto"
    )
    parser.add_argument(
        "--part", action="append", default=[], metavar="P", help="a component such as ema; once for both, or twice: A's, then B's"
    )
    parser.add_argument("--all", action="store_true", help="show every tensor, not just those that differ most")
    parser.add_argument(
        "--workers", type=count, default=0, metavar="N", help="threads (default: from the cores that may be used)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from shardyard.cli.progress import live
    from shardyard.operations.compare.run import CompareOptions, compare_paths

    names = tuple(args.strip_prefix), tuple(args.part)
    options = CompareOptions(args.rtol, args.atol, args.require, *names, max(0, args.workers))
    with live(sys.stderr) as context:
        result = compare_paths(args.a, args.b, options, context)
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(lines(result, show_all=args.all)))
    return ExitCode.DONE if result["equal"] else ExitCode.FOUND


def lines(result: Mapping[str, Any], *, show_all: bool = False) -> list[str]:
    """The result as a person reads it: the verdict, then what differs most."""
    from shardyard.operations.compare.verdict import worst_first

    found = [result["verdict"], ""]
    for side in "ab":
        about = result[side]
        kinds = ", ".join(f"{n} {kind}" for kind, n in about["dtypes"].items())
        found.append(f"{side.upper()}  {printable(about['path'])}  ({about['kind']}: {about['tensors']} tensors, {kinds})")
    rows = [row for row in worst_first(result["tensors"]) if show_all or row["relation"] not in ("identical", "equal")]
    shown = rows if show_all else rows[: MOST_EQUAL if result["equal"] else MOST_ROWS]
    if shown:
        found += ["", *table(shown)]
    if len(rows) > len(shown):
        found.append(f"… and {len(rows) - len(shown)} more (--all shows every tensor)")
    for side in "ab":
        names = result[f"only_in_{side}"]
        found += [f"only in {side.upper()}  {printable(name)}" for name in (names if show_all else names[:MOST_ROWS])]
        if not show_all and len(names) > MOST_ROWS:
            found.append(f"… and {len(names) - MOST_ROWS} more only in {side.upper()}")
    return found


def table(rows: list[Mapping[str, Any]]) -> list[str]:
    """Rows in columns."""
    head = ("relation", "differing", "max |a-b|", "mean |a-b|", "tensor")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(4)]
    return [
        f"{line[0]:<{widths[0]}}  " + "  ".join(f"{line[i]:>{widths[i]}}" for i in range(1, 4)) + f"  {line[4]}" for line in cells
    ]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    from shardyard.operations.compare.verdict import figure

    name = printable(row["name"])
    if row["max_abs"] is None:
        note = row.get("note") or f"{row['dtype_a']} {row['shape_a']} against {row['dtype_b']} {row['shape_b']}"
        return row["relation"], "", "", "", f"{name}  ({note})"
    return row["relation"], f"{row['differing']:,}", figure(row["max_abs"]), figure(row["mean_abs"]), name
