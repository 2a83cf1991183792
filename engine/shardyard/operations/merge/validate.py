"""Each output is opened afresh and checked by the rules of its format before it gets its final name."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from shardyard.errors import JobError, ShardyardError
from shardyard.files import FileHandles
from shardyard.findings import Blocks
from shardyard.formats.pickles import Dict
from shardyard.formats.safetensors.file import read_header
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.tensors import TensorValue
from shardyard.formats.zip_directory import Window, read_directory
from shardyard.operations.merge.ledger import Done
from shardyard.operations.merge.outputs import OutputFile
from shardyard.operations.merge.plan import Plan
from shardyard.operations.write_back import forget
from shardyard.text import printable

MOST_SAMPLED = 64
"""A sampled read-back looks at the first blocks of so many units."""


def validate(plan: Plan, file: OutputFile, path: Path, handles: FileHandles) -> None:
    """Open an output by the reference's rules and compare it with the plan.

    Raises:
        JobError: it is not what was planned.
    """
    try:
        if handles.size(str(path)) != file.nbytes:
            raise JobError(f"{path.name} has {handles.size(str(path))} bytes where {file.nbytes} were planned.", path=str(path))
        if file.kind == "safetensors":
            _validate_safetensors(file, path, handles)
        elif file.kind == "torch":
            _validate_torch(file, path, handles)
    except JobError:
        raise
    except ShardyardError as error:
        raise JobError(f"The output {path.name} does not pass its own check: {error.message}", path=str(path)) from error


def _validate_safetensors(file: OutputFile, path: Path, handles: FileHandles) -> None:
    header = read_header(handles, str(path))
    wrong = [f for f in header.findings if f.blocks is not Blocks.NOTHING]
    if wrong:
        raise JobError(f"The output {path.name} does not pass its own check: {wrong[0].message}", path=str(path))
    starts = {s.content: s.start - header.data_start for s in file.segments if not isinstance(s.content, bytes)}
    planned = {w.name: (w.dtype.safetensors, start, start + w.nbytes) for w, start in starts.items()}
    found = {name: (e.dtype, e.begin, e.end) for name, e in header.entries.items() if e.end > e.begin}
    if found != planned:
        raise JobError(f"The output {path.name} lists other tensors than were planned.", path=str(path))


def _validate_torch(file: OutputFile, path: Path, handles: FileHandles) -> None:
    opened = open_torch(handles, str(path))
    for record in opened.storages.values():
        record.locate(handles)
    root = opened.root
    values = {k: v for k, v in root.pairs if isinstance(k, str)} if isinstance(root, Dict) else {}
    planned = {w.name: w for w in file.tensors}
    parts = {part.name for whole in file.wholes for part in whole.parts}
    wholes = {whole.name for whole in file.wholes}
    found = {k: v for k, v in values.items() if isinstance(v, TensorValue) and k not in wholes}
    wanted = {k: w for k, w in planned.items() if k not in parts}
    wanted |= {alias: planned[owner] for alias, owner in file.tied.items()}
    same = found.keys() == wanted.keys() and wholes <= values.keys()
    same = same and all(v.dtype == wanted[k].dtype and v.shape == wanted[k].tensor.shape for k, v in found.items())
    if not same:
        raise JobError(f"The output {path.name} lists other tensors than were planned.", path=str(path))
    members = read_directory(handles, Window(str(path), 0, file.nbytes))
    if file.tail is not None and [m.header_offset for m in members] != [p.header_offset for p in file.tail.placed]:
        raise JobError(f"The records of {path.name} are not where they were planned.", path=str(path))


def read_back(plan: Plan, done: Done) -> int:
    """Read what was written from the disk again and compare its CRCs: a sample, or everything; returns bytes read.

    Raises:
        JobError: the disk gave back other bytes.
    """
    numbers = sorted(done.units)
    if plan.options.verify == "sample":
        numbers = numbers[:: max(1, -(-len(numbers) // MOST_SAMPLED))]
    total = 0
    for number in numbers:
        unit, row = plan.unit(number), done.units[number]
        whole = (unit.hi - unit.lo, row.crc) if row.crc is not None else None
        nbytes, wanted = (whole if plan.options.verify == "full" else row.first) or (0, 0)
        hi = unit.lo + nbytes
        path = plan.place.files / unit.file.name
        if _crc(path, unit.file, unit.lo, hi) != wanted:
            raise JobError(
                f"{printable(unit.file.name)} reads back otherwise than it was written (bytes {unit.lo} to {hi}): the disk or "
                "file system is at fault. Nothing was published.",
                path=str(path),
            )
        total += hi - unit.lo
    return total


def _crc(path: Path, file: OutputFile, lo: int, hi: int) -> int:
    """The CRC of what is on disk, with zeros for the tail's bytes, as the unit wrote them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        forget(fd, lo, hi)
        crc = 0
        for offset in range(lo, hi, 1 << 20):
            block = bytearray(os.pread(fd, min(1 << 20, hi - offset), offset))
            for a, b in file.tail_ranges(offset, offset + len(block)) if file.tail is not None else ():
                block[a - offset : b - offset] = bytes(b - a)
            crc = zlib.crc32(block, crc)
        return crc
    finally:
        os.close(fd)
