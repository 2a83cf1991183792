"""An opened torch file, whichever of the containers it is: its graph, its storages, and where each tensor's bytes are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import Role, StorageView, Tensor
from shardyard.dtypes import DType
from shardyard.errors import DamagedError, UnsupportedError
from shardyard.findings import Finding
from shardyard.formats.pickles import Collapse
from shardyard.formats.torch.numpy_values import NUMPY
from shardyard.formats.torch.tensors import (
    LENIENT_REBUILDS,
    REBUILDS,
    PersistentHook,
    StorageRef,
    TensorValue,
    lenient_storage_of,
    storage_of,
)
from shardyard.formats.zip_directory import Member, Window
from shardyard.layouts import Layout, OneRun, Strided
from shardyard.pieces import InlineRecord, Ops, Record
from shardyard.text import printable


@dataclass(slots=True)
class Reading:
    """How a file is read: strictly, or showing what there is; and what its pickles say about storages."""

    lenient: bool = False
    raw: bool = False
    """Keep every call as it is, for a graph that is to be written again; only storages are recognised."""
    declared: dict[str, StorageRef] = field(default_factory=dict)
    """The first mention of each storage key."""

    @property
    def collapse(self) -> Mapping[str, Collapse]:
        return {} if self.raw else _LENIENT if self.lenient else _STRICT

    def persistent(self, prefix: str = "") -> PersistentHook:
        """The hook for persistent ids; `prefix` keeps the keys of a TorchScript archive's constants apart."""
        find = lenient_storage_of if self.lenient else storage_of
        declared = self.declared

        def hook(pid: object) -> object:
            value = find(pid)
            if type(value) is StorageRef:
                if self.raw and isinstance(pid, tuple):
                    value.pid = pid
                if prefix:
                    value.key = prefix + value.key
                declared.setdefault(value.key, value)
            return value

        return hook


_STRICT: dict[str, Collapse] = {**REBUILDS, **NUMPY}
_LENIENT: dict[str, Collapse] = {**LENIENT_REBUILDS, **NUMPY}


@dataclass(frozen=True, slots=True)
class ZipParts:
    """What a zip container holds beside its storages, for writing it again."""

    window: Window
    root: str
    """The folder inside the archive, with its slash; may be empty."""
    alignment: int
    others: tuple[Member, ...]
    """Records that are no storages and not the pickle, in the order of the archive."""


@dataclass(slots=True)
class TorchFile:
    """A torch file, opened."""

    path: str
    container: str
    """`zip`, `legacy` or `tar`."""
    root: object
    """The graph: Dict, list, Call, TensorValue, … as `formats.pickles` and `formats.tensors` define them."""
    storages: dict[str, Record]
    """By storage key; those that are not in the file are missing here."""
    big_endian: bool = False
    globals: Mapping[tuple[str, str], int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    protocol: int = 2
    archive: str = "saved"
    """`saved` by torch.save, `torchscript`, or `package` (torch.package)."""
    more_roots: dict[str, object] = field(default_factory=dict)
    """Graphs beside the main one, by record name: TorchScript's constants, a package's further pickles."""
    reading: Reading = field(default_factory=Reading)
    unusable: dict[str, str] = field(default_factory=dict)
    """Why a storage that the file should have cannot be used, by key, as a sentence."""
    zip: ZipParts | None = None
    """Set for files of torch.save in a zip."""
    prologue: bytes = b""
    """A legacy file's bytes before its object's pickle."""
    unread: dict[str, int] = field(default_factory=dict)
    """Records (zip) or storages (legacy) that no pickle mentions, with their bytes."""

    @property
    def name(self) -> str:
        """The file's name, safe to show."""
        return printable(os.path.basename(self.path))

    @property
    def saved_as(self) -> str | None:
        """The name, without its ending, of the file that torch.save wrote: it names the archive's folder. None: not recorded."""
        root = self.zip.root.rstrip("/") if self.zip is not None else ""
        return root if root not in ("", "archive") else None

    def layout(self, value: TensorValue) -> Layout:
        """Where a tensor's bytes are.

        Raises:
            DamagedError: its storage is not in the file, or is smaller than the tensor.
        """
        storage = value.storage
        if storage is None:
            raise UnsupportedError(f"{self.name}: a meta tensor has no data.", code="placeholder", path=self.path)
        return view_layout(value, self.record(storage), big_endian=self.big_endian and storage.inline is None)

    def record(self, storage: StorageRef) -> Record:
        """A storage's bytes; errors as `layout`."""
        if storage.inline is not None:
            return InlineRecord(self.path, len(storage.inline), 0, storage.key, data=storage.inline)
        record = self.storages.get(storage.key)
        if record is None:
            reason = self.unusable.get(storage.key)
            raise DamagedError(reason or f"{self.name}: storage {printable(storage.key, 40)} is not in the file.", path=self.path)
        if record.nbytes != storage.nbytes:
            key = printable(storage.key, 40)
            said = f"{self.name}: storage {key} has {record.nbytes} bytes where the pickle says {storage.nbytes}."
            raise DamagedError(said, path=self.path)
        return record

    def tensor(self, name: str, value: TensorValue, role: Role = Role.WEIGHT) -> Tensor:
        """A catalogue entry for a tensor value; errors as `layout`."""
        storage = value.storage
        if storage is None:
            return Tensor(name, value.dtype, value.shape, None, role, note="a meta tensor: it was saved without data")
        layout = self.layout(value)
        view = None
        if storage.inline is None:
            item = value.dtype.itemsize
            base = storage.view[0] * (storage.dtype or value.dtype).itemsize if storage.view else 0
            strides = tuple(s * item for s in value.strides)
            view = StorageView((self.path, storage.key), storage.nbytes, base + value.offset * item, strides, value.ops)
        return Tensor(name, value.dtype, value.shape, layout, role, storage=view)


def view_layout(value: TensorValue, record: Record, *, big_endian: bool = False) -> Layout:
    """The layout of a strided view of a storage record, checked to stay inside it."""
    dtype, item, storage = value.dtype, value.dtype.itemsize, value.storage
    if not dtype.bits:
        raise UnsupportedError(
            f"{printable(os.path.basename(record.path))}: element type {printable(dtype.name, 40)} is not known.",
            code="unsupported",
            path=record.path,
        )
    first, end = 0, record.nbytes
    if storage is not None and storage.view is not None:
        width = (storage.dtype or dtype).itemsize
        first = storage.view[0] * width
        end = min(end, first + storage.view[1] * width)
    offset = first + value.offset * item
    numel, contiguous, span = 1, True, item
    for n, stride in zip(reversed(value.shape), reversed(value.strides), strict=True):
        contiguous = contiguous and (n == 1 or stride == numel)
        numel *= n
        span += (n - 1) * stride * item
    if not numel:
        return OneRun(record, 0, 0)
    if contiguous:
        span = dtype.nbytes(numel)
    if dtype.bits < 8 and (not contiguous or value.offset):
        what = f"a strided view of {dtype.name} values is not read"
        raise UnsupportedError(f"{printable(os.path.basename(record.path))}: {what}.", code="unsupported", path=record.path)
    if min(value.strides, default=0) < 0 or offset + span > end:
        what = f"a tensor reaches {offset + span} bytes into a storage of {end}"
        raise DamagedError(f"{printable(os.path.basename(record.path))}: {what}.", path=record.path)
    ops = value.ops | Ops.SWAP if big_endian and dtype.word > 1 else value.ops
    if contiguous and not ops:
        return OneRun(record, offset, span)
    return _strided(record, offset, value.shape, tuple(s * item for s in value.strides), dtype, ops)


def _strided(record: Record, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ops: Ops) -> Strided:
    if ops & (Ops.CONJ | Ops.NEG) or dtype.word == dtype.itemsize:
        return Strided(record, offset, shape, strides, dtype.itemsize, ops)
    # A swapped complex number swaps each of its two parts: words are halves.
    return Strided(record, offset, (*shape, 2), (*strides, dtype.word), dtype.word, ops)
