"""The terminal under the app: whether there is one, whether it is still there, and its clipboard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable

LOOK_S = 2.0
"""How often the terminal is looked for: one system call."""
GONE = 129
"""Exit code when it went away: that of a process ended by SIGHUP."""


def watch(gone: Callable[[], None]) -> asyncio.TimerHandle | None:
    """Call `gone` when the terminal hangs up, even where SIGHUP is ignored (nohup): without it Textual spins on a dead line."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGHUP, gone)
        loop.add_signal_handler(signal.SIGTERM, gone)

    def look() -> None:
        try:
            os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0)
        except OSError:
            gone()
            return
        loop.call_later(LOOK_S, look)

    return loop.call_later(LOOK_S, look)


def leave_at_once() -> None:
    """End the process without touching the terminal that is gone. Jobs go on: they are not our children's children."""
    os._exit(GONE)


def host_and_user() -> tuple[str, str]:
    """Names for the first line."""
    import socket

    return socket.gethostname().partition(".")[0], os.environ.get("USER") or os.environ.get("LOGNAME") or ""


def over_ssh() -> bool:
    """Whether the line may be slow, and the terminal's own mouse selection is worth more than ours."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def clip_file() -> str | None:
    """Where copied text is left too, for terminals that have no clipboard: only in a folder that is this user's alone."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(folder, "shardyard.clip") if folder and os.path.isdir(folder) else None
