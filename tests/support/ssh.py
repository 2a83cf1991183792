"""A real SSH server on a loopback port, with keys of its own, in one folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support import services

_CONF = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
AuthorizedKeysFile {root}/authorized_keys
PidFile {root}/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""


class Server:
    """A running server."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.port = port

    def login(self, command: str, *, terminal: bool = True) -> subprocess.Popen[bytes]:
        """Run a shell command over a line of its own."""
        options = ("IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        arguments: Sequence[str] = [
            "ssh", "-F", "none", "-p", str(self.port), "-i", str(self.root / "id"), *(x for o in options for x in ("-o", o)),
            *(["-tt"] if terminal else []), "root@127.0.0.1", command,
        ]  # fmt: skip
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def drop(self) -> None:
        """Cut all lines, on the server's side, as a firewall or a reboot does."""
        pid = (self.root / "sshd.pid").read_text().strip()
        children = subprocess.run(["pgrep", "-P", pid], capture_output=True, text=True).stdout.split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)


@contextmanager
def server() -> Iterator[Server]:
    """Start one; it is stopped at the end."""
    services.need("sshd", "ssh", "ssh-keygen", "pgrep")
    root = Path(tempfile.mkdtemp(prefix="sshd-"))
    try:
        for name in ("host_key", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / name], check=True)
        shutil.copy(root / "id.pub", root / "authorized_keys")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (root / "sshd_config").write_text(_CONF.format(root=root, port=port))
        Path("/run/sshd").mkdir(exist_ok=True)
        subprocess.run(["/usr/sbin/sshd", "-f", root / "sshd_config", "-E", root / "log"], check=True)
        until = time.monotonic() + 10
        while not (root / "sshd.pid").exists():
            assert time.monotonic() < until, (root / "log").read_text()
            time.sleep(0.05)
        yield Server(root, port)
    finally:
        with suppress(OSError, ValueError):
            os.kill(int((root / "sshd.pid").read_text()), signal.SIGTERM)
        shutil.rmtree(root, ignore_errors=True)
