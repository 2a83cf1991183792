"""A job's events: JSON lines that one process appends and any number of others read while it does.

A writer appends each line with one call, so a reader never sees half an event followed by another.  A kill or a full disk can
leave a torn last line: readers take only whole lines, the next writer ends the torn one first.  Every task of a job has a file of
its own (appending from two machines to one file loses lines on NFS); reading brings them together again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardyard import errors

Event = dict[str, Any]
"""`{"event": kind, "time": seconds, …}`; kinds are `plan`, `progress`, `message`, `finding`, `result` and `error`."""
Offset = Mapping[str, int]
"""How far each events file was read; starts empty, to be handed back as it was given, can be kept as JSON."""

MOST_PLAN_BYTES = 64 << 10
"""A longer plan is only in plan.json: every reader of the events would have to parse it again."""


def file_name(task: int) -> str:
    """The events file of a task."""
    return f"events.{task}.jsonl" if task else "events.jsonl"


class EventLog:
    """The appending end of one events file."""

    def __init__(self, folder: Path, task: int = 0, tasks: int = 1) -> None:
        self._label = {"task": task} if tasks > 1 else {}
        self._fd = os.open(folder / file_name(task), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        self.dropped = 0
        """Events that could not be written, because the disk that holds the job folder is full."""

    def append(self, event: Event) -> None:
        """Write one event. A full home folder must not end a merge: what cannot be written is counted and dropped."""
        line = json.dumps({**event, **self._label}, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        try:
            self._torn = os.write(self._fd, line) != len(line)
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read(folder: Path, offset: Offset | None = None) -> tuple[list[Event], dict[str, int]]:
    """Whole events after `offset`, oldest first, and where to go on from. Lines that are torn or no events are passed over."""
    after = dict(offset or {})
    events: list[Event] = []
    for name in sorted(entry for entry in _names(folder) if entry.startswith("events") and entry.endswith(".jsonl")):
        lines, after[name] = _whole_lines(folder / name, after.get(name, 0))
        events.extend(event for line in lines if (event := _parse(line)) is not None)
    if len(after) > 1:
        events.sort(key=lambda event: float(event["time"]))
    return events, after


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _whole_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), offset + end


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    ok = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("time"), int | float)
    return event if ok else None


class Combined:
    """One progress out of those of several tasks: amounts are summed, the tightest memory and disk are shown."""

    def __init__(self) -> None:
        self._last: dict[int, Event] = {}

    def take(self, events: Iterable[Event]) -> list[Event]:
        """The same events, with each task's progress replaced by that of the whole job."""
        return [self._whole(event) if event["event"] == "progress" and "task" in event else event for event in events]

    def _whole(self, event: Event) -> Event:
        self._last[int(event["task"])] = event
        every = list(self._last.values())
        whole = {key: value for key, value in event.items() if key != "task"}
        for key in ("done", "total", "read", "written", "rate", "read_rate", "write_rate", "cpu"):
            whole[key] = sum(e.get(key) or 0 for e in every)
        whole["eta"] = (whole["total"] - whole["done"]) / whole["rate"] if whole["rate"] else None
        memory: list[dict[str, Any]] = [e["memory"] for e in every if e.get("memory")]
        if memory:
            tightest = max(memory, key=_fullness)
            whole["memory"] = {**tightest, "anon": sum(m.get("anon") or 0 for m in memory)}
        disks = [e["disk"] for e in every if e.get("disk") and e["disk"].get("free") is not None]
        if disks:
            whole["disk"] = min(disks, key=lambda disk: float(disk["free"]))
        whole["tasks"] = len(every)
        return whole


def _fullness(memory: Mapping[str, Any]) -> float:
    return float(memory["working_set"]) / memory["limit"] if memory.get("limit") and memory.get("working_set") else 0.0


def error_event(error: errors.ShardyardError) -> Event:
    """The payload of an `error` event; `error` names the class of `shardyard.errors` that it is of: it decides the exit code."""
    kind = next(k for k in type(error).__mro__ if k.__module__ == errors.__name__)
    event: Event = {"error": kind.__name__, "message": error.message, "path": error.path, "tensors": list(error.tensors)}
    if isinstance(error, errors.CheckpointError):
        event["code"] = error.code
    if isinstance(error, errors.AmbiguousError):
        event["candidates"] = list(error.candidates)
    return event


def error_of(event: Mapping[str, Any]) -> errors.ShardyardError:
    """The error that an `error` event (or a job's outcome) tells of, to be raised again in another process."""
    kind = getattr(errors, str(event.get("error")), errors.JobError)
    if not (isinstance(kind, type) and issubclass(kind, errors.ShardyardError)):
        kind = errors.JobError
    message, path, tensors = str(event.get("message", "The job failed.")), event.get("path"), tuple(event.get("tensors") or ())
    if issubclass(kind, errors.AmbiguousError):
        return kind(message, tuple(event.get("candidates") or ()), path=path)
    if issubclass(kind, errors.CheckpointError):
        return kind(message, code=str(event.get("code", "corrupt")), path=path, tensors=tensors)
    if issubclass(kind, errors.Cancelled):
        return errors.Cancelled(message)
    return kind(message, path=path, tensors=tensors)
