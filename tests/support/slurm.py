"""A real Slurm of two nodes on this one machine, in one folder, touching nothing outside of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support import services

_CONF = """\
ClusterName=lab
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/m/sock
SlurmctldHost={host}(127.0.0.1)
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=5
SlurmdTimeout=5
KillWait=5
SlurmctldPort={ports[0]}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/run/ctld.pid
SlurmdPidFile={root}/run/%n.pid
SlurmctldLogFile={root}/log/ctld.log
SlurmdLogFile={root}/log/%n.log
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10
"""


@contextmanager
def cluster() -> Iterator[Path]:
    """Start it, with SLURM_CONF set; yields its folder."""
    services.need("slurmctld", "slurmd", "munged", "sbatch")
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    before = os.environ.get("SLURM_CONF")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    try:
        for name in ("m", "state", "log", "run", "spool.n1", "spool.n2"):
            (root / name).mkdir()
        (root / "m").chmod(0o711)
        (root / "m/key").write_bytes(os.urandom(1024))
        (root / "m/key").chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        (root / "slurm.conf").write_text(_CONF.format(root=root, host=host, ports=_free_ports()))
        munge = {f"--{name}": root / "m" / file for name, file in _MUNGE.items()}
        subprocess.run(["munged", "--force", *(f"{k}={v}" for k, v in munge.items())], check=True, capture_output=True)
        os.environ["SLURM_CONF"] = environment["SLURM_CONF"] = str(root / "slurm.conf")
        for command in (["slurmctld"], ["slurmd", "-N", "n1"], ["slurmd", "-N", "n2"]):
            subprocess.run(command, check=True, env=environment, capture_output=True)
        wait_for(lambda: answer("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", 30)
        yield root
    finally:
        for name in ("run/n1.pid", "run/n2.pid", "run/ctld.pid", "m/pid"):
            _stop(root / name)
        if before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(root, ignore_errors=True)


_MUNGE = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _free_ports() -> list[int]:
    """Three free ports, the last two beside each other, outside of the range that the kernel gives out."""
    for base in range(16817, 32000, 3):
        if all(map(_is_free, range(base, base + 3))):
            return [base, base + 1, base + 2]
    pytest.skip("no free ports")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _stop(pid_file: Path) -> None:
    with suppress(OSError, ValueError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)


def answer(*command: str) -> str:
    """What a Slurm command prints."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def wait_for(true: Callable[[], object], seconds: float) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
