"""What a shrink would do, file by file, and how it is told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardyard.findings import Finding
from shardyard.health.words import size
from shardyard.limits import disk
from shardyard.operations.place import Place
from shardyard.operations.shrink.files import Found
from shardyard.operations.shrink.meter import Meter
from shardyard.operations.shrink.replace import Fingerprint
from shardyard.operations.shrink.ties import Tied
from shardyard.text import printable


class Shrinking(Protocol):
    """A file's new form."""

    @property
    def nbytes(self) -> int: ...
    @property
    def payload(self) -> int: ...
    @property
    def tensors(self) -> int: ...
    @property
    def unused(self) -> int: ...
    @property
    def worthwhile(self) -> bool: ...
    def write(self, fd: int, meter: Meter) -> None: ...
    def prove(self, path: str, meter: Meter, *, ends_only: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file of a shrink."""

    found: Found
    fingerprint: Fingerprint
    after: int
    """Bytes of the new file; as before where it is left."""
    payload: int = 0
    """Tensor bytes to be written and compared."""
    tensors: int = 0
    shrunk: bool = False
    why: str = ""
    """Why it is left as it is; empty for files that are not looked at."""
    damaged: bool = False

    @property
    def before(self) -> int:
        return self.fingerprint.nbytes

    @property
    def saved(self) -> int:
        return self.before - self.after if self.shrunk else 0


@dataclass(slots=True)
class ShrinkPlan:
    """What a shrink would do; made from headers and pickles alone."""

    sources: list[str]
    place: Place | None
    """None: in place, or only looked at."""
    in_place: bool
    dedupe_tied: bool
    files: list[FilePlan]
    workers: int | None = None
    """Threads that were asked for; None: as this machine allows."""
    ties: dict[str, Tied] = field(default_factory=dict)
    """By folder."""
    findings: list[Finding] = field(default_factory=list)
    compared: bool = False
    """Whether copies of tied weights were compared by their bytes; a plan reads none."""

    @property
    def before(self) -> int:
        return sum(f.before for f in self.looked_at)

    @property
    def after(self) -> int:
        return sum(f.after for f in self.looked_at)

    @property
    def looked_at(self) -> list[FilePlan]:
        """Files that are shrunk, or were looked at and left."""
        return [f for f in self.files if f.shrunk or f.why]

    @property
    def needed(self) -> int:
        """Disk that must be free: all of an output, or the largest new file in place."""
        if self.place is None:
            return max((f.after for f in self.files if f.shrunk), default=0)
        return sum(f.after for f in self.files)

    @property
    def hash(self) -> str:
        """Names this very plan: other sources or settings give another."""
        rows = [[f.found.path, f.fingerprint.nbytes, f.fingerprint.modified_ns, f.after] for f in self.files]
        settings = [self.sources, self.dedupe_tied, rows]
        return hashlib.sha256(json.dumps(settings).encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """As `--dry-run` and the app show it."""
        where = self.place.out if self.place is not None else self.sources[0]
        room = disk.of(where)
        working = sum(f.payload for f in self.files)
        copied = sum(f.after for f in self.files if not f.shrunk) if self.place is not None else 0
        shrunk = [f for f in self.files if f.shrunk]
        return {
            "verb": "shrink",
            "sources": [printable(s) for s in self.sources],
            "out": None if self.place is None else printable(str(self.place.out)),
            "in_place": self.in_place,
            "files": [row_of(f) for f in self.looked_at],
            "tensors": sum(f.tensors for f in shrunk),
            "before": self.before,
            "after": self.after,
            "saved": self.before - self.after,
            # In place, both files are read once more to compare them.
            "bytes_read": (3 if self.in_place else 1) * working + copied,
            "bytes_written": sum(f.after for f in shrunk) + copied,
            "memory": MEMORY,
            "disk": {"needed": self.needed, "free": room.room, "path": printable(str(room.folder))},
            "complete": True,
            "notes": report_lines([row_of(f) for f in self.looked_at]),
            "findings": [f.brief() for f in self.findings],
        }


MEMORY = 60 << 20
"""Anonymous memory that a shrink takes for files of any size; a pickle of 100,000 tensors adds twice as much."""


def row_of(file: FilePlan) -> dict[str, Any]:
    """One file of a plan or a report."""
    return {
        "name": printable(file.found.name),
        "before": file.before,
        "after": file.after,
        "saved": file.saved,
        "tensors": file.tensors,
        "action": "shrink" if file.shrunk else "leave",
        "why": file.why,
    }


def report_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Before, after and saved, for each file and in all."""
    lines = []
    for row in rows:
        if row["action"] == "shrink":
            lines.append(f"{row['name']}: {size(row['before'])} to {size(row['after'])}, saves {size(row['saved'])}")
        else:
            lines.append(f"{row['name']}: {size(row['before'])}, left as it is: {row['why']}")
    before, saved = sum(r["before"] for r in rows), sum(r["saved"] for r in rows)
    share = f" ({saved / before:.0%})" if before else ""
    lines.append(f"In all: {size(before)} to {size(before - saved)}, saves {size(saved)}{share}")
    return lines
