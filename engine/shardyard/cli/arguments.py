"""Arguments: one plain sentence where they are wrong, and no path that is empty by mistake."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from shardyard.errors import UsageError
from shardyard.text import printable


class Parser(argparse.ArgumentParser):
    """argparse, whose refusals are errors of ours: no page of usage before the one line that matters."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            UsageError: always.
        """
        said = message.removeprefix("argument ").removeprefix("the ")
        raise UsageError(f"{printable(said[:1].upper() + said[1:])}; see {self.prog} --help.")


def path(text: str) -> Path:
    """A path; an empty one is a shell variable that was not set, and must not mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path; is a variable not set?")
    return Path(text)


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)
