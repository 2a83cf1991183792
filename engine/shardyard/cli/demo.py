"""`shardyard demo`: a small tree of real checkpoints, and the app on it."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from shardyard.cli import app
from shardyard.cli.arguments import path
from shardyard.cli.exits import ExitCode
from shardyard.errors import OutputExistsError
from shardyard.text import printable

_STAMP = ".shardyard-demo"


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("demo", help="write a small tree of real checkpoints and open the app on it")
    parser.add_argument("folder", nargs="?", type=path, metavar="DIR", help="default: a new folder under your cache")
    parser.add_argument("--no-app", action="store_true", help="print the folder and stop")


def run(args: argparse.Namespace) -> int:
    """Write the tree and open the app on it; without a terminal, print what `inspect` says of it."""
    folder = write(args.folder)
    if args.no_app:
        print(folder)
        return ExitCode.DONE
    return app.run(app.parser().parse_args([str(folder)]))


def write(folder: Path | None) -> Path:
    """Write the demo tree; a tree that an earlier call wrote into the cache is made anew."""
    from shardyard import demo

    if folder is None:
        from platformdirs import user_cache_path

        folder = user_cache_path("shardyard", appauthor=False) / "demo"
        if (folder / _STAMP).is_file():
            shutil.rmtree(folder)
    if folder.exists() and any(folder.iterdir()):
        raise OutputExistsError(f"{printable(str(folder))} is not empty; name a new folder.", path=str(folder))
    folder = Path(os.path.abspath(folder))
    demo.write(folder)
    (folder / _STAMP).touch()
    return folder
