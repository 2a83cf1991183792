"""`shardyard doctor`: what a report about a problem needs, and what on this machine stands in the way of long work."""

from __future__ import annotations

import argparse
import json
import locale
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import shardyard
from shardyard.cli.exits import ExitCode
from shardyard.cli.panel import duration, size
from shardyard.errors import ShardyardError
from shardyard.limits import disk, manners, readings
from shardyard.text import printable

_PACKAGES = ("textual", "numpy", "ml_dtypes", "safetensors", "humanize", "psutil", "platformdirs", "zstandard", "torch")
_ULIMITS = ("cpu time", "address space", "data size", "file size", "processes", "open files")


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("doctor", help="versions, terminal, limits and file systems, for a report")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    found = report()
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        for title, rows in _sections(found):
            print(title)
            for label, text in rows:
                print(f"  {label:<24}{text}" if label else f"  {text}")
    return ExitCode.DONE


def report() -> dict[str, Any]:
    """Everything, as JSON. Only names, numbers and versions: nothing of what a person's files hold."""
    reading = readings.read()
    found: dict[str, Any] = {
        "schema": 1,
        "versions": _versions(),
        "terminal": _terminal(),
        "limits": {
            **reading.memory.to_json(),
            "groups": [
                {"path": g.path, "limit": g.limit, "usage": g.usage, "working_set": g.working_set} for g in reading.groups
            ],
            "machine_available": reading.machine_available,
            "ulimits": dict(reading.ulimits),
            "cpu_left": reading.cpu_left_s,
            "cores": readings.usable_cores(reading),
            "workers": manners.workers(reading),
        },
        "disks": list(_disks()),
        "slurm": _slurm(),
        "jobs": _jobs(),
    }
    found["advice"] = list(_advice(found))
    return found


def _versions() -> dict[str, Any]:
    return {
        "shardyard": shardyard.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "host": socket.gethostname(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _terminal() -> dict[str, Any]:
    environment = os.environ
    columns, lines = shutil.get_terminal_size()
    return {
        "term": environment.get("TERM"),
        "colorterm": environment.get("COLORTERM"),
        "no_color": "NO_COLOR" in environment,
        "size": [columns, lines],
        "interactive": {name: _is_terminal(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")},
        "encoding": getattr(sys.__stderr__, "encoding", None),
        "locale": locale.setlocale(locale.LC_CTYPE, None),
        "codeset": locale.nl_langinfo(locale.CODESET),
        "ssh": "SSH_CONNECTION" in environment,
        "multiplexer": "tmux" if "TMUX" in environment else "screen" if "STY" in environment else None,
    }


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _disks() -> Iterator[dict[str, Any]]:
    from shardyard.jobs import store

    seen = set()
    for role, place in (
        ("current folder", "."),
        ("home", os.path.expanduser("~")),
        ("jobs", store.root()),
        ("temporary", "/tmp"),
    ):
        try:
            found = disk.of(place)
        except ShardyardError:
            continue
        yield {
            "role": role,
            "path": str(found.folder),
            "mount": found.mount,
            "kind": found.kind,
            "free": found.free,
            "total": found.total,
            "files_free": found.files_free,
            "quota": None if found.quota is None else asdict(found.quota),
            "writable": os.access(found.folder, os.W_OK),
            "same_as_above": found.mount in seen,
        }
        seen.add(found.mount)


def _slurm() -> dict[str, Any]:
    found: dict[str, Any] = {"found": shutil.which("sbatch") is not None, "version": None, "answers": False, "partitions": []}
    if found["found"]:
        found["version"] = _first_line(["sbatch", "--version"])
        rows = _lines(["sinfo", "--noheader", "--format=%P|%a|%l|%D"])
        found["answers"] = bool(rows)
        names = ("name", "state", "time", "nodes")
        found["partitions"] = [dict(zip(names, row.split("|"), strict=True)) for row in rows if row.count("|") == 3]
    found["job"] = os.environ.get("SLURM_JOB_ID")
    found["batch_job"] = manners.in_batch_job()
    return found


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _first_line(command: list[str]) -> str | None:
    return next(iter(_lines(command)), None)


def _jobs() -> dict[str, Any]:
    from shardyard.jobs import store

    states = [job.state().value for job in store.jobs()]
    return {"folder": str(store.root()), "counts": {state: states.count(state) for state in sorted(set(states))}}


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    """What a person should know, in sentences."""
    limits, terminal = found["limits"], found["terminal"]
    if limits["ulimits"].get("cpu time") is not None:
        allowed = duration(limits["ulimits"]["cpu time"])
        yield f"A process is ended here after {allowed} of CPU time (ulimit -t); run long work with --slurm."
    if limits["ulimits"].get("address space") is not None:
        space = size(limits["ulimits"]["address space"])
        yield f"Address space is limited to {space} (ulimit -v); files are read, never mapped, so that does no harm."
    if terminal["term"] in (None, "", "dumb"):
        yield "This terminal cannot show the app (TERM is unset or dumb); every command works without it."
    elif terminal["codeset"].upper().replace("-", "") != "UTF8":
        yield "The locale is not UTF-8, so the app draws with plain ASCII; set LC_ALL=C.UTF-8 for lines and bars."
    if found["slurm"]["found"] and not found["slurm"]["answers"]:
        yield "Slurm's commands are here but its controller does not answer."
    for row in found["disks"]:
        if row["role"] == "jobs" and not row["writable"]:
            yield f"Jobs cannot be kept in {printable(row['path'])}, which is not writable; set SHARDYARD_STATE."
    if _logging_out_kills():
        yield "Logging out ends all processes here (KillUserProcesses); use --slurm, or once: loginctl enable-linger"


def _logging_out_kills(root: Path = Path("/")) -> bool:
    """Whether systemd-logind is told to; it ends even processes with a session of their own."""
    value = "no"
    files = [root / "etc/systemd/logind.conf", *sorted((root / "etc/systemd/logind.conf.d").glob("*.conf"))]
    for path in files:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, setting = line.partition("=")
            if key.strip() == "KillUserProcesses":
                value = setting.strip().lower()
    return value in ("yes", "true", "1", "on")


def _sections(found: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    versions, terminal, limits = found["versions"], found["terminal"], found["limits"]
    rows = [(name, str(versions[name])) for name in ("shardyard", "python", "system", "host")]
    yield "Versions", [*rows, *((name, version or "not installed") for name, version in versions["packages"].items())]
    columns, lines = terminal["size"]
    yield (
        "Terminal",
        [
            ("TERM", str(terminal["term"])),
            ("size", f"{columns} x {lines}"),
            ("locale", f"{terminal['locale']} ({terminal['codeset']})"),
            ("interactive", ", ".join(name for name, is_one in terminal["interactive"].items() if is_one) or "no"),
        ],
    )
    memory = [("memory", f"{size(limits['available'])} available, limit {size(limits['limit']) if limits['limit'] else 'none'}")]
    ulimits = [(f"limit of {name}", _limit(name, limits["ulimits"].get(name))) for name in _ULIMITS]
    yield "Limits", [*memory, ("cores", f"{limits['cores']}, workers {limits['workers']}"), *ulimits]
    yield "Disks", [(d["role"], _disk_line(d)) for d in found["disks"]]
    slurm = found["slurm"]
    names = ", ".join(p["name"] for p in slurm["partitions"])
    yield "Slurm", [("found", f"{slurm['version'] or 'yes'}, partitions {names or 'unknown'}" if slurm["found"] else "no")]
    jobs = found["jobs"]
    counts = ", ".join(f"{count} {state}" for state, count in jobs["counts"].items())
    yield "Jobs", [("folder", printable(jobs["folder"])), ("jobs", counts or "none")]
    if found["advice"]:
        yield "Advice", [("", text) for text in found["advice"]]


def _limit(name: str, value: int | None) -> str:
    if value is None:
        return "none"
    if name == "cpu time":
        return duration(value)
    return str(value) if name in ("processes", "open files") else size(value)


def _disk_line(row: Mapping[str, Any]) -> str:
    quota = f", quota leaves {size(max(0, row['quota']['limit'] - row['quota']['used']))}" if row["quota"] else ""
    return f"{size(row['free'])} free of {size(row['total'])}{quota}  {row['kind']}  {printable(row['path'])}"
