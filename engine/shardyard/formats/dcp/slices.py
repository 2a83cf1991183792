"""A slice of a `.distcp` file: one whole torch zip, cut out of a file of many without any index of its own.

`.metadata` says where a slice lies and which block of a tensor it is, but not where its bytes begin, nor their strides, nor
whether they are negated or conjugated.  That stands in the slice's own directory and pickle, read when the tensor's bytes are
first asked for: opening a checkpoint reads no slice.  Two reads, one of each end, tell all.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardyard.dtypes import DType
from shardyard.errors import COPY_AGAIN, DamagedError, UnsupportedError
from shardyard.files import FileHandles
from shardyard.formats import pickles
from shardyard.formats.dcp.rows import Place
from shardyard.formats.pickles import PickleError
from shardyard.formats.torch.file import TorchFile, open_torch
from shardyard.formats.torch.tensors import REBUILDS, TensorValue, storage_of
from shardyard.formats.zip_directory import Window
from shardyard.pieces import EncodedRecord, Record
from shardyard.text import printable

ZSTD = "stream.zstd/1"
_END_BYTES = 4096
_BLOCK = 1 << 20
MOST_VALUE_BYTES = 4 << 20
_HEADER = b"PK\x03\x04"
_DESCRIPTOR = b"PK\x07\x08"


class _Ends(FileHandles):
    """Reads of one slice, answered from its first and last bytes, which were read at once."""

    def __init__(self, handles: FileHandles, path: str, start: int, nbytes: int, data: bytes | None = None) -> None:
        self.handles = handles
        if data is not None or nbytes <= 4 * _END_BYTES:
            self.ends = [(start, handles.read(path, start, nbytes) if data is None else data)]
        else:
            tail = start + nbytes - _END_BYTES
            self.ends = [(start, handles.read(path, start, _END_BYTES)), (tail, handles.read(path, tail, _END_BYTES))]

    def size(self, path: str) -> int:
        return self.handles.size(path)

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        for start, data in self.ends:
            if start <= offset and offset + nbytes <= start + len(data):
                return data[offset - start : offset - start + nbytes]
        return self.handles.read(path, offset, nbytes)


def open_value(handles: FileHandles, path: str, place: Place) -> TorchFile:
    """Open the slice of a small entry that is a pickled value; a compressed one is decoded.

    Raises:
        DamagedError: there is no whole zip at that place.
    """
    if not place.codecs:
        return _open(_Ends(handles, path, place.start, place.nbytes), path, place)
    data = b""
    for block in decoded(handles, path, place):
        data += block
        if len(data) > MOST_VALUE_BYTES:
            raise DamagedError(f"{printable(os.path.basename(path))}: a stored value is larger than it should be.", path=path)
    return open_torch(_Ends(handles, path, 0, len(data), data), path, Window(path, 0, len(data)))


def _open(ends: _Ends, path: str, place: Place) -> TorchFile:
    try:
        return open_torch(ends, path, Window(path, place.start, place.nbytes))
    except DamagedError as error:
        raise DamagedError(
            f"{printable(os.path.basename(path))} does not hold at byte {place.start} what .metadata says: {error.problem} "
            "It was replaced, exchanged or damaged.",
            code=error.code,
            path=path,
            remedy=COPY_AGAIN,
        ) from error


@dataclass(slots=True, eq=False)
class Slice(Record):
    """The record of a tensor chunk inside its slice.

    Until `resolve` was called, `start` is where the slice begins and `crc32` is not known.
    """

    place: Place = field(default_factory=Place)
    value: TensorValue | None = None
    big_endian: bool = False

    def resolve(self, handles: FileHandles) -> TensorValue:
        """Read the slice's directory and pickle, once.

        Raises:
            DamagedError: there is no whole zip with one tensor at that place.
        """
        if self.value is None:
            ends = _Ends(handles, self.path, self.place.start, self.place.nbytes)
            opened = _open(ends, self.path, self.place)
            value = _only_tensor(opened.root, self.path)
            record = opened.storages.get(value.storage.key) if value.storage is not None else None
            if record is None:
                raise DamagedError(f"{printable(os.path.basename(self.path))}: a chunk's data is missing.", path=self.path)
            self.start = record.locate(ends)
            self.nbytes, self.name, self.crc32 = record.nbytes, record.name, record.crc32
            self.big_endian = opened.big_endian
            self.value = value
        return self.value

    def locate(self, handles: FileHandles) -> int:
        self.resolve(handles)
        return self.start


def _only_tensor(root: object, path: str) -> TensorValue:
    if not isinstance(root, TensorValue) or root.storage is None:
        raise DamagedError(f"{printable(os.path.basename(path))}: a chunk is not one plain tensor.", path=path)
    return root


@dataclass(slots=True, eq=False)
class EncodedSlice(EncodedRecord):
    """The record of a compressed tensor chunk: decoding gives the tensor's own bytes, without the zip around them."""

    place: Place = field(default_factory=Place)
    dtype: DType | None = None
    value: TensorValue | None = None
    big_endian: bool = False

    def resolve(self, handles: FileHandles) -> TensorValue:
        """Decode the beginning, which holds the pickle; errors as `Slice.resolve`."""
        if self.value is None:
            self._payload(handles)
        if self.value is None:
            raise DamagedError(f"{printable(os.path.basename(self.path))}: a chunk is not one plain tensor.", path=self.path)
        return self.value

    def decode(self, handles: FileHandles) -> Iterator[bytes]:
        """The tensor's bytes; the CRC-32 that follows them in the stream is checked."""
        rest, blocks = self._payload(handles)
        left, crc = self.nbytes, 0
        while left:
            piece = rest[:left]
            rest = rest[left:] or next(blocks, b"")
            if not piece and not rest:
                raise DamagedError(
                    f"{printable(os.path.basename(self.path))}: a compressed chunk ends too early.", path=self.path
                )
            crc = zlib.crc32(piece, crc)
            left -= len(piece)
            if piece:
                yield piece
        rest += b"".join(blocks)
        if rest[:4] == _DESCRIPTOR and rest[4:8] != crc.to_bytes(4, "little"):
            raise DamagedError(f"{printable(os.path.basename(self.path))}: a compressed chunk's CRC-32 is wrong.", path=self.path)

    def _payload(self, handles: FileHandles) -> tuple[bytes, Iterator[bytes]]:
        """The first decoded bytes of the tensor, and what follows."""
        blocks = decoded(handles, self.path, self.place)
        head = b""
        for block in blocks:
            head += block
            start = self._payload_start(head)
            if start is not None:
                return head[start:], blocks
            if len(head) > 16 * _BLOCK:
                break
        raise DamagedError(f"{printable(os.path.basename(self.path))}: a compressed chunk holds no tensor.", path=self.path)

    def _payload_start(self, head: bytes) -> int | None:
        """Where the tensor's bytes begin in the decoded stream; None if that lies beyond `head`."""
        at = 0
        while head[at : at + 4] == _HEADER and at + 30 <= len(head):
            name_length = int.from_bytes(head[at + 26 : at + 28], "little")
            content = at + 30 + name_length + int.from_bytes(head[at + 28 : at + 30], "little")
            if content > len(head):
                return None
            member = head[at + 30 : at + 30 + name_length].rpartition(b"/")
            if member[2] == b"data.pkl":
                try:
                    loaded = pickles.load(head, content, collapse=REBUILDS, persistent=storage_of, partial=True)
                except pickles.Truncated:
                    return None
                except PickleError as error:
                    raise DamagedError(f"{os.path.basename(self.path)}: {error.message}", path=self.path) from error
                self.value = _only_tensor(loaded.root, self.path)
                self.nbytes = self.value.storage.nbytes if self.value.storage else 0
                content = loaded.end
            elif member[2] == b"byteorder":
                self.big_endian = head[content : content + 3] == b"big"
            elif member[0].endswith(b"/data"):
                return content
            at = head.find(_HEADER, content)
            if at < 0:
                return None
        return None


def decoded(handles: FileHandles, path: str, place: Place) -> Iterator[bytes]:
    """A compressed slice's decoded bytes, in blocks of at most 1 MiB.

    Raises:
        UnsupportedError: it is compressed in a way that this version does not know.
        DamagedError: the stream is damaged.
    """
    name = printable(os.path.basename(path))
    if place.codecs != (ZSTD,):
        how = printable(", ".join(place.codecs), 80)
        raise UnsupportedError(f"{name} holds slices transformed by {how}, which is not read.", code="unsupported", path=path)
    reader, error_type = _zstd_reader(_Source(handles, path, place))
    try:
        while block := reader.read(_BLOCK):
            yield block
    except (error_type, EOFError) as error:
        raise DamagedError(f"{name}: a compressed slice at byte {place.start} is damaged.", path=path) from error


class _Source(io.RawIOBase):
    """The compressed bytes of a slice as a stream."""

    def __init__(self, handles: FileHandles, path: str, place: Place) -> None:
        self.handles = handles
        self.path = path
        self.at = place.start
        self.end = place.start + place.nbytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.handles.read(self.path, self.at, min(len(buffer), self.end - self.at))
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def _zstd_reader(source: Any) -> tuple[Any, type[Exception]]:
    """A decoder whose reads are bounded however far the stream expands: the standard library's from Python 3.14 on."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdFile(io.BufferedReader(source)), zstd.ZstdError
    import zstandard

    return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True), zstandard.ZstdError
