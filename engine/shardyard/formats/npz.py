"""NumPy archives (`.npz`) and single arrays (`.npy`).

An array's header is a Python literal and is read as one; an array of objects has a pickle inside and is listed, never loaded.
Stored members have a place on disk; compressed ones are decoded by the transfer that wants them.
"""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Tensor, Usage
from shardyard.dtypes import BY_NAME, DType, Kind
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.sniff import HEAD, Content, not_a_checkpoint, sniff_file
from shardyard.formats.zip_directory import STORED, DeflatedRecord, Window, deflated_record_of, read_directory, record_of
from shardyard.layouts import Layout, OneRun, Strided
from shardyard.pieces import Ops, Record, row_major
from shardyard.text import printable

MOST_HEADER_BYTES = 64 << 10
_NAMES = {
    **{"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128", "b1": "bool"},
    **{f"i{n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"u{n}": f"uint{8 * n}" for n in (1, 2, 4, 8)},
}


class Npz:
    """The NumPy files of a folder, each a checkpoint."""

    name = "NumPy archive"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """Files named `.npz`; a bare `.npy` is one array, not a model, and is opened only when it is asked for."""
        for name in unclaimed:
            entry = folder.entries[name]
            if name.lower().endswith(".npz") and not entry.is_dir:
                yield Candidate(self, folder, Path(entry.path), CheckpointKind.NPZ, (name,))

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the zip directory and each array's header."""
        name = candidate.files[0]
        path = candidate.folder.entries[name].path
        handles = options.handles
        nbytes = handles.size(path)
        content = sniff_file(handles, path)
        findings: list[Finding] = []
        if content.content is Content.NPY:
            stem = name.rsplit(".", 1)[0]
            tensors = dict([_array(handles, stem, Record(path, nbytes, 0, name), findings)])
        elif content.content is Content.ZIP:
            tensors = _members(handles, Window(path, 0, nbytes), findings)
        else:
            raise not_a_checkpoint(path, content, "NumPy archive")
        weights = sum(t.nbytes for t in tensors.values() if t.layout is not None)
        return Checkpoint(
            candidate.path,
            CheckpointKind.NPZ,
            [FileEntry(name, nbytes, "weights")],
            {"model": Part("model", tensors, model=True)},
            "model",
            findings=findings,
            usage=Usage(weights=min(weights, nbytes), other=max(0, nbytes - weights)),
            checked={"headers", "shapes"},
        )


FORMAT = Npz()


def _members(handles: FileHandles, window: Window, findings: list[Finding]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for member in read_directory(handles, window):
        if not member.name.endswith(".npy"):
            continue
        name = member.name[: -len(".npy")]
        if name in tensors:
            raise DamagedError(f"{_base(window.path)} holds array {printable(name, 80)} twice.", path=window.path)
        if member.problem:
            raise DamagedError(f"{_base(window.path)}: array {printable(name, 80)} {member.problem}.", path=window.path)
        record = record_of(member, window) if member.method == STORED else deflated_record_of(member, window)
        tensors[name] = _array(handles, name, record, findings)[1]
    return tensors


def _head(handles: FileHandles, record: Record) -> bytes:
    """Enough bytes of an array file to hold its header."""
    if not isinstance(record, DeflatedRecord):
        start = record.locate(handles)
        head = handles.read(record.path, start, min(HEAD, record.nbytes))
        wanted = min(record.nbytes, 12 + _header_length(head))
        return head if wanted <= len(head) else handles.read(record.path, start, wanted)
    head = b""
    for block in record.decode(handles):
        head += block[: MOST_HEADER_BYTES + 12 - len(head)]
        if len(head) >= min(HEAD, 12 + _header_length(head)):
            break
    return head


def _header_length(head: bytes) -> int:
    size = int.from_bytes(head[8:10], "little") if head[6:7] == b"\1" else int.from_bytes(head[8:12], "little")
    return min(size, MOST_HEADER_BYTES)


def _array(handles: FileHandles, name: str, record: Record, findings: list[Finding]) -> tuple[str, Tensor]:
    """(name, tensor) of one array file."""
    head = _head(handles, record)
    shown = f"{_base(record.path)}: array {printable(name, 80)}"
    if head[:6] != b"\x93NUMPY" or head[6:7] not in (b"\1", b"\2", b"\3"):
        raise DamagedError(f"{shown} has no NumPy header.", path=record.path)
    first = 10 if head[6] == 1 else 12
    size = int.from_bytes(head[8:first], "little")
    if size > MOST_HEADER_BYTES or first + size > len(head):
        raise DamagedError(f"{shown} has a header of {size:,} bytes that is not there or too large.", path=record.path)
    descr, fortran, shape = _header(head[first : first + size], shown, record.path)
    dtype, item, swap = _dtype(descr)
    if dtype.name.startswith("|O") or dtype.name == "object":
        text = f"{shown} holds Python objects (a pickle) and was not read."
        remedy = "Save it again without objects if its values are needed."
        findings.append(Finding("unsafe-pickle", Severity.INFO, text, remedy, (_base(record.path),), (name,)))
        return name, Tensor(name, dtype, shape, None, note="Python objects, not read", nbytes_stored=0)
    nbytes = item * math.prod(shape)
    if first + size + nbytes > record.nbytes:
        raise DamagedError(
            f"{shown} needs {nbytes:,} bytes; {max(0, record.nbytes - first - size):,} are there.",
            code="truncated",
            path=record.path,
        )
    layout = _layout(record, first + size, shape, dtype, item, fortran=fortran, swap=swap)
    return name, Tensor(name, dtype, shape, layout, nbytes_stored=nbytes if dtype.bits == 0 else None)


def _header(raw: bytes, shown: str, path: str) -> tuple[str, bool, tuple[int, ...]]:
    try:
        value = ast.literal_eval(raw.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise DamagedError(f"{shown} has a header that is no plain literal: it is damaged or hostile.", path=path) from None
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise DamagedError(f"{shown} has a header without dtype, order and shape.", path=path)
    shape, fortran, descr = value["shape"], value["fortran_order"], value["descr"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape) or len(shape) > 64:
        raise DamagedError(f"{shown} has an impossible shape.", path=path)
    if math.prod(n for n in shape if n) >= 1 << 62:
        raise DamagedError(f"{shown} has a shape larger than 64 bits can count.", path=path)
    if not isinstance(descr, (str, list)) or not isinstance(fortran, bool):
        raise DamagedError(f"{shown} has an impossible dtype.", path=path)
    return (descr if isinstance(descr, str) else "structured"), fortran, shape


def _dtype(descr: str) -> tuple[DType, int, bool]:
    """(dtype, bytes an element, whether to swap); dtypes that torch lacks keep NumPy's name and are opaque."""
    match = re.fullmatch(r"([<>=|]?)([a-zA-Z])(\d{0,9})(\[.*\])?", descr)
    if match is None:
        return DType("object" if "O" in descr or descr == "structured" else printable(descr, 40), 0, Kind.OPAQUE, None), 0, False
    order, letter, count = match[1], match[2], int(match[3] or 0)
    known = _NAMES.get(f"{letter}{count}")
    if known is not None:
        dtype = BY_NAME[known]
        return dtype, dtype.itemsize, order == ">" and dtype.word > 1
    if letter == "O":
        return DType("|O", 0, Kind.OPAQUE, None), 0, False
    return DType(printable(descr, 40), 0, Kind.OPAQUE, None), count * 4 if letter == "U" else count, False


def _layout(record: Record, offset: int, shape: tuple[int, ...], dtype: DType, item: int, *, fortran: bool, swap: bool) -> Layout:
    packed = row_major(shape, item)
    strides = tuple(reversed(row_major(tuple(reversed(shape)), item))) if fortran else packed
    ops = Ops.SWAP if swap else Ops.NONE
    plain = 0 in shape or all(n == 1 or s == p for n, s, p in zip(shape, strides, packed, strict=True))
    if plain and not ops:
        return OneRun(record, offset, item * math.prod(shape))
    if dtype.bits and dtype.word != item:
        return Strided(record, offset, (*shape, 2), (*strides, dtype.word), dtype.word, ops)
    if item in (1, 2, 4, 8, 16):
        return Strided(record, offset, shape, strides, item, ops)
    return Strided(record, offset, (*shape, item), (*strides, 1), 1)


def _base(path: str) -> str:
    return printable(os.path.basename(path))
