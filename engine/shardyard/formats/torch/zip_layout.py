"""A torch zip laid out before any of its data exists: where each record goes, and the bytes around them.

As torch 2.13 writes it: local headers with flags 0x0808 and zero sizes, an `FB` extra field that brings the data to a multiple
of the alignment, a data descriptor after each record, the central directory with the true sizes and CRCs, and always a zip64
end record.  Records can be filled in any order and by many writers; descriptors and the directory need the CRCs and come last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BIG = 0xFFFFFFFF
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Placed:
    """A record with its place in the archive."""

    name: str
    nbytes: int
    header_offset: int
    header: bytes
    """The local header up to the first data byte."""

    @property
    def data_offset(self) -> int:
        return self.header_offset + len(self.header)

    @property
    def zip64(self) -> bool:
        """Whether its size or place needs 64-bit fields."""
        return self.nbytes >= _BIG or self.header_offset >= _BIG

    @property
    def descriptor_nbytes(self) -> int:
        """Bytes of the descriptor after the data; an empty record has none."""
        return (24 if self.zip64 else 16) if self.nbytes else 0

    @property
    def end(self) -> int:
        return self.data_offset + self.nbytes + self.descriptor_nbytes


def place(records: Iterable[tuple[str, int]], alignment: int = ALIGNMENT) -> list[Placed]:
    """Places for records given as (name, bytes), one after another from offset 0."""
    found: list[Placed] = []
    offset = 0
    for name, nbytes in records:
        placed = Placed(name, nbytes, offset, _local_header(name, nbytes, offset, alignment))
        found.append(placed)
        offset = placed.end
    return found


def _local_header(name: str, nbytes: int, offset: int, alignment: int) -> bytes:
    raw = name.encode()
    big = nbytes >= _BIG or offset >= _BIG
    # The zip64 field of a local header comes before the padding, as torch puts it; its sizes stay zero like the plain ones.
    extra = struct.pack("<HHQQ", 1, 16, 0, 0) if big else b""
    before = offset + 30 + len(raw) + len(extra) + 4
    padding = -before % alignment
    extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
    size = _BIG if big else 0
    flags = 0x0808 if nbytes else 0x0800
    return _LOCAL.pack(b"PK\x03\x04", 0, flags, 0, 0, 0, 0, size, size, len(raw), len(extra)) + raw + extra


def descriptor(placed: Placed, crc32: int) -> bytes:
    """The bytes after a record's data."""
    if not placed.nbytes:
        return b""
    sizes = struct.pack("<QQ" if placed.zip64 else "<LL", placed.nbytes, placed.nbytes)
    return b"PK\x07\x08" + struct.pack("<L", crc32) + sizes


def directory(records: Sequence[Placed], crcs: Sequence[int]) -> bytes:
    """The central directory and the end records, for the bytes after the last record."""
    start = records[-1].end if records else 0
    entries = b"".join(_central_entry(p, crc) for p, crc in zip(records, crcs, strict=True))
    count, size = len(records), len(entries)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0x031E, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, start + size, 1)
    short = min(count, 0xFFFF)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, short, short, min(size, _BIG), min(start, _BIG), 0)
    return entries + end64 + locator + end


def directory_nbytes(records: Sequence[Placed]) -> int:
    """How many bytes `directory` will return."""
    return sum(46 + len(p.name.encode()) + len(_central_extra(p)) for p in records) + 56 + 20 + 22


def _central_extra(placed: Placed) -> bytes:
    values = [v for v in (placed.nbytes, placed.nbytes, placed.header_offset) if v >= _BIG]
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""


def _central_entry(placed: Placed, crc32: int) -> bytes:
    raw, extra = placed.name.encode(), _central_extra(placed)
    flags = 0x0808 if placed.nbytes else 0x0800
    nbytes, offset = min(placed.nbytes, _BIG), min(placed.header_offset, _BIG)
    fields = (0, 0, flags, 0, 0, 0, crc32, nbytes, nbytes, len(raw), len(extra), 0, 0, 0, 0, offset)
    return _CENTRAL.pack(b"PK\x01\x02", *fields) + raw + extra
