"""Small torch files written without torch: a pickled graph and its storages, in torch's own zip layout.

For files that fit in memory (the demo, tests, adapters); large outputs are laid out and filled by a plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from shardyard.dtypes import STORAGE_CLASSES, DType
from shardyard.formats.pickles import Call, Global
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch import zip_layout
from shardyard.pieces import row_major

_CLASS_OF = {dtype.name: name for name, dtype in STORAGE_CLASSES.items()}


class Storage:
    """Bytes that one or several tensors look at."""

    def __init__(self, dtype: DType, data: bytes) -> None:
        self.dtype = dtype
        self.data = data


def tensor(storage: Storage, shape: tuple[int, ...], offset: int = 0, strides: tuple[int, ...] | None = None) -> Call:
    """A plain tensor: a view of a storage, offset and strides in elements."""
    steps = strides if strides is not None else row_major(shape, 1)
    args = (storage, offset, shape, steps, False, ordered_dict(()))
    return Call("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), args)


def size(shape: tuple[int, ...]) -> Call:
    """A `torch.Size`."""
    return Call("REDUCE", Global("torch", "Size"), (shape,))


def ordered_dict(pairs: Iterable[tuple[object, object]]) -> Call:
    """A `collections.OrderedDict`."""
    call = Call("REDUCE", Global("collections", "OrderedDict"), ())
    items = list(pairs)
    if items:
        call.later.append(("SETITEMS", items))
    return call


def instance(module: str, name: str, state: object) -> Call:
    """An object of a class with its state, as `object.__reduce_ex__(2)` pickles it."""
    call = Call("NEWOBJ", Global(module, name), ())
    call.later.append(("BUILD", state))
    return call


def torch_bytes(root: object, stem: str) -> bytes:
    """The file as bytes; `stem` names the folder inside the archive.

    Storages are numbered in the order in which the pickle first mentions them, as torch does it.
    """
    keys: dict[int, str] = {}
    storages: list[Storage] = []

    def persistent_id(value: object) -> object:
        if not isinstance(value, Storage):
            return None
        if id(value) not in keys:
            keys[id(value)] = str(len(storages))
            storages.append(value)
        cls = Global("torch", _CLASS_OF[value.dtype.name])
        return ("storage", cls, keys[id(value)], "cpu", len(value.data) // value.dtype.itemsize)

    data = pickle_writer.dump(root, persistent_id=persistent_id)
    contents = [("data.pkl", data), ("byteorder", b"little")]
    contents += [(f"data/{key}", storage.data) for key, storage in enumerate(storages)]
    contents += [("version", b"3\n")]
    placed = zip_layout.place([(f"{stem}/{name}", len(content)) for name, content in contents])
    crcs = [zlib.crc32(content) for _, content in contents]
    out = bytearray()
    for place, crc, (_, content) in zip(placed, crcs, contents, strict=True):
        out += place.header + content + zip_layout.descriptor(place, crc)
    return bytes(out + zip_layout.directory(placed, crcs))


def write_torch(path: Path, root: object) -> None:
    """Write a torch file as torch.save to that path would."""
    path.write_bytes(torch_bytes(root, path.name.rpartition(".")[0] or path.name))


__all__ = ["Storage", "instance", "ordered_dict", "size", "tensor", "torch_bytes", "write_torch"]
