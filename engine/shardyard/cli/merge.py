"""`shardyard merge`: any readable checkpoint into one whole set of weights."""

from __future__ import annotations

import argparse
from typing import Any

from shardyard.cli import operation


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("merge", help="any readable checkpoint into one whole set of weights")
    operation.add_merge_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    return operation.run("merge", args, operation.merge_options(args))
