"""Readings of a process, over made-up /proc and /sys trees and over the real ones."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shardyard.jobs import launch
from shardyard.limits import manners, readings

MB = 1 << 20

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              {cpu:<20} unlimited            seconds   
Max file size             unlimited            unlimited            bytes     
Max data size             unlimited            unlimited            bytes     
Max processes             {processes:<20} 96365                processes 
Max open files            1024                 4096                 files     
Max address space         {space:<20} unlimited            bytes     
"""  # noqa: W291


class Machine:
    """A fake root with one process in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = root / "proc" / "self"
        self.process.mkdir(parents=True)
        self.write("proc/meminfo", "MemTotal:       65536000 kB\nMemFree:   1000 kB\nMemAvailable:   40960000 kB\n")
        self.status()
        self.limits()
        ticks = os.sysconf("SC_CLK_TCK")
        self.write("proc/self/stat", f"7 (a) b ) S {' '.join(['1'] * 10)} {30 * ticks} {12 * ticks} 0 0 20 0 1 0 99 0")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def status(self, anon: int = 100 * MB, size: int = 500 * MB) -> None:
        self.write(
            "proc/self/status",
            f"Name:\tx\nVmSize:\t{size >> 10} kB\nVmRSS:\t{2 * anon >> 10} kB\nRssAnon:\t{anon >> 10} kB\nThreads:\t3\n",
        )

    def limits(self, cpu: str = "unlimited", processes: str = "4096", space: str = "unlimited") -> None:
        self.write("proc/self/limits", LIMITS.format(cpu=cpu, processes=processes, space=space))

    def v2(self, path: str, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("proc/self/mountinfo", f"35 24 0:30 {mounted} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")

    def group2(self, path: str, current: int, limit: str, inactive: int = 0, high: str = "max") -> None:
        folder = f"sys/fs/cgroup/{path}".rstrip("/")
        self.write(f"{folder}/memory.current", f"{current}\n")
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        self.write(f"{folder}/memory.stat", f"anon 5\nfile 900\nactive_file 3\ninactive_file {inactive}\n")

    def v1(self, path: str, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"9:cpu,cpuacct:/other\n4:memory:{path}\n1:name=systemd:/x\n0::/\n")
        self.write(
            "proc/self/mountinfo",
            f"34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            f"35 31 0:32 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            f"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )

    def group1(self, path: str, usage: int, limit: int, inactive: int = 0) -> None:
        folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.stat", f"cache 1\ninactive_file 1\ntotal_inactive_file {inactive}\n")

    def read(self) -> readings.Readings:
        return readings.read(root=self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cached_files_do_not_look_like_danger(machine: Machine) -> None:
    machine.v2("/user/job")
    machine.group2("user/job", current=960 * MB, limit=str(1000 * MB), inactive=900 * MB)
    memory = machine.read().memory
    assert memory.working_set == 60 * MB and memory.limit == 1000 * MB
    assert memory.available == 940 * MB
    assert memory.anon == 100 * MB


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_limit_on_the_path_counts_wherever_it_is(machine: Machine, version: int) -> None:
    if version == 2:
        machine.v2("/slurm/job_1/step_0")
        machine.group2("slurm/job_1/step_0", current=200 * MB, limit="max", inactive=50 * MB)
        machine.group2("slurm/job_1", current=700 * MB, limit=str(800 * MB), inactive=100 * MB)
        machine.group2("slurm", current=9000 * MB, limit=str(20000 * MB))
    else:
        machine.v1("/slurm/job_1/step_0")
        machine.group1("slurm/job_1/step_0", usage=200 * MB, limit=0x7FFFFFFFFFFFF000, inactive=50 * MB)
        machine.group1("slurm/job_1", usage=700 * MB, limit=800 * MB, inactive=100 * MB)
        machine.group1("slurm", usage=9000 * MB, limit=20000 * MB)
    reading = machine.read()
    assert reading.memory.limit == 800 * MB
    assert reading.memory.working_set == 600 * MB
    assert reading.memory.available == 200 * MB
    assert len(reading.groups) == 3


def test_the_soft_high_mark_of_version_2_is_a_limit_too(machine: Machine) -> None:
    machine.v2("/user")
    machine.group2("user", current=100 * MB, limit=str(4000 * MB), high=str(1000 * MB))
    assert machine.read().memory.limit == 1000 * MB


def test_a_full_parent_bounds_what_is_available_even_when_its_limit_is_larger(machine: Machine) -> None:
    machine.v2("/users/me")
    machine.group2("users/me", current=100 * MB, limit=str(1000 * MB))
    machine.group2("users", current=7900 * MB, limit=str(8000 * MB))
    memory = machine.read().memory
    assert (memory.limit, memory.available) == (1000 * MB, 100 * MB)


def test_without_any_limit_the_group_is_shown_and_the_machine_bounds(machine: Machine) -> None:
    machine.v2("/user")
    machine.group2("user", current=300 * MB, limit="max", inactive=100 * MB)
    memory = machine.read().memory
    assert memory.limit is None and memory.working_set == 200 * MB
    assert memory.available == 40960000 << 10


@pytest.mark.parametrize(("path", "mounted"), [("/docker/abc/x", "/docker/abc"), ("/", "/"), ("/../../x", "/")])
def test_a_container_that_sees_part_of_the_tree_reads_what_it_sees(machine: Machine, path: str, mounted: str) -> None:
    machine.v2(path, mounted)
    machine.group2("x", current=1 * MB, limit="max")
    machine.group2("", current=300 * MB, limit=str(512 * MB), inactive=44 * MB)
    memory = machine.read().memory
    assert (memory.limit, memory.working_set) == (512 * MB, 256 * MB)


def test_address_space_and_cpu_time_limits_count(machine: Machine) -> None:
    machine.limits(cpu="60", space=str(600 * MB))
    reading = machine.read()
    assert reading.cpu_s == 42.0 and reading.cpu_left_s == 18.0
    assert reading.address_space_left == 100 * MB
    assert reading.memory.available == 100 * MB
    assert reading.ulimits["open files"] == 1024 and reading.ulimits["file size"] is None


def test_an_empty_root_reads_as_unlimited(tmp_path: Path) -> None:
    reading = readings.read(root=tmp_path)
    assert reading.memory == readings.Memory(0, None, None, None)
    assert reading.cpu_left_s is None and reading.cores is None and reading.groups == ()


@pytest.mark.parametrize(
    ("quota", "processes", "space", "expected"),
    [("max 100000", "4096", "unlimited", 4), ("250000 100000", "4096", "unlimited", 3), ("50000 100000", "4096", "unlimited", 1),
     ("max 100000", "40", "unlimited", 2), ("max 100000", "10", "unlimited", 1), ("max 100000", "4096", str(1300 * MB), 3)],
)  # fmt: skip
def test_workers_follow_cores_quota_and_limits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, quota: str, processes: str, space: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    machine.v2("/user")
    machine.write("sys/fs/cgroup/user/cpu.max", f"{quota}\n")
    machine.limits(processes=processes, space=space)
    assert manners.workers(machine.read()) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS": "4"}, 2),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, 1),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "3"}, 3),
        ({"SLURM_CPUS_PER_TASK": "1"}, 4),
    ],
)
def test_workers_keep_to_what_slurm_gave(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert manners.workers(machine.read()) == expected


def test_the_real_process_agrees_with_the_kernel() -> None:
    reading = readings.read()
    block = bytearray(64 * MB)
    block[::4096] = b"x" * len(block[::4096])
    after = readings.read()
    assert 60 * MB < after.memory.anon - reading.memory.anon < 80 * MB
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert abs(after.cpu_s - usage.ru_utime - usage.ru_stime) < 1.0
    assert after.ulimits["open files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert after.memory.available is not None and after.memory.available > 0


def test_priority_is_lowered_outside_a_batch_job_only() -> None:
    code = (
        "import os, psutil; from shardyard.limits import manners; manners.be_nice(); manners.be_nice()\n"
        "print(os.nice(0), int(psutil.Process().ionice().ioclass))"
    )

    def run(**extra: str) -> list[int]:
        clean = {k: v for k, v in launch.environment().items() if not k.startswith("SLURM_")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**clean, **extra}, check=True)
        return [int(word) for word in done.stdout.split()]

    here = os.nice(0)
    assert run() == [max(here, manners.NICE), 3]
    assert run(SLURM_JOB_ID="7")[0] == here
