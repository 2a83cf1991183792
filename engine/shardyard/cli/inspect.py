"""`shardyard inspect`: what is here, in sentences or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from shardyard.cli.arguments import path
from shardyard.cli.exits import ExitCode


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("inspect", help="what is here, in sentences or as JSON")
    parser.add_argument("paths", nargs="+", type=path, metavar="PATH", help="a file, a folder, or the folders of one checkpoint")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--hash", action="store_true", help="with a SHA-256 of each tensor's values (reads them)")
    parser.add_argument("--deep", action="store_true", help="read the data too: CRC, 16-bit copy, NaN, equal copies")
    parser.add_argument("--tag", metavar="T", help="a step such as global_step10")
    parser.add_argument("--strict", action="store_true", help="exit 1 when there is an error or a warning")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    return show(
        args.paths, tensors=args.tensors or args.hash, hashes=args.hash, deep=args.deep, tag=args.tag, strict=args.strict,
        as_json=args.json,
    )  # fmt: skip


def show(
    paths: Sequence[Path],
    *,
    tensors: bool = False,
    hashes: bool = False,
    deep: bool = False,
    tag: str | None = None,
    strict: bool = False,
    as_json: bool = False,
) -> int:
    """Print the report; exit code 1 only with `strict`."""
    from shardyard.operations.inspect import text
    from shardyard.operations.inspect.report import report

    found = report(paths, tensors=tensors, hashes=hashes, deep=deep, tag=tag)
    if as_json:
        json.dump(found, sys.stdout, indent=1, ensure_ascii=True)
        print()
    else:
        for line in text.describe(found):
            print(line)
    checkpoints = cast(list[dict[str, Any]], found["checkpoints"])
    serious = any(f["severity"] in ("error", "warning") for c in checkpoints for f in c["findings"])
    return ExitCode.FOUND if strict and serious else ExitCode.DONE
