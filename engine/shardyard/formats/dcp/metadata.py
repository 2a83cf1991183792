"""The `.metadata` pickle of torch.distributed.checkpoint: which tensors there are, and where each chunk of them lies.

It grows with tensors times ranks, so its objects collapse to rows while the pickle is read: 100,000 chunks a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardyard.errors import Cancelled, DamagedError
from shardyard.files import FileHandles
from shardyard.formats import pickles
from shardyard.formats.dcp.rows import COLLAPSE, Key, Place, SavedTensor, StoredValue
from shardyard.formats.dcp.shortcuts import Shortcuts
from shardyard.formats.pickles import PickleError, attribute, pairs, sequence, text_of
from shardyard.text import printable

MOST_METADATA_BYTES = 8 << 30
Path = tuple[str | int, ...]
"""How a flattened name came about: the keys of the dicts and the positions in lists on the way to it."""


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

    def places(self) -> Iterator[Place]:
        """Where all slices lie."""
        for tensor in self.tensors.values():
            for chunks in (tensor.chunks, *tensor.copies):
                yield from (chunk.place for chunk in chunks if chunk.place is not None)
        for places in self.objects.values():
            yield from places


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
        data = handles.read(path, 0, nbytes)
        loaded = pickles.load(data, collapse=COLLAPSE, shortcuts=Shortcuts().by_class(), watch=watch)
        return _state(loaded.root, {f"{m}.{n}": count for (m, n), count in loaded.globals.items()})
    except PickleError as error:
        what = "was cut short" if error.code == "truncated" else "is damaged"
        remedy = "Copy it again, or save the checkpoint again."
        raise DamagedError(f"{name} {what}: {error.message}", code=error.code, path=path, remedy=remedy) from error


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
        elif isinstance(value, StoredValue):
            place = where.get(name, {}).get(None)
            state.objects[name] = [place] if place is not None else []
        else:
            raise PickleError(f"it lists {printable(name, 80)}, which is neither a tensor nor a stored value.")
    for key, value in pairs(attribute(root, "planner_data")) or ():
        path = sequence(value)
        if isinstance(key, str) and path is not None and all(type(step) in (str, int) for step in path):
            steps = tuple(step for step in path if isinstance(step, (str, int)))
            if steps and ".".join(map(str, steps)) == key:
                state.paths[key] = steps
    return state


def _by_name(places: list[tuple[object, object]]) -> dict[str, dict[tuple[int, ...] | None, Place]]:
    """Places by tensor and offsets."""
    found: dict[str, dict[tuple[int, ...] | None, Place]] = {}
    for key, place in places:
        if not isinstance(key, Key) or not isinstance(place, Place):
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
