"""How to behave on a machine that others use: low priority outside a batch job, few workers, no threads nobody asked for."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping, MutableMapping

from shardyard.limits import readings

MOST_WORKERS = 4
"""More threads did not copy faster from any file system tried."""
NICE = 10
_BATCH = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "PJM_JOBID")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def in_batch_job(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a batch system gave this process its share of a machine."""
    return any(environment.get(name) for name in _BATCH) or "PE_HOSTFILE" in environment


def be_nice() -> None:
    """Outside a batch job: the lowest claim on CPU and disk. Children inherit it; it cannot be taken back without rights."""
    if in_batch_job():
        return
    with contextlib.suppress(OSError):
        os.nice(max(0, NICE - os.nice(0)))
    import psutil

    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def quiet_libraries(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep numpy's linear algebra from starting a thread for every core of the machine; call it before numpy is imported."""
    for name in _THREADS:
        environment.setdefault(name, "1")


def workers(reading: readings.Readings | None = None) -> int:
    """How many workers to use by default: from the affinity mask, the CPU quota and the process and address-space limits."""
    reading = reading or readings.read()
    most = min(MOST_WORKERS, readings.usable_cores(reading), _given_by_slurm(os.environ))
    processes = reading.ulimits.get("processes")
    if processes is not None:
        most = min(most, processes // 16)
    room = reading.address_space_left
    if room is not None:
        most = min(most, room // (256 << 20))
    return max(1, most)


def _given_by_slurm(environment: Mapping[str, str]) -> int:
    """Cores that Slurm gave this task; not every site binds tasks to theirs."""
    alone = environment.get("SLURM_NTASKS", "1") == "1"
    given = environment.get("SLURM_CPUS_PER_TASK") or (environment.get("SLURM_CPUS_ON_NODE") if alone else "1")
    in_job = environment.get("SLURM_JOB_ID")
    return int(given) if in_job and given and given.isdigit() else MOST_WORKERS


def leave_time_to_stop(grace_s: int = 3) -> None:
    """Where the CPU time is limited: have the kernel warn (SIGXCPU) a little before it kills."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard - grace_s) and hard > grace_s:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (hard - grace_s, hard))
