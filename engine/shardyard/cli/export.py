"""`shardyard export`: merge into a folder that a model loader opens as it is."""

from __future__ import annotations

import argparse
from typing import Any

from shardyard.cli import operation


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("export", help="merge into a folder that a model loader opens as it is")
    operation.add_merge_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    return operation.run("export", args, operation.merge_options(args))
