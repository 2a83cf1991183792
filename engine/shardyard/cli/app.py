"""`shardyard [PATH]`: the app in a terminal, the same answer as text anywhere else."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from shardyard.cli.arguments import Parser
from shardyard.cli.exits import ExitCode
from shardyard.errors import UsageError
from shardyard.text import printable


def parser() -> argparse.ArgumentParser:
    """Arguments of the app."""
    root = Parser(prog="shardyard", description="Open the app on PATH (default: the current folder).")
    root.add_argument("path", nargs="?", default=".", metavar="PATH")
    root.add_argument(
        "--ascii", action="store_true", default=None, help="draw with plain ASCII only (chosen by itself where needed)"
    )
    root.add_argument("--slow", action="store_true", help="update half as often, for slow lines")
    root.add_argument("--read-only", action="store_true", help="look, but write nothing")
    root.add_argument("--theme", help="a theme's name, such as light, dark or terminal")
    return root


def run(args: argparse.Namespace) -> int:
    """Open the app; where there is no terminal, print what `inspect` says."""
    path = Path(args.path)
    if not os.path.lexists(path):
        hint = "" if os.sep in args.path or "." in args.path else " It is no verb either; see shardyard --help."
        raise UsageError(f"There is no file or folder {printable(args.path)}.{hint}", path=args.path)
    if not interactive():
        from shardyard.cli import inspect

        return inspect.show([path])
    from shardyard_tui.app import run as run_app

    return int(run_app(path, ascii=args.ascii, slow=args.slow, read_only=args.read_only, theme=args.theme)) or ExitCode.DONE


def interactive() -> bool:
    """Whether a person sits at a terminal that can show the app: Textual reads stdin, paints on stderr and never asks."""
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        return False
    try:
        return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    except ValueError:
        return False
