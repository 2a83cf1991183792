"""The objects of a `.metadata` pickle as rows of a few words, built while the pickle is read.

What a later version may add to a row is refused if it could change how the bytes are read, and ignored if not.
"""

from __future__ import annotations

from collections.abc import Callable

from shardyard.dtypes import DType
from shardyard.formats.pickles import Collapse, PickleError, integers, lookup, pairs, sequence, text_of
from shardyard.formats.torch.tensors import dtype_of
from shardyard.text import printable

_MODULE = "torch.distributed.checkpoint"


class Place:
    """Where a slice lies: `_StorageInfo`."""

    __slots__ = ("codecs", "file", "nbytes", "start")

    def __init__(self, file: str = "", start: int = 0, nbytes: int = 0, codecs: tuple[str, ...] = ()) -> None:
        self.file = file
        """Relative to the folder of `.metadata`."""
        self.start = start
        self.nbytes = nbytes
        self.codecs = codecs
        """How it is compressed, in reading order; empty in most folders."""

    def build(self, state: object) -> None:
        for key, value in pairs(state) or ():
            if key == "relative_path":
                self.file = text_of(value) or ""
            elif key == "offset" and type(value) is int and value >= 0:
                self.start = value
            elif key == "length" and type(value) is int and value >= 0:
                self.nbytes = value
            elif key == "transform_descriptors":
                self.codecs = tuple(text_of(v) or "?" for v in sequence(value) or ())
            else:
                raise PickleError(f"it describes a slice by {printable(str(key), 60)}, which this version does not know.")
        if not self.file or self.file.startswith("/") or ".." in self.file.split("/"):
            raise PickleError(f"it names a file outside its folder, {printable(self.file, 80)}.")


class Chunk:
    """A rectangular block of a tensor: `ChunkStorageMetadata`, and its place once that is known."""

    __slots__ = ("offsets", "place", "sizes")

    def __init__(self, offsets: tuple[int, ...] = (), sizes: tuple[int, ...] = (), place: Place | None = None) -> None:
        self.offsets = offsets
        self.sizes = sizes
        self.place = place

    def build(self, state: object) -> None:
        offsets, sizes = integers(lookup(state, "offsets")), integers(lookup(state, "sizes"))
        if offsets is None or sizes is None or len(offsets) != len(sizes):
            raise PickleError("it describes a chunk without offsets and sizes.")
        self.offsets, self.sizes = offsets, sizes


class Key:
    """`MetadataIndex`: the tensor's name and the chunk's offsets; its running number is only a hint."""

    __slots__ = ("name", "offsets")

    def __init__(self, name: str = "", offsets: tuple[int, ...] | None = None) -> None:
        self.name = name
        self.offsets = offsets

    def build(self, state: object) -> None:
        name = text_of(lookup(state, "fqn"))
        if name is None:
            raise PickleError("it stores a slice of a tensor without a name.")
        self.name = name
        self.offsets = integers(lookup(state, "offset"))


class SavedTensor:
    """`TensorStorageMetadata`."""

    __slots__ = ("chunks", "copies", "dtype", "shape")

    def __init__(self) -> None:
        self.dtype: DType | None = None
        self.shape: tuple[int, ...] = ()
        self.chunks: list[Chunk] = []
        self.copies: list[list[Chunk]] = []
        """Further stored copies of all or some chunks, from per-rank metadata."""

    def build(self, state: object) -> None:
        shape, chunks, properties = (
            integers(lookup(state, "size")),
            sequence(lookup(state, "chunks")),
            lookup(state, "properties"),
        )
        if shape is None or min(shape, default=0) < 0 or chunks is None:
            raise PickleError("it describes a tensor without a size.")
        self.shape = shape
        self.chunks = [c for c in chunks if isinstance(c, Chunk)]
        if len(self.chunks) != len(chunks):
            raise PickleError("it describes a chunk by something else.")
        self.dtype = properties.dtype if isinstance(properties, _Properties) else None


class _Properties:
    """`TensorProperties`: only the dtype matters."""

    __slots__ = ("dtype",)

    def __init__(self) -> None:
        self.dtype: DType | None = None

    def build(self, state: object) -> None:
        first = state[0] if isinstance(state, tuple) and state else lookup(state, "dtype")
        self.dtype = dtype_of(first)


class StoredValue:
    """`BytesStorageMetadata`, an entry that is a pickled value; it may come without a state."""

    __slots__ = ()

    def build(self, state: object) -> None:
        """It has none."""


class _Skipped:
    """What no reader needs: the writer's own plans, the path at the time of saving."""

    __slots__ = ()

    def build(self, state: object) -> None:
        """Let it go."""


_SKIPPED = _Skipped()


def _size(made_by: str, args: object) -> object:
    """`torch.Size`, as a tuple of integers."""
    found = integers(args[0]) if isinstance(args, tuple) and len(args) == 1 else None
    if found is None:
        raise PickleError("it holds a size that is no list of integers.")
    return found


def _new(kind: Callable[[], object]) -> Collapse:
    return lambda made_by, args: kind()


def _skip(made_by: str, args: object) -> object:
    return _SKIPPED


SIZE = "torch.Size"
CHUNK = f"{_MODULE}.metadata.ChunkStorageMetadata"
KEY = f"{_MODULE}.metadata.MetadataIndex"
PLACE = f"{_MODULE}.filesystem._StorageInfo"
COLLAPSE: dict[str, Collapse] = {
    SIZE: _size,
    CHUNK: _new(Chunk),
    KEY: _new(Key),
    PLACE: _new(Place),
    f"{_MODULE}.metadata.TensorStorageMetadata": _new(SavedTensor),
    f"{_MODULE}.metadata.TensorProperties": _new(_Properties),
    # Its home before torch 2.4.
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": _new(_Properties),
    f"{_MODULE}.metadata.BytesStorageMetadata": _new(StoredValue),
    f"{_MODULE}.metadata.StorageMeta": _skip,
    f"{_MODULE}.planner.SavePlan": _skip,
    f"{_MODULE}.planner.WriteItem": _skip,
    f"{_MODULE}.planner.TensorWriteData": _skip,
    f"{_MODULE}.planner.BytesIOWriteData": _skip,
}
