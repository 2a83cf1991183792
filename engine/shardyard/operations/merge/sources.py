"""The CRCs of zip records that were read, checked against their central directories: what finds a flipped bit.

torch and DeepSpeed ignore these CRCs.  Parts of a record may be read by several threads and tasks in any order; small gaps
that no tensor uses, such as the padding at a rank's end, are read at the end so that the record can be checked at all.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardyard.errors import COPY_AGAIN, DamagedError
from shardyard.files import FileHandles
from shardyard.operations.crc import Coverage
from shardyard.pieces import Record
from shardyard.text import printable

MOST_GAP_BYTES = 64 << 10
MOST_GAP_SHARE = 16
"""Gaps are read if they come to no more than this many bytes, or to one part in this many of the record."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a record whose CRC can be checked: enough to read it again in another process."""

    path: str
    name: str
    nbytes: int
    crc32: int
    start: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.path, self.name, self.start


class Seen:
    """The parts of records that one unit read, in the order in which they came; neighbours are joined as they come."""

    def __init__(self) -> None:
        self._parts: dict[Record, list[list[int]]] = {}

    def __call__(self, record: Record, offset: int, data: memoryview) -> None:
        """A part was read; see `gather.Observer`."""
        if record.crc32 is None:
            return
        parts = self._parts.get(record)
        if parts is None:
            parts = self._parts[record] = []
        if parts and parts[-1][0] + parts[-1][1] == offset:
            last = parts[-1]
            last[2] = zlib.crc32(data, last[2])
            last[1] += len(data)
        else:
            parts.append([offset, len(data), zlib.crc32(data)])

    def parts(self, handles: FileHandles) -> Iterator[tuple[Checked, list[list[int]]]]:
        """Records with their parts: [offset, bytes, crc]."""
        for record, parts in self._parts.items():
            crc = record.crc32
            if crc is not None:
                yield Checked(record.path, record.name, record.nbytes, crc, record.locate(handles)), parts


@dataclass(slots=True)
class SourceChecks:
    """All records seen so far."""

    coverage: dict[tuple[str, str, int], Coverage] = field(default_factory=dict)
    records: dict[tuple[str, str, int], Checked] = field(default_factory=dict)
    whole: int = 0
    """Records whose CRC was found right."""

    def add(self, record: Checked, parts: Iterable[list[int]]) -> None:
        """Parts of a record.

        Raises:
            DamagedError: the record is whole now, and its CRC is wrong.
        """
        self.records[record.key] = record
        coverage = self.coverage.setdefault(record.key, Coverage())
        for offset, nbytes, crc in parts:
            coverage.add(offset, nbytes, crc)
        self._compare(record, coverage)

    def _compare(self, record: Checked, coverage: Coverage) -> bool:
        crc = coverage.whole(record.nbytes)
        if crc is None:
            return False
        if crc != record.crc32:
            raise DamagedError(
                f"{printable(os.path.basename(record.path))}: record {printable(record.name, 80)} fails its CRC-32; the file was "
                "damaged after it was written.",
                path=record.path,
                remedy=COPY_AGAIN,
            )
        return True

    def finish(self, handles: FileHandles, *, everything: bool) -> tuple[int, int]:
        """Read the gaps that are small (or all) and check each record; returns (checked, not checked).

        Raises:
            DamagedError: a record's CRC is wrong.
        """
        checked = 0
        for key, coverage in self.coverage.items():
            record = self.records[key]
            gaps = coverage.gaps(record.nbytes)
            missing = sum(end - start for start, end in gaps)
            if everything or missing <= max(MOST_GAP_BYTES, record.nbytes // MOST_GAP_SHARE):
                for start, end in gaps:
                    coverage.add(start, end - start, _crc_of(record, start, end, handles))
            checked += self._compare(record, coverage)
        self.whole = checked
        return checked, len(self.coverage) - checked


def check_records(records: Iterable[Record], handles: FileHandles) -> None:
    """Read records whole and check their CRCs, to say which of two contradicting copies is the damaged one.

    Raises:
        DamagedError: a record's CRC is wrong.
    """
    for record in records:
        if record.crc32 is not None:
            checked = Checked(record.path, record.name, record.nbytes, record.crc32, record.locate(handles))
            SourceChecks().add(checked, [[0, record.nbytes, _crc_of(checked, 0, record.nbytes, handles)]])


def _crc_of(record: Checked, start: int, end: int, handles: FileHandles) -> int:
    crc = 0
    for offset in range(start, end, 1 << 20):
        crc = zlib.crc32(handles.read(record.path, record.start + offset, min(1 << 20, end - offset)), crc)
    return crc
