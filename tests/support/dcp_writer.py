"""Writes folders as torch.distributed.checkpoint does, without torch: any chunking, any size.

`.metadata` comes from Python's own pickler over classes that carry torch's names, so it has the opcodes of a real one.
Run as a program for a large folder that takes no room: `python -m support.dcp_writer FOLDER 70B|671B`.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from shardyard.dtypes import BY_NAME
from shardyard.formats.torch.writer import Storage, tensor, torch_bytes

_METADATA = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
SPECIMENS = {"70B": (64, 1000), "671B": (1024, 1000)}
"""(ranks, tensors); a real 671B model has tens of thousands of tensors, each on fewer ranks: the same number of chunks."""


def _class(name: str, module: str, bases: tuple[type, ...] = (), **members: Any) -> Any:
    return type(name, bases, {"__module__": module, "__qualname__": name, **members})


class _DType:
    """Pickled as a global such as `torch.float32`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__module__ = "torch"

    def __reduce__(self) -> str:
        return self.name


_DTYPES = {name: _DType(name) for name in BY_NAME}
Size = _class("Size", "torch", (tuple,), __reduce__=lambda self: (Size, (tuple(self),)))
Properties = _class("TensorProperties", _METADATA, __getstate__=lambda self: (self.dtype, None, False, None, False))
Metadata, SavedTensor, SavedBytes, Chunk, Key = (
    _class(name, _METADATA)
    for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex")
)
Place = _class("_StorageInfo", _FILESYSTEM)
_MODULES = {
    "torch": {"Size": Size, **_DTYPES},
    _METADATA: {c.__name__: c for c in (Metadata, SavedTensor, SavedBytes, Chunk, Key, Properties)},
    _FILESYSTEM: {"_StorageInfo": Place},
}


@contextmanager
def _torch_names() -> Iterator[None]:
    """Modules under torch's names while the pickler looks the classes up."""
    made = {name: types.ModuleType(name) for name in _MODULES}
    for name, module in made.items():
        vars(module).update(_MODULES[name])
    with patch.dict(sys.modules, made):
        yield


def _object(kind: Any, **attributes: Any) -> Any:
    made = kind()
    vars(made).update(attributes)
    return made


def slice_bytes(array: np.ndarray[Any, Any], *, fortran: bool = False) -> bytes:
    """A tensor as a slice; with `fortran` its strides rise instead of falling."""
    strides = np.empty(array.shape, array.dtype, order="F" if fortran else "C").strides
    storage = Storage(BY_NAME[array.dtype.name], array.tobytes(order="F" if fortran else "C"))
    return torch_bytes(tensor(storage, array.shape, 0, tuple(s // array.itemsize for s in strides)), "archive")


@dataclass
class DcpWriter:
    """Collects a state, then writes `.metadata` and one file a rank."""

    folder: Path
    codecs: tuple[str, ...] | None = None
    """`transform_descriptors` of every slice; the caller has to compress by `encode`."""
    encode: Callable[[bytes], bytes] = bytes
    entries: dict[str, Any] = field(default_factory=dict)
    places: dict[Any, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] | None = field(default_factory=dict)
    files: dict[str, bytearray] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """Sizes of sparse files."""

    def tensor(
        self,
        path: tuple[str | int, ...],
        array: np.ndarray[Any, Any],
        blocks: Iterable[tuple[int, tuple[int, ...], tuple[int, ...]]],
        *,
        fortran: bool = False,
    ) -> None:
        """A tensor in blocks of (rank, offsets, sizes)."""
        chunks: list[Any] = []
        for rank, offsets, sizes in blocks:
            part = array[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]
            self._chunk(path, chunks, offsets, sizes, self._put(rank, slice_bytes(part, fortran=fortran)))
        self._finish(path, array.dtype.name, array.shape, chunks)

    def sparse(self, path: tuple[str | int, ...], dtype: str, shape: tuple[int, ...], ranks: int) -> None:
        """A tensor cut by rows over all ranks, of which only the layout is written."""
        per = shape[0] // ranks
        sizes = (per, *shape[1:])
        nbytes = BY_NAME[dtype].nbytes(per * int(np.prod(shape[1:]))) + 1500
        chunks: list[Any] = []
        for rank in range(ranks):
            file = f"__{rank}_0.distcp"
            start = self.ends.get(file, 0)
            self.ends[file] = start + nbytes
            place = _object(Place, relative_path=file, offset=start, length=nbytes)
            self._chunk(path, chunks, (rank * per, *(0 for _ in shape[1:])), sizes, place)
        self._finish(path, dtype, shape, chunks)

    def value(self, path: tuple[str | int, ...], value: object, rank: int = 0) -> None:
        """A pickled value."""
        name = ".".join(map(str, path))
        self.entries[name] = SavedBytes()
        self.places[_object(Key, fqn=name, index=None)] = self._put(rank, torch_bytes(value, "archive"))
        self._remember(name, path)

    def _put(self, rank: int, data: bytes) -> Any:
        file = f"__{rank}_0.distcp"
        content = self.files.setdefault(file, bytearray())
        data = self.encode(data)
        place = _object(Place, relative_path=file, offset=len(content), length=len(data))
        if self.codecs is not None:
            place.transform_descriptors = list(self.codecs)
        content += data
        return place

    def _chunk(
        self, path: tuple[str | int, ...], chunks: list[Any], offsets: tuple[int, ...], sizes: tuple[int, ...], place: Any
    ) -> None:
        name = ".".join(map(str, path))
        self.places[_object(Key, fqn=name, index=len(chunks), offset=Size(offsets))] = place
        chunks.append(_object(Chunk, offsets=Size(offsets), sizes=Size(sizes)))

    def _finish(self, path: tuple[str | int, ...], dtype: str, shape: tuple[int, ...], chunks: list[Any]) -> None:
        name = ".".join(map(str, path))
        properties = _object(Properties, dtype=_DTYPES[dtype])
        self.entries[name] = _object(SavedTensor, properties=properties, size=Size(shape), chunks=chunks)
        self._remember(name, path)

    def _remember(self, name: str, path: tuple[str | int, ...]) -> None:
        if self.paths is not None:
            self.paths[name] = path

    def metadata(self, protocol: int = 4) -> bytes:
        """The bytes of `.metadata`."""
        parts = {"state_dict_metadata": self.entries, "planner_data": self.paths, "storage_data": self.places}
        with _torch_names():
            return pickle.dumps(_object(Metadata, **parts, storage_meta=None, version="1.0.0"), protocol)

    def write(self, *, protocol: int = 4, name: str = ".metadata") -> Path:
        """Write everything; of sparse files only what shows where the last slice begins and ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(self.metadata(protocol))
        for file, content in self.files.items():
            (self.folder / file).write_bytes(content)
        last = {place.relative_path: place.offset for place in self.places.values()}
        for file, end in self.ends.items():
            with (self.folder / file).open("wb") as stream:
                stream.truncate(end)
                stream.seek(last[file])
                stream.write(b"PK\x03\x04")
                stream.seek(end - 22)
                stream.write(b"PK\x05\x06")
        return self.folder


def main(folder: str, specimen: str) -> None:
    """Write a large sparse folder."""
    ranks, tensors = SPECIMENS[specimen]
    writer = DcpWriter(Path(folder))
    for number in range(tensors):
        writer.sparse(("model", f"layers.{number}.self_attn.q_proj.weight"), "bfloat16", (8192, 8192), ranks)
    writer.write()


if __name__ == "__main__":
    main(*sys.argv[1:])
