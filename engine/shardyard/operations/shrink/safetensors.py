"""Shrinking one safetensors file: bytes that no tensor uses go, and so do equal copies of tied tensors if that is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from shardyard.errors import DamagedError, JobError
from shardyard.files import FileHandles
from shardyard.formats.safetensors.file import open_safetensors
from shardyard.formats.safetensors.header import Entry, parse
from shardyard.operations.shrink.copying import Output, Range, first_difference, range_checks
from shardyard.operations.shrink.meter import Meter
from shardyard.text import printable


@dataclass(frozen=True, slots=True)
class Whole:
    """A stored tensor, as far as its place goes."""

    run: Range
    entry: Entry


class SafetensorsShrink:
    """The new form of one safetensors file; `write` and `prove` do the work."""

    def __init__(self, handles: FileHandles, path: str, drop: Mapping[str, str] | None = None) -> None:
        """Leave out the names in `drop` (alias to owner); the metadata will say whose copies they were."""
        self.handles = handles
        self.path = path
        self.drop = dict(drop or {})
        self.data_start, self.metadata, self.entries = _entries(handles, path)
        self.size = handles.size(path)
        kept = {n: e for n, e in self.entries.items() if n not in self.drop}
        self.order = sorted(kept, key=lambda n: (kept[n].begin, kept[n].end))
        self.head = self._head()

    @property
    def payload(self) -> int:
        """Bytes of tensors in the new file."""
        return sum(e.end - e.begin for n, e in self.entries.items() if n not in self.drop)

    @property
    def nbytes(self) -> int:
        """Size of the new file."""
        return len(self.head) + self.payload

    @property
    def tensors(self) -> int:
        """How many tensors the new file has."""
        return len(self.order)

    @property
    def unused(self) -> int:
        """Bytes that no kept tensor uses."""
        return self.size - self.data_start - self.payload

    @property
    def worthwhile(self) -> bool:
        return bool(self.drop) or self.unused > 0

    def _head(self) -> bytes:
        header: dict[str, object] = {}
        metadata = {**self.metadata, **self.drop}
        if metadata:
            header["__metadata__"] = metadata
        position = 0
        for name in self.order:
            entry = self.entries[name]
            end = position + entry.end - entry.begin
            header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def write(self, fd: int, meter: Meter) -> None:
        """Write the new file."""
        out = Output(fd, self.nbytes, meter)
        out.put(0, self.head)
        placed = []
        at = len(self.head)
        with FileHandles() as handles:
            tensors = open_safetensors(handles, self.path).tensors
            for name in self.order:
                placed.append((tensors[name], at))
                at += tensors[name].nbytes
            out.copy(placed, handles)
        out.check_whole(self.path)

    def prove(self, path: str, meter: Meter, *, ends_only: bool = False) -> None:
        """Read the new file back: the same names, types, shapes, metadata and bytes (or the ends of each tensor), without the
        dropped copies.

        Raises:
            JobError: something differs.
        """
        name = printable(os.path.basename(self.path))
        with FileHandles() as handles:
            start, metadata, entries = _entries(handles, path)
            _, _, before = _entries(handles, self.path)
            kept = {n: (e.dtype, e.shape) for n, e in before.items() if n not in self.drop}
            if kept != {n: (e.dtype, e.shape) for n, e in entries.items()} or metadata != {**self.metadata, **self.drop}:
                raise JobError(f"{name}: the new file's header differs; the old one was left alone.", path=self.path)
            runs = {n: (_run(self.path, self.data_start, before[n]), _run(path, start, entries[n])) for n in self.order}
            checks = (c for n, (a, b) in runs.items() for c in range_checks(n, handles, a, b, meter, ends_only=ends_only))
            differing = first_difference(checks, meter.workers)
            if differing is not None:
                said = f"{name}: {printable(differing, 120)} has other values in the new file; the old one was left alone."
                raise JobError(said, path=self.path)


def _entries(handles: FileHandles, path: str) -> tuple[int, dict[str, str], dict[str, Entry]]:
    """(start of the data, metadata, entries) of a file whose entries are in order but may leave holes.

    Raises:
        DamagedError: entries overlap, contradict themselves, stand twice or leave the file.
    """
    name = printable(os.path.basename(path))
    header = open_safetensors(handles, path).header
    raw = handles.read(path, 8, header.data_start - 8)
    _, entries, twice = parse(raw, name, path)
    position, size = 0, header.nbytes - header.data_start
    for tensor, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor in header.unreadable or entry.begin < position or not entry.begin <= entry.end <= size or twice:
            shown = printable(twice[0] if twice else tensor, 120)
            raise DamagedError(f"{name} is damaged at tensor {shown} and was left alone.", path=path)
        position = entry.end
    return header.data_start, header.metadata, entries


def _run(path: str, data_start: int, entry: Entry) -> Range:
    return Range(path, data_start + entry.begin, entry.end - entry.begin)


def places(handles: FileHandles, path: str) -> dict[str, Whole]:
    """Where each tensor of a file is; errors as `SafetensorsShrink`."""
    start, _, entries = _entries(handles, path)
    return {name: Whole(_run(path, start, entry), entry) for name, entry in entries.items()}
