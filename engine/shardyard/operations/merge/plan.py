"""A merge's plan: every byte of the output has its place; and the hash and the marker that name this very plan."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shardyard import __version__
from shardyard.checkpoint import Checkpoint
from shardyard.findings import Finding
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.outputs import OutputFile, literal_file
from shardyard.operations.merge.selection import Selection
from shardyard.operations.place import MARKER, Place
from shardyard.pieces import EncodedRecord

UNIT = 64 << 20
"""A work unit lies between absolute multiples of this many bytes of an output file: page and stripe aligned."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A slice of an output file that one thread writes."""

    number: int
    file: OutputFile
    lo: int
    hi: int


@dataclass(eq=False)
class Plan:
    """What will be read and written, exactly."""

    place: Place
    options: MergeOptions
    checkpoint: Checkpoint
    selection: Selection
    files: list[OutputFile]
    tied: dict[str, str]
    """Aliases to owners, in output names, of names that are not written (or that share a storage)."""
    casts: Counter[tuple[str, str]]
    sources: dict[str, dict[str, str | int]]
    """Fingerprints by path."""
    spool: list[EncodedRecord]
    """Compressed records that are decoded into staging first."""
    findings: list[Finding]
    hash: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.place.out

    @property
    def complete(self) -> bool:
        return self.selection.complete

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(f.nbytes for f in self.files)

    @cached_property
    def _first_units(self) -> list[int]:
        firsts = [0]
        for file in self.files:
            firsts.append(firsts[-1] + -(-file.nbytes // UNIT))
        return firsts

    @property
    def units(self) -> int:
        """How many work units there are."""
        return self._first_units[-1]

    def unit(self, number: int) -> Unit:
        """A work unit by its number."""
        k = bisect_right(self._first_units, number) - 1
        file = self.files[k]
        lo = (number - self._first_units[k]) * UNIT
        return Unit(number, file, lo, min(file.nbytes, lo + UNIT))

    def units_of(self, file: OutputFile) -> range:
        """The numbers of a file's work units."""
        k = next(k for k, f in enumerate(self.files) if f is file)
        return range(self._first_units[k], self._first_units[k + 1])

    def to_json(self) -> dict[str, Any]:
        """The plan as the app, `--dry-run` and the job's first event show it."""
        return self.summary


SETTINGS = (
    "dtype", "keep_dtype", "allow_overflow", "format", "max_shard_size", "tag", "part", "select", "exclude", "trainable_only",
    "tied", "strip_prefix", "lora", "like", "allow_incomplete",
)  # fmt: skip
"""Options that decide what is written; the others only how."""


def settings(options: MergeOptions) -> dict[str, Any]:
    """The options that decide what is written."""
    every = options.to_json()
    return {name: every[name] for name in SETTINGS if name in every}


def hash_of(plan: Plan, kind: str) -> str:
    """Of the settings, the sources' fingerprints and the layout: work that was done under another hash is not gone on with."""
    digest = hashlib.sha256()
    parts = [
        __version__,
        kind,
        json.dumps(settings(plan.options), sort_keys=True),
        json.dumps(plan.sources, sort_keys=True),
        json.dumps(plan.tied, sort_keys=True),
    ]
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    for file in plan.files:
        digest.update(f"{file.name}\0{file.nbytes}\0".encode("utf-8", "surrogatepass"))
        for segment in file.segments:
            if isinstance(segment.content, bytes):
                digest.update(segment.content)
            else:
                fold = segment.content.fold
                change = f"{fold.a.name}\0{fold.b.name}\0{fold.scale!r}\0{fold.transposed}\0" if fold is not None else ""
                text = f"{segment.content.name}\0{segment.content.dtype.name}\0{segment.start}\0{change}"
                digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def marker(plan: Plan) -> OutputFile:
    """`.shardyard.json`: what made this folder, without times, so that equal merges give equal folders."""
    names = {f.name: f.nbytes for f in plan.files}
    content = {
        "schema": 1,
        "shardyard": __version__,
        "plan": plan.hash,
        "settings": settings(plan.options),
        "sources": {path: dict(found) for path, found in sorted(plan.sources.items())},
        "complete": plan.complete,
        "missing": list(plan.selection.missing),
        "tied": dict(sorted(plan.tied.items())),
        "files": dict(sorted(names.items())),
    }
    return literal_file(MARKER, (json.dumps(content, indent=2) + "\n").encode())
