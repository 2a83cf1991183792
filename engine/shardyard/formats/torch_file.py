"""One torch.save file, read without torch: the pickled graph with its tensors, and where each storage's bytes are.

Three containers: the zip of torch 1.6 and later, the legacy stream of pickles before it, and the tar of the first releases.
Nothing but the directory and the pickles is read; a storage's bytes are found by `TorchFile.layout`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import Layout, OneRun, Ops, Record, Role, StorageView, Strided, Tensor, row_major
from shardyard.dtypes import DType
from shardyard.errors import DamagedError, UnsupportedError
from shardyard.files import FileHandles
from shardyard.findings import Finding
from shardyard.formats import pickles
from shardyard.formats.pickles import PickleError
from shardyard.formats.tensors import REBUILDS, StorageRef, TensorValue, storage_of
from shardyard.formats.zip_directory import STORED, Member, Window, read_directory, record_of
from shardyard.text import printable

MOST_PICKLE_BYTES = 4 << 30


@dataclass(slots=True)
class TorchFile:
    """A torch file, opened."""

    path: str
    container: str
    """`zip`, `legacy` or `tar`."""
    root: object
    """The graph: Dict, list, Call, TensorValue, … as `formats.pickles` and `formats.tensors` define them."""
    storages: dict[str, Record]
    """By storage key."""
    big_endian: bool = False
    globals: Mapping[tuple[str, str], int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    protocol: int = 2

    def layout(self, value: TensorValue) -> Layout:
        """Where a tensor's bytes are.

        Raises:
            DamagedError: its storage is not in the file, or is smaller than the tensor.
        """
        name = printable(os.path.basename(self.path))
        storage = value.storage
        if storage is None:
            raise UnsupportedError(f"{name}: a meta tensor has no data.", code="placeholder", path=self.path)
        record = self.storages.get(storage.key)
        if record is None:
            raise DamagedError(f"{name}: storage {printable(storage.key, 40)} is not in the file.", path=self.path)
        if record.nbytes != storage.nbytes:
            raise DamagedError(
                f"{name}: storage {printable(storage.key, 40)} has {record.nbytes} bytes where the pickle says {storage.nbytes}.",
                path=self.path,
            )
        return view_layout(value, record, big_endian=self.big_endian)

    def tensor(self, name: str, value: TensorValue, role: Role = Role.WEIGHT) -> Tensor:
        """A catalogue entry for a tensor value; errors as `layout`."""
        storage = value.storage
        if storage is None:
            return Tensor(name, value.dtype, value.shape, None, role, note="a meta tensor: it was saved without data")
        layout = self.layout(value)
        item = value.dtype.itemsize
        base = storage.view[0] * item if storage.view else 0
        view = StorageView(
            (self.path, storage.key),
            self.storages[storage.key].nbytes,
            base + value.offset * item,
            tuple(s * item for s in value.strides),
            value.ops,
        )
        return Tensor(name, value.dtype, value.shape, layout, role, storage=view)


def view_layout(value: TensorValue, record: Record, *, big_endian: bool = False) -> Layout:
    """The layout of a strided view of a storage record, checked to stay inside it."""
    dtype, item = value.dtype, value.dtype.itemsize
    storage = value.storage
    offset = (value.offset + (storage.view[0] if storage and storage.view else 0)) * item
    reach = offset
    if 0 not in value.shape:
        reach += sum((n - 1) * s * item for n, s in zip(value.shape, value.strides, strict=True)) + item
        if min(value.strides, default=0) < 0 or reach > record.nbytes:
            raise DamagedError(
                f"{printable(os.path.basename(record.path))}: a tensor reaches {reach} bytes into a storage of {record.nbytes}.",
                path=record.path,
            )
    ops = value.ops | (Ops.SWAP if big_endian and dtype.word > 1 else Ops.NONE)
    packed = row_major(value.shape, item)
    strides = tuple(s * item for s in value.strides)
    contiguous = 0 in value.shape or all(n == 1 or s == p for n, s, p in zip(value.shape, strides, packed, strict=True))
    if contiguous and not ops:
        return OneRun(record, offset, dtype.nbytes(_numel(value.shape)))
    return _strided(record, offset, value.shape, strides, dtype, ops)


def _strided(record: Record, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ops: Ops) -> Strided:
    if ops & (Ops.CONJ | Ops.NEG) or dtype.word == dtype.itemsize:
        return Strided(record, offset, shape, strides, dtype.itemsize, ops)
    # A swapped complex number swaps each of its two parts: words are halves.
    return Strided(record, offset, (*shape, 2), (*strides, dtype.word), dtype.word, ops)


def _numel(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def open_torch(handles: FileHandles, path: str, window: Window | None = None) -> TorchFile:
    """Open a torch file, or the part of a file that is one (a DCP slice).

    Raises:
        DamagedError: it is no torch file, or it is damaged.
    """
    if window is None:
        window = Window(path, 0, handles.size(path))
    head = handles.read(path, window.start, min(16, window.nbytes))
    if head[:4] == b"PK\x03\x04":
        return _open_zip(handles, window)
    raise DamagedError(f"{printable(os.path.basename(path))} is no torch file.", code="wrong-type", path=path)


def _open_zip(handles: FileHandles, window: Window) -> TorchFile:
    name = printable(os.path.basename(window.path))
    members = read_directory(handles, window)
    by_name: dict[str, Member] = {}
    for member in members:
        by_name.setdefault(member.name, member)
    root = next((m.name[: -len("data.pkl")] for m in members if m.name.endswith("/data.pkl")), None)
    if root is None:
        raise DamagedError(f"{name} is a zip without data.pkl: no torch file.", code="wrong-type", path=window.path)
    alignment = _small_number(handles, by_name.get(root + ".storage_alignment"), window) or 64
    byteorder = by_name.get(root + "byteorder")
    big_endian = byteorder is not None and read_member(handles, byteorder, window, most=16) == b"big"
    data = read_member(handles, by_name[root + "data.pkl"], window, most=MOST_PICKLE_BYTES)
    try:
        loaded = pickles.load(data, collapse=REBUILDS, persistent=storage_of)
    except PickleError as error:
        raise type(error)(f"{name}: {error.message}", code=error.code, path=window.path) from error
    prefix = root + "data/"
    storages: dict[str, Record] = {}
    for member in members:
        if member.name.startswith(prefix) and member.method == STORED:
            storages.setdefault(member.name[len(prefix) :], record_of(member, window, alignment))
    return TorchFile(window.path, "zip", loaded.root, storages, big_endian, loaded.globals, protocol=loaded.protocol)


def _small_number(handles: FileHandles, member: Member | None, window: Window) -> int | None:
    if member is None:
        return None
    text = read_member(handles, member, window, most=32)
    return int(text) if text.isdigit() and 0 < int(text) <= 1 << 20 else None


def read_member(handles: FileHandles, member: Member, window: Window, most: int) -> bytes:
    """A small stored member's bytes, its CRC checked."""
    if member.method != STORED or member.nbytes > most:
        raise DamagedError(
            f"{printable(os.path.basename(window.path))}: {printable(member.name, 80)} is compressed or too large.",
            path=window.path,
        )
    record = record_of(member, window)
    return handles.read(window.path, record.locate(handles), member.nbytes)


__all__ = ["StorageRef", "TorchFile", "open_torch", "read_member", "view_layout"]
