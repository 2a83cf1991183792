"""The command line: one verb a module, imported only when it is the one that was asked for.

`shardyard --version` must not pay for what it does not use: a login node's file system answers each look-up in a millisecond.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from shardyard import __version__
from shardyard.cli import streams
from shardyard.cli.arguments import Parser
from shardyard.cli.exits import ExitCode, report
from shardyard.errors import ShardyardError

VERBS = {
    "inspect": "what is here, in sentences or as JSON",
    "merge": "any readable checkpoint into one whole set of weights",
    "export": "merge into a folder that a model loader opens as it is",
    "shrink": "drop stored bytes that no tensor uses",
    "compare": "are these the same weights",
    "stats": "exact statistics of tensors",
    "jobs": "list, show, follow, cancel, resume and clean background jobs",
    "demo": "write a small tree of real checkpoints and open the app on it",
    "doctor": "versions, terminal, limits and file systems, for a report",
    "compat": "the arguments of the scripts people have in their job files",
    "completion": "the shell's completion script",
}
"""Verbs and what they do; each is `shardyard.cli.<verb>` with `add_parser(subparsers)` and `run(args)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    streams.prepare()
    # A reader that goes away (`| head`) is no fault of ours, and of no interest to the person.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except ShardyardError as error:
        return report(error)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return ExitCode.CANCELLED
    except BrokenPipeError:
        _drop_output()
        return ExitCode.DONE
    except OSError as error:
        from shardyard.limits.system import refusal

        if error.filename is None:
            _drop_output()
        return report(refusal(error))
    except Exception as error:
        # The outermost edge: a fault of ours must still be one sentence, and the traceback is one setting away.
        if os.environ.get("SHARDYARD_DEBUG"):
            raise
        kind = type(error).__name__
        print(f"Shardyard met a fault of its own ({kind}); SHARDYARD_DEBUG=1 shows where, for a report.", file=sys.stderr)
        return ExitCode.FAILED


def _run(arguments: list[str]) -> int:
    verb = next((a for a in arguments if not a.startswith("-")), None)
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"shardyard {__version__}")
        return ExitCode.DONE
    if verb in VERBS and arguments[0] == verb:
        return _run_verb(verb, arguments)
    if arguments[:1] in (["--help"], ["-h"]):
        parser().print_help()
        return ExitCode.DONE
    from shardyard.cli import app

    return app.run(app.parser().parse_args(arguments))


def _drop_output() -> None:
    """What could not be written is not tried again at the end of the process."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser(*, load: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole parser; only the verbs in `load` get their arguments, the others are names with a line of help."""
    root = Parser(
        prog="shardyard",
        description="Browse, check, merge, shrink and compare training checkpoints. With a path or nothing: the app.",
        epilog="shardyard [PATH] opens the app. Exit codes: 0 done or equal, 1 found something, 2 wrong use, "
        "3 incomplete or damaged, 4 no room, 5 output exists, 6 failed, 130 cancelled.",
    )
    root.add_argument("-V", "--version", action="version", version=f"shardyard {__version__}")
    verbs = root.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, help_line in VERBS.items():
        if name in load:
            module = importlib.import_module(f"shardyard.cli.{name}")
            module.add_parser(verbs)
        else:
            verbs.add_parser(name, help=help_line, add_help=False)
    return root


def _run_verb(verb: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"shardyard.cli.{verb}")
    args = parser(load=(verb,)).parse_args(arguments)
    return int(module.run(args))
