"""One data file under two names: slices do not say which chunk they hold, so that only equal bytes raise a suspicion.

Chunks of one tensor that are equal are no proof, but rarely are whole files of them, unless they hold one value over and over.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardyard.errors import ShardyardError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.dcp.files import DcpFiles
from shardyard.formats.dcp.metadata import SavedState
from shardyard.formats.dcp.rows import Chunk, Place
from shardyard.formats.dcp.slices import EncodedSlice, Slice
from shardyard.formats.same_files import same_content
from shardyard.text import printable

_SAMPLE = 32
_BLOCK = 64 << 10
_MOST_PROBED = 4096


@dataclass(frozen=True, slots=True)
class _Largest:
    """The largest chunk in a file."""

    tensor: str
    chunk: Chunk
    place: Place


def check_doubles(files: DcpFiles, state: SavedState, handles: FileHandles) -> None:
    """Warn of files that are equal, byte by byte, where the metadata has different chunks of one tensor in them."""
    alike: dict[object, list[_Largest]] = {}
    for name, found in _largest(state).items():
        entry = files.folder.files.get(name)
        if entry is not None and name not in files.bad:
            alike.setdefault((found.tensor, found.place.start, found.place.nbytes, entry.nbytes), []).append(found)
    left = _MOST_PROBED
    for group in alike.values():
        left -= len(group)
        if len(group) < 2 or left < 0:
            continue
        first: dict[bytes, _Largest] = {}
        for found in group:
            sample = _middle(files, found.place, handles)
            other = first.setdefault(sample, found)
            if other.chunk.offsets != found.chunk.offsets and not _one_value(sample) and _same(files, other, found, handles):
                _tell(files, other, found)


def _largest(state: SavedState) -> dict[str, _Largest]:
    found: dict[str, _Largest] = {}
    for name, tensor in state.tensors.items():
        for chunk in tensor.chunks:
            place = chunk.place
            if place is not None and (place.file not in found or place.nbytes > found[place.file].place.nbytes):
                found[place.file] = _Largest(name, chunk, place)
    return found


def _middle(files: DcpFiles, place: Place, handles: FileHandles) -> bytes:
    return handles.read(files.paths[place.file], place.start + place.nbytes // 2, min(_SAMPLE, place.nbytes // 2))


def _same(files: DcpFiles, a: _Largest, b: _Largest, handles: FileHandles) -> bool:
    """Whether the files are equal and hold more than one value."""
    listed = files.folder.files
    try:
        return same_content(handles, listed[a.place.file], listed[b.place.file]) and not _one_value(_data(files, a, handles))
    except ShardyardError:
        return False


def _data(files: DcpFiles, found: _Largest, handles: FileHandles) -> bytes:
    """Bytes from the middle of the chunk's own data; compressed ones from its beginning."""
    path, place = files.paths[found.place.file], found.place
    if place.codecs:
        return next(EncodedSlice(path, 0, 0, place=place).decode(handles), b"")
    record = Slice(path, 0, place.start, place=place)
    start, nbytes = record.locate(handles), min(_BLOCK, record.nbytes)
    return handles.read(path, start + (record.nbytes - nbytes) // 2, nbytes)


def _one_value(data: bytes) -> bool:
    """Whether it is one element of at most 16 bytes over and over."""
    return data[16:] == data[:-16]


def _tell(files: DcpFiles, a: _Largest, b: _Largest) -> None:
    files.add(
        Finding(
            "duplicate-copy",
            Severity.WARNING,
            f"{files.prefix}{printable(b.place.file)} is {files.prefix}{printable(a.place.file)} over again, while .metadata has "
            f"another part of {printable(a.tensor, 120)} in it: one of them may have been copied over the other.",
            "Compare both with where they were written, or use another step.",
            paths=(b.place.file, a.place.file),
            tensors=(a.tensor,),
            sure=False,
        )
    )
