"""A program on a pseudo terminal: what it writes, key by key, and how soon."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
PATHS = os.pathsep.join(str(p) for p in (ROOT / "engine", ROOT / "tui", TESTS))


class Terminal:
    """Starts a command on a terminal of its own."""

    def __init__(
        self, command: Sequence[str], *, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
    ) -> None:
        self.output = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)
        base = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": PATHS,
            "SHARDYARD_STATE": "/nonexistent",
        }
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            list(command),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**base, **(environment or {})},
            preexec_fn=_own_terminal,
            close_fds=True,
        )
        self._slave = slave

    @classmethod
    def app(cls, *arguments: str, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None) -> Terminal:
        """The app on a made-up engine."""
        command = [sys.executable, "-m", "support.app_in_terminal", *arguments]
        return cls(command, columns=columns, rows=rows, environment=environment)

    def read(self, quiet: float = 0.3, timeout: float = 20.0) -> bytes:
        """What comes until nothing has come for `quiet` seconds."""
        end = time.monotonic() + timeout
        found = b""
        wait = timeout
        while time.monotonic() < end:
            ready, _, _ = select.select([self._master], [], [], min(wait, end - time.monotonic()))
            if not ready:
                break
            try:
                block = os.read(self._master, 1 << 16)
            except OSError:
                break
            if not block:
                break
            found += block
            wait = quiet
        self.output += found
        return found

    def read_until(self, text: str | bytes, timeout: float = 30.0) -> bytes:
        """What comes until `text` is in it."""
        wanted = text.encode() if isinstance(text, str) else text
        end = time.monotonic() + timeout
        found = b""
        while wanted not in found:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} did not come; the last was {found[-2000:]!r}")
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if ready:
                try:
                    found += os.read(self._master, 1 << 16)
                except OSError as error:
                    raise AssertionError(f"the program ended before {text!r} came; the last was {found[-2000:]!r}") from error
        self.output += found
        return found

    def send(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def press(self, keys: str | bytes, quiet: float = 0.12) -> tuple[int, float]:
        """Press keys; how many bytes came back, and after how many seconds the first."""
        began = time.monotonic()
        self.send(keys)
        ready, _, _ = select.select([self._master], [], [], 5.0)
        first = time.monotonic() - began
        return (len(self.read(quiet)) if ready else 0), first

    def wait(self, timeout: float = 10.0) -> int:
        """The exit code, reading on so that the program is not blocked."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError("the program did not end")
            self.read(quiet=0.05, timeout=0.1)
        self.read(quiet=0.05, timeout=0.2)
        return self.process.returncode

    def modes_now(self) -> list[object]:
        """The terminal's modes."""
        return termios.tcgetattr(self._slave)

    def hang_up(self) -> None:
        """The line is gone."""
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    def close(self) -> None:
        """End everything."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self._slave, self._master):
            if fd >= 0:
                os.close(fd)
        self._slave = self._master = -1

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
