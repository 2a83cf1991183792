"""The tar container of torch 0.1: members `sys_info`, `pickle`, `tensors` and `storages`."""

from __future__ import annotations

import os
import struct

from shardyard.dtypes import STORAGE_CLASSES, DType
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.formats.pickles import Global, Persistent, PickleError, integers, sequence
from shardyard.formats.torch.container import Reading, TorchFile
from shardyard.formats.torch.legacy import Stream
from shardyard.formats.torch.tensors import StorageRef, TensorValue
from shardyard.formats.zip_directory import Window
from shardyard.pieces import Record
from shardyard.text import printable

_MOST_MEMBERS = 64
_BLOCK = 512
_MEMBERS = ("pickle", "tensors", "storages")


def open_tar(handles: FileHandles, window: Window, reading: Reading) -> TorchFile:
    """Open a torch tar.

    Raises:
        DamagedError: it is no torch file, or it is damaged.
    """
    name = printable(os.path.basename(window.path))
    members = _members(handles, window)
    if any(m not in members for m in _MEMBERS):
        raise DamagedError(
            f"{name} is a tar archive without torch's members, not a checkpoint.", code="wrong-type", path=window.path
        )
    file = TorchFile(window.path, "tar", None, {}, reading=reading)
    try:
        known = _storages(Stream(handles, members["storages"]), file)
        tensors = _tensors(Stream(handles, members["tensors"]), known)

        def hook(pid: object) -> object:
            key = pid if isinstance(pid, int) else int(pid) if isinstance(pid, str) and pid.isdigit() and len(pid) < 20 else -1
            value = tensors.get(key)
            if value is None and key in known:
                return known[key]
            return value if value is not None else Persistent(pid, as_text=False)

        main = Stream(handles, members["pickle"])
        loaded = main.load(reading.collapse, hook)
    except (PickleError, struct.error) as error:
        said = error.message if isinstance(error, PickleError) else "one of its parts is cut short."
        raise DamagedError(f"{name} cannot be read: {said}", path=window.path) from error
    file.root, file.protocol, file.globals = loaded.root, loaded.protocol, main.names
    return file


def _members(handles: FileHandles, window: Window) -> dict[str, Window]:
    found: dict[str, Window] = {}
    position = 0
    for _ in range(_MOST_MEMBERS):
        if position + _BLOCK > window.nbytes:
            break
        header = handles.read(window.path, window.start + position, _BLOCK)
        digits = header[124:136].strip(b" \0")
        if header[257:262] != b"ustar" or not digits or not all(48 <= d < 56 for d in digits):
            break
        size = int(digits, 8)
        position += _BLOCK
        if header[156:157] in (b"0", b"\0") and position + size <= window.nbytes:
            member = header[:100].rstrip(b"\0").decode("latin-1").removeprefix("./")
            found.setdefault(member, Window(window.path, window.start + position, size))
        position += size + -size % _BLOCK
    return found


def _count(stream: Stream) -> int:
    value = stream.load().root
    if not isinstance(value, int) or not 0 <= value <= 10_000_000:
        raise PickleError("it does not say how many parts it has.")
    return value


def _storages(stream: Stream, file: TorchFile) -> dict[int, StorageRef]:
    """Storages as (key, location, class), a count and their bytes; then a table of views into them."""
    known: dict[int, StorageRef] = {}
    for _ in range(_count(stream)):
        described = stream.load().root
        key, location, dtype = _described(described)
        (count,) = struct.unpack("<q", stream.bytes(8))
        left = stream.window.nbytes - stream.position
        if not 0 <= count * dtype.itemsize <= left:
            raise PickleError(f"storage {key} claims {count} values; {left} bytes are left.")
        storage = StorageRef(str(key), dtype, count, location)
        known[key] = storage
        file.reading.declared[str(key)] = storage
        file.storages[str(key)] = Record(file.path, storage.nbytes, stream.window.start + stream.position, str(key))
        stream.position += storage.nbytes
    for row in sequence(stream.load().root) or ():
        numbers = integers(row)
        if numbers is None or len(numbers) != 4 or numbers[1] not in known or min(numbers[2:]) < 0:
            raise PickleError("its table of storage views is damaged.")
        target, root, offset, numel = numbers
        base = known[root]
        first = (base.view[0] if base.view else 0) + offset
        known[target] = StorageRef(base.key, base.dtype, base.numel, base.location, (first, numel))
    return known


def _described(value: object) -> tuple[int, str, DType]:
    if isinstance(value, tuple) and len(value) == 3:
        key, location, cls = value
        dtype = STORAGE_CLASSES.get(cls.name) if isinstance(cls, Global) else None
        if isinstance(key, int) and isinstance(location, str) and dtype is not None:
            return key, location, dtype
    raise PickleError("a storage is described by values of the wrong types.")


def _tensors(stream: Stream, known: dict[int, StorageRef]) -> dict[int, TensorValue]:
    """Tensors as (key, storage key, class), then dimensions, sizes, strides and offset as raw numbers."""
    found: dict[int, TensorValue] = {}
    for _ in range(_count(stream)):
        described = stream.load().root
        if not isinstance(described, tuple) or len(described) != 3 or not isinstance(described[0], int):
            raise PickleError("a tensor is described by values of the wrong types.")
        storage = known.get(described[1]) if isinstance(described[1], int) else None
        ndim, _ = struct.unpack("<ii", stream.bytes(8))
        if storage is None or storage.dtype is None or not 0 <= ndim <= 64:
            raise PickleError("a tensor is described by values of the wrong types.")
        numbers = struct.unpack(f"<{2 * ndim + 1}q", stream.bytes(8 * (2 * ndim + 1)))
        if min(numbers) < 0:
            raise PickleError("a tensor has an impossible shape, stride or offset.")
        found[described[0]] = TensorValue(storage, storage.dtype, numbers[:ndim], numbers[ndim:-1], numbers[-1])
    return found
