"""Which work units are done, in a form that a kill at any point leaves right.

Each task appends to a file of its own, and only after the data of a batch is on disk: pwrite, fdatasync of the files touched,
then the lines, then fdatasync of the ledger.  A torn last line counts as not done.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardyard.errors import JobError
from shardyard.operations.merge.sources import Checked, SourceChecks
from shardyard.text import printable

_NAME = re.compile(r"ledger-(\d+)\.jsonl")


@dataclass(slots=True)
class UnitDone:
    """What is known of a unit once it is written."""

    number: int
    first: tuple[int, int] | None = None
    """(bytes, CRC) of its first block, for the sampled read-back."""
    crc: int | None = None
    """CRC of all its bytes, where everything is read back."""
    output_parts: list[list[int]] = field(default_factory=list)
    """[zip record of the output, offset in it, bytes, crc]."""
    source_parts: list[tuple[Checked, list[list[int]]]] = field(default_factory=list)
    overflows: dict[str, int] = field(default_factory=dict)
    """Finite values that became infinite, by output name."""
    checked: int = 0
    """Tensors that were compared with another stored copy."""


class Ledger:
    """The appending end of one task's ledger; at most one process holds it."""

    def __init__(self, staging: Path, task: int, plan_hash: str) -> None:
        self.path = staging / f"ledger-{task}.jsonl"
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._sources: dict[tuple[str, str, int], int] = {}
        self._lock()
        size = os.fstat(self._fd).st_size
        torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        # A new header starts a new numbering of source records, whoever wrote before.
        self._write((b"\n" if torn else b"") + _line({"plan": plan_hash}))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks
            os.close(self._fd)
            raise JobError(
                f"Another process is writing this output ({printable(str(self.path.parent))}); wait for it, or choose another.",
                path=str(self.path.parent),
            ) from None

    def append(self, units: Iterable[UnitDone]) -> None:
        """Units whose data is on disk; on return the lines are too."""
        lines = [line for unit in units for line in self._lines(unit)]
        if lines:
            self._write(b"".join(lines))
            os.fdatasync(self._fd)

    def _lines(self, unit: UnitDone) -> Iterator[bytes]:
        sources = []
        for record, parts in unit.source_parts:
            number = self._sources.get(record.key)
            if number is None:
                number = self._sources[record.key] = len(self._sources)
                place = [record.path, record.name, record.nbytes, record.crc32, record.start]
                yield _line({"source": number, "is": place})
            sources.append([number, parts])
        row: dict[str, Any] = {"unit": unit.number, "sources": sources, "output": unit.output_parts}
        row |= {"first": unit.first, "crc": unit.crc, "overflows": unit.overflows, "checked": unit.checked}
        yield _line(row)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close it; another process may go on."""
        os.close(self._fd)


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Done:
    """The union of a staging folder's ledgers for one plan."""

    units: dict[int, UnitDone] = field(default_factory=dict)
    sources: SourceChecks = field(default_factory=SourceChecks)

    def overflows(self) -> dict[str, int]:
        """Finite values that became infinite, by output name."""
        total: dict[str, int] = {}
        for unit in self.units.values():
            for name, count in unit.overflows.items():
                total[name] = total.get(name, 0) + count
        return total


def read(staging: Path, plan_hash: str) -> Done:
    """What is done of a plan; lines of other plans and torn lines are passed over.

    Raises:
        DamagedError: a source record is whole, and its CRC is wrong.
    """
    done = Done()
    try:
        names = sorted(os.listdir(staging))
    except FileNotFoundError:
        return done
    for name in names:
        if _NAME.fullmatch(name):
            _read_one(staging / name, plan_hash, done)
    return done


def _read_one(path: Path, plan_hash: str, done: Done) -> None:
    sources: dict[int, Checked] = {}
    ours = False
    with open(path, "rb") as file:
        for raw in file:
            row = _parse(raw)
            if row is None:
                continue
            if "plan" in row:
                ours, sources = row["plan"] == plan_hash, {}
            elif not ours:
                continue
            elif "source" in row:
                sources[row["source"]] = Checked(*row["is"])
            elif "unit" in row and row["unit"] not in done.units:
                done.units[row["unit"]] = _unit(row)
                for number, parts in row["sources"]:
                    done.sources.add(sources[number], parts)


def _unit(row: dict[str, Any]) -> UnitDone:
    return UnitDone(
        row["unit"],
        tuple(row["first"]) if row["first"] else None,
        row["crc"],
        row["output"],
        [],
        row["overflows"],
        row["checked"],
    )


def _parse(raw: bytes) -> dict[str, Any] | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        row = json.loads(raw)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
