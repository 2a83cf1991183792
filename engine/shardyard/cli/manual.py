"""The man page, generated from the parsers: `python -m shardyard.cli.manual` prints it."""

from __future__ import annotations

import argparse
import sys

from shardyard import __version__
from shardyard.cli import VERBS, parser
from shardyard.cli.exits import ExitCode

_MEANINGS = {
    ExitCode.DONE: "done, or equal",
    ExitCode.FOUND: "compare found a difference, or --strict found something",
    ExitCode.USAGE: "wrong use, no such path, not a checkpoint, or several candidates",
    ExitCode.CHECKPOINT: "the checkpoint is incomplete, damaged or of a layout that is not merged",
    ExitCode.NO_ROOM: "no room: disk, quota or memory",
    ExitCode.OUTPUT_EXISTS: "the output exists",
    ExitCode.FAILED: "the job failed for another reason",
    ExitCode.CANCELLED: "cancelled",
}
_ENVIRONMENT = {
    "SHARDYARD_STATE": "root of the job folders (default: $XDG_STATE_HOME/shardyard)",
    "SHARDYARD_DEBUG": "set to show a traceback with an error",
    "NO_COLOR": "set to do without colours",
}


def page() -> str:
    """The page, in man's own macros."""
    root = parser(load=tuple(VERBS))
    verbs = next(a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    lines = [
        f'.TH SHARDYARD 1 "" "shardyard {__version__}" "User Commands"',
        ".SH NAME",
        "shardyard \\- browse, check, merge, shrink and compare training checkpoints",
        ".SH SYNOPSIS",
        ".B shardyard",
        "[\\fIPATH\\fR]",
        ".br",
        ".B shardyard",
        "\\fIVERB\\fR [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        _escape("With a path or nothing, shardyard opens its app. Everything the app does is a verb too."),
    ]
    lines.append(".SH VERBS")
    for name, sub in verbs.choices.items():
        lines += [f".SS {name}", _escape(VERBS[name][0].upper() + VERBS[name][1:] + "."), *_arguments(sub)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in _MEANINGS.items():
        lines += [".TP", f".B {int(code)}", _escape(meaning)]
    lines.append(".SH ENVIRONMENT")
    for name, meaning in _ENVIRONMENT.items():
        lines += [".TP", f".B {name}", _escape(meaning)]
    return "\n".join(lines) + "\n"


def _arguments(sub: argparse.ArgumentParser, prefix: str = "") -> list[str]:
    lines: list[str] = []
    for action in sub._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                lines += _arguments(inner, f"{prefix}{name} ")
        elif action.help not in (argparse.SUPPRESS, None) and not isinstance(action, argparse._HelpAction):
            lines += [".TP", _term(action, prefix), _escape((action.help or "").replace("%%", "%"))]
    return lines


def _term(action: argparse.Action, prefix: str) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"\\fI{_escape(prefix + value)}\\fR"
    names = ", ".join(f"\\fB{_escape(option)}\\fR" for option in action.option_strings)
    return f"{_escape(prefix)}{names}" + (f" \\fI{_escape(value)}\\fR" if value else "")


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()


def _escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.stdout.write(page())
