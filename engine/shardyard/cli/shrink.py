"""`shardyard shrink`: drop stored bytes that no tensor uses."""

from __future__ import annotations

import argparse
from typing import Any

from shardyard.cli import operation
from shardyard.cli.arguments import path
from shardyard.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("shrink", help="drop stored bytes that no tensor uses")
    parser.add_argument("sources", nargs="+", type=path, metavar="PATH", help="files, or folders with all that is below them")
    parser.add_argument("--pattern", metavar="GLOB", help="only files of this name; default: weights by their usual names")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", type=path, metavar="OUT", help="a new folder (or file); everything else is copied")
    where.add_argument("--in-place", action="store_true", help="replace each file once the new one is proved to be equal")
    parser.add_argument("--dedupe-tied", action="store_true", help="store equal copies of weights that config.json ties once")
    operation.add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if args.output is None and not args.in_place and not args.dry_run:
        raise UsageError("Say where: -o OUT for a new place, or --in-place; --dry-run shows what would be saved.")
    found = {"pattern": args.pattern, "in_place": args.in_place, "dedupe_tied": args.dedupe_tied}
    options = {name: value for name, value in found.items() if value not in (None, False)}
    return operation.run("shrink", args, options)
