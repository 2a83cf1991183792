"""The `.metadata` pickle of torch.distributed.checkpoint: which tensors there are, and where each chunk of them lies.

It grows with tensors times ranks, so its objects collapse to rows of a few words while the pickle is read.  What a later version
may add to a row is refused if it could change how the bytes are read, and ignored if not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from shardyard.dtypes import DType
from shardyard.errors import Cancelled, DamagedError
from shardyard.files import FileHandles
from shardyard.formats import pickles
from shardyard.formats.pickles import Collapse, Dict, PickleError, attribute, integers, lookup, pairs, sequence, text_of
from shardyard.formats.tensors import dtype_of
from shardyard.text import printable

MOST_METADATA_BYTES = 8 << 30
_MODULE = "torch.distributed.checkpoint"
Path = tuple[str | int, ...]


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


class _Key:
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


class _Object:
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


COLLAPSE: dict[str, Collapse] = {
    "torch.Size": _size,
    f"{_MODULE}.metadata.ChunkStorageMetadata": _new(Chunk),
    f"{_MODULE}.metadata.MetadataIndex": _new(_Key),
    f"{_MODULE}.metadata.TensorStorageMetadata": _new(SavedTensor),
    f"{_MODULE}.metadata.TensorProperties": _new(_Properties),
    # Its home before torch 2.4.
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": _new(_Properties),
    f"{_MODULE}.metadata.BytesStorageMetadata": _new(_Object),
    f"{_MODULE}.filesystem._StorageInfo": _new(Place),
    f"{_MODULE}.metadata.StorageMeta": _skip,
    f"{_MODULE}.planner.SavePlan": _skip,
    f"{_MODULE}.planner.WriteItem": _skip,
    f"{_MODULE}.planner.TensorWriteData": _skip,
    f"{_MODULE}.planner.BytesIOWriteData": _skip,
}


@dataclass(slots=True)
class SavedState:
    """What one `.metadata`, or the union of several `__R.metadata`, lists."""

    tensors: dict[str, SavedTensor] = field(default_factory=dict)
    objects: dict[str, list[Place]] = field(default_factory=dict)
    """Entries that are pickled values; more than one place where each rank stored its own."""
    paths: dict[str, Path] = field(default_factory=dict)
    """How a flattened name came about; empty if the writer did not record it."""
    version: str = ""
    globals: dict[str, int] = field(default_factory=dict)


def read_metadata(
    handles: FileHandles,
    path: str,
    progress: Callable[[str, int, int], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> SavedState:
    """Read one `.metadata` file.

    Raises:
        DamagedError: it is empty, cut short, or no such pickle.
        Cancelled: `cancelled` said so.
    """
    name = os.path.basename(path)
    nbytes = handles.size(path)
    if not nbytes:
        raise DamagedError(f"{name} is empty: the save did not finish, or the copy failed.", code="truncated", path=path)
    if nbytes > MOST_METADATA_BYTES:
        raise DamagedError(f"{name} has {nbytes:,} bytes; at most {MOST_METADATA_BYTES:,} are read.", path=path)

    def watch(done: int) -> None:
        if progress is not None:
            progress(name, done, nbytes)
        if cancelled():
            raise Cancelled()

    try:
        loaded = pickles.load(handles.read(path, 0, nbytes), collapse=COLLAPSE)
        return _state(loaded.root, {f"{m}.{n}": count for (m, n), count in loaded.globals.items()})
    except PickleError as error:
        what = "was cut short" if error.code == "truncated" else "is damaged"
        raise DamagedError(
            f"{name} {what}: {error.message} Copy it again, or save the checkpoint again.", code=error.code, path=path
        ) from error


def _state(root: object, names: dict[str, int]) -> SavedState:
    entries, places = pairs(attribute(root, "state_dict_metadata")), pairs(attribute(root, "storage_data"))
    if entries is None or places is None:
        raise PickleError("it is no torch.distributed.checkpoint metadata.")
    state = SavedState(version=text_of(attribute(root, "version")) or "", globals=names)
    where = _by_name(places)
    for key, value in entries:
        name = text_of(key)
        if name is None:
            raise PickleError("it lists a tensor whose name is no text.")
        if isinstance(value, SavedTensor):
            of_name = where.get(name, {})
            for chunk in value.chunks:
                chunk.place = of_name.get(chunk.offsets)
            state.tensors[name] = value
        elif isinstance(value, _Object):
            place = where.get(name, {}).get(None)
            state.objects[name] = [place] if place is not None else []
        else:
            raise PickleError(f"it lists {printable(name, 80)}, which is neither a tensor nor a stored value.")
    for key, value in pairs(attribute(root, "planner_data")) or ():
        path = sequence(value)
        if isinstance(key, str) and path is not None and all(type(step) in (str, int) for step in path):
            steps = tuple(step for step in path if isinstance(step, (str, int)))
            if ".".join(map(str, steps)) == key:
                state.paths[key] = steps
    return state


def _by_name(places: list[tuple[object, object]]) -> dict[str, dict[tuple[int, ...] | None, Place]]:
    """Places by tensor and offsets."""
    found: dict[str, dict[tuple[int, ...] | None, Place]] = {}
    for key, place in places:
        if not isinstance(key, _Key) or not isinstance(place, Place):
            raise PickleError("it stores a slice under something that is no name.")
        of_name = found.get(key.name)
        if of_name is None:
            of_name = found[key.name] = {}
        if of_name.setdefault(key.offsets, place) is not place:
            raise PickleError(f"it stores one chunk of {printable(key.name, 80)} twice.")
    return found


def union(states: list[SavedState]) -> SavedState:
    """Per-rank metadata as one, in rank order: chunks add up, and what several ranks stored is kept once with its copies.

    Raises:
        DamagedError: two ranks contradict each other.
    """
    whole = SavedState(version=next((s.version for s in states if s.version), ""))
    known: dict[str, dict[tuple[int, ...], int]] = {}
    for state in states:
        for name, tensor in state.tensors.items():
            first = whole.tensors.setdefault(name, tensor)
            of_name = known.setdefault(name, {})
            if first is not tensor and (first.shape != tensor.shape or first.dtype != tensor.dtype):
                raise DamagedError(f"The ranks' metadata disagree about the shape or dtype of {printable(name, 80)}.")
            mine, tensor.chunks = tensor.chunks, tensor.chunks if first is tensor else []
            if first is tensor:
                first.chunks = []
            for chunk in mine:
                nth = of_name[chunk.offsets] = of_name.get(chunk.offsets, -1) + 1
                if nth == 0:
                    first.chunks.append(chunk)
                else:
                    first.copies.extend([] for _ in range(nth - len(first.copies)))
                    first.copies[nth - 1].append(chunk)
        for name, places in state.objects.items():
            whole.objects.setdefault(name, []).extend(places)
        whole.paths.update(state.paths)
        for name, count in state.globals.items():
            whole.globals[name] = whole.globals.get(name, 0) + count
    return whole


__all__ = ["Chunk", "Dict", "Path", "Place", "SavedState", "SavedTensor", "read_metadata", "union"]
