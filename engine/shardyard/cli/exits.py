"""Which exit code says what, and how an error becomes the last line on stderr.

The codes are CONTRACT section 2; scripts rely on them.
"""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum

from shardyard import errors


class ExitCode(IntEnum):
    """What the number means to a script."""

    DONE = 0
    FOUND = 1
    """compare found a difference, or `--strict` a finding."""
    USAGE = 2
    CHECKPOINT = 3
    """Incomplete, damaged, or of a layout that is not merged."""
    NO_ROOM = 4
    OUTPUT_EXISTS = 5
    FAILED = 6
    CANCELLED = 130


_CODES: tuple[tuple[type[errors.ShardyardError], ExitCode], ...] = (
    (errors.UsageError, ExitCode.USAGE),
    (errors.CheckpointError, ExitCode.CHECKPOINT),
    (errors.NoRoomError, ExitCode.NO_ROOM),
    (errors.OutputExistsError, ExitCode.OUTPUT_EXISTS),
    (errors.Cancelled, ExitCode.CANCELLED),
)


def code_of(error: BaseException) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def report(error: errors.ShardyardError) -> ExitCode:
    """Print the error's sentence as the last line on stderr, after the candidates it may list; returns its code."""
    if os.environ.get("SHARDYARD_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, errors.AmbiguousError):
        for candidate in error.candidates:
            print(f"  {candidate}", file=sys.stderr)
    print(error.message, file=sys.stderr)
    return code_of(error)
