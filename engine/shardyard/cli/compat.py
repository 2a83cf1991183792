"""`shardyard compat`: the arguments of the scripts that people have in their job files, with this engine behind them.

The arguments are those of DeepSpeed 0.19's `zero_to_fp32.py` and of accelerate 1.15's `merge-weights`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from shardyard.cli import operation
from shardyard.cli.arguments import path
from shardyard.cli.exits import ExitCode


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("compat", help="the arguments of the scripts people have in their job files")
    scripts = parser.add_subparsers(dest="script", required=True, metavar="SCRIPT")
    zero = scripts.add_parser("zero_to_fp32", help="as DeepSpeed's zero_to_fp32.py")
    zero.add_argument("sources", type=path, metavar="checkpoint_dir")
    zero.add_argument("output", type=path, metavar="output_dir")
    zero.add_argument("--max_shard_size", default="5GB")
    zero.add_argument("--safe_serialization", action="store_true", help="safetensors instead of torch files")
    zero.add_argument("-t", "--tag")
    zero.add_argument("--exclude_frozen_parameters", action="store_true")
    zero.add_argument("-d", "--debug", action="store_true", help="accepted and without effect")
    weights = scripts.add_parser("merge-weights", help="as accelerate merge-weights")
    weights.add_argument("sources", type=path, metavar="checkpoint_directory")
    weights.add_argument("output", type=path, metavar="output_path")
    weights.add_argument("--unsafe_serialization", "--unsafe-serialization", action="store_true", help="a torch file")
    weights.add_argument("--remove_checkpoint_dir", "--remove-checkpoint-dir", action="store_true", help="answered, not done")


def run(args: argparse.Namespace) -> int:
    """Run the script's work as a merge."""
    options = _zero_to_fp32(args) if args.script == "zero_to_fp32" else _merge_weights(args)
    as_job = argparse.Namespace(
        sources=[args.sources], output=args.output, workers=None, dry_run=False, detach=False, slurm=None, json=False
    )
    code = operation.run("merge", as_job, options)
    if code == ExitCode.DONE and args.script == "merge-weights" and args.remove_checkpoint_dir:
        command = shlex.join(["rm", "-r", "--", str(args.sources)])
        print(
            f"No source is ever deleted here. Every value was checked against it; to delete it yourself: {command}",
            file=sys.stderr,
        )
    return code


def _zero_to_fp32(args: argparse.Namespace) -> dict[str, Any]:
    """Where the script is wrong or gives up, and this does not, is in the README."""
    options: dict[str, Any] = {
        "format": "safetensors" if args.safe_serialization else "torch",
        "max_shard_size": args.max_shard_size,
        "dtype": "keep",
    }
    if args.tag:
        options["tag"] = args.tag
    if args.exclude_frozen_parameters:
        options["trainable_only"] = True
    return options


def _merge_weights(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"format": "torch" if args.unsafe_serialization else "safetensors", "max_shard_size": "none"}
    if args.remove_checkpoint_dir:
        options["verify"] = "full"
    return options
