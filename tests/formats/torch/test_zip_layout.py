"""The zip layout against archives that torch itself wrote."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import pytest

from shardyard.formats.torch import zip_layout
from support.checkpoints import cases

WRITTEN_BY_TORCH = [
    path
    for case in cases("files", "a1_") + cases("files", "a2_")
    for path in sorted(case.glob("*.[bp]*"))
    if zipfile.is_zipfile(path)
]


@pytest.mark.parametrize("path", WRITTEN_BY_TORCH, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_layout_is_byte_for_byte_what_torch_writes(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        contents = [(info.filename, archive.read(info)) for info in archive.infolist()]
    placed = zip_layout.place([(name, len(data)) for name, data in contents])
    crcs = [zlib.crc32(data) for _, data in contents]
    out = b"".join(
        p.header + data + zip_layout.descriptor(p, crc) for p, (_, data), crc in zip(placed, contents, crcs, strict=True)
    )
    tail = zip_layout.directory(placed, crcs)
    assert out + tail == path.read_bytes()
    assert len(tail) == zip_layout.directory_nbytes(placed)


def test_records_beyond_4_gib_get_64_bit_fields() -> None:
    placed = zip_layout.place([("m/data/0", 5 << 30), ("m/data/1", 100)])
    assert all(p.data_offset % 64 == 0 for p in placed)
    assert [p.descriptor_nbytes for p in placed] == [24, 24]
    tail = zip_layout.directory(placed, [1, 2])
    assert len(tail) == zip_layout.directory_nbytes(placed)
    assert (5 << 30).to_bytes(8, "little") in tail
