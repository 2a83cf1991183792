"""Output files laid out byte by byte before any data is read: safetensors, torch zips, and small files as they are.

An `OutputFile` is a run of segments without holes.  What depends on data that was not read yet (a zip's CRCs) is its `tail`:
those bytes are left out by the transfer and written by the publisher.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardyard.errors import UnsupportedError
from shardyard.formats.torch import zip_layout
from shardyard.operations.merge.state_pickle import pickle_state_dict
from shardyard.operations.merge.written import Whole, Written
from shardyard.text import printable

MOST_HEADER_BYTES = 100_000_000
"""The reference reader refuses longer safetensors headers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [start, end) of an output file: known already, or a tensor's."""

    start: int
    end: int
    content: bytes | Written
    record: int | None = None
    """Number of the zip record that it is the data of: its CRC is wanted."""


@dataclass(slots=True, eq=False)
class ZipTail:
    """What a torch file needs at the end: descriptors and the directory, once all CRCs are known."""

    placed: list[zip_layout.Placed]
    known: dict[int, int]
    """CRCs of records that are literal bytes."""

    def parts(self, crcs: Mapping[int, int]) -> Iterable[tuple[int, bytes]]:
        """(offset, bytes) to write."""
        every = [self.known[k] if k in self.known else crcs[k] for k in range(len(self.placed))]
        for place, crc in zip(self.placed, every, strict=True):
            data = zip_layout.descriptor(place, crc)
            if data:
                yield place.data_offset + place.nbytes, data
        yield self.placed[-1].end, zip_layout.directory(self.placed, every)


@dataclass(eq=False)
class OutputFile:
    """One file of the output."""

    name: str
    nbytes: int
    segments: list[Segment]
    """In rising order; gaps between them belong to the tail."""
    tail: ZipTail | None = None
    kind: str = "other"
    """`safetensors`, `torch` or `other`."""
    tensors: Sequence[Written] = ()
    """All its tensors, those without bytes included."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Aliases to owners, for a torch file that keeps both names."""
    wholes: Sequence[Whole] = ()

    @cached_property
    def _starts(self) -> list[int]:
        return [s.start for s in self.segments]

    def tail_ranges(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """The parts of [lo, hi) that belong to the tail."""
        position = lo
        for k in range(self.first_segment(lo), len(self.segments)):
            segment = self.segments[k]
            if segment.start >= hi:
                break
            if segment.start > position:
                yield position, segment.start
            position = max(position, segment.end)
        if position < hi:
            yield position, hi

    def first_segment(self, lo: int) -> int:
        """Index of the first segment that ends after `lo`."""
        k = max(0, bisect_right(self._starts, lo) - 1)
        while k < len(self.segments) and self.segments[k].end <= lo:
            k += 1
        return k


def literal_file(name: str, data: bytes) -> OutputFile:
    """A file whose bytes are known."""
    return OutputFile(name, len(data), [Segment(0, len(data), data)] if data else [])


# The library orders tensors by falling alignment, so that every element lies at a multiple of its size; the order within a
# size is that of its own list of types.
_ORDER = (
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
)
_RANK = {name: rank for rank, name in enumerate(_ORDER.split())}


def safetensors_file(name: str, tensors: Sequence[Written], metadata: Mapping[str, str]) -> OutputFile:
    """A safetensors file, in the library's own order of tensors."""
    ordered = sorted(tensors, key=lambda w: (-_RANK.get(w.dtype.safetensors or "", -1), w.name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for written in ordered:
        end = position + written.nbytes
        header[written.name] = {
            "dtype": written.dtype.safetensors,
            "shape": list(_safetensors_shape(written)),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise UnsupportedError(
            f"{printable(name)} would need a header of {len(text)} bytes, more than readers accept; "
            "use a smaller --max-shard-size.",
            code="unsupported",
        )
    head = len(text).to_bytes(8, "little") + text
    segments = [Segment(0, len(head), head)]
    position = len(head)
    for written in ordered:
        if written.nbytes:
            segments.append(Segment(position, position + written.nbytes, written))
        position += written.nbytes
    return OutputFile(name, position, segments, kind="safetensors", tensors=ordered)


def _safetensors_shape(written: Written) -> tuple[int, ...]:
    shape = written.tensor.shape
    if written.dtype.name == "float4_e2m1fn_x2" and shape:
        # torch counts bytes of two values, the file counts values.
        return (*shape[:-1], shape[-1] * 2)
    return shape


def torch_file(
    name: str, tensors: Sequence[Written], tied: Mapping[str, str], order: Sequence[str], wholes: Sequence[Whole] = ()
) -> OutputFile:
    """A torch zip: names in `order`; tied names look at their owner's storage, parts of wholes are no names of their own."""
    stem = name.rpartition(".")[0] or name
    numbers = {w.name: k for k, w in enumerate(tensors)}
    pickled = pickle_state_dict(_entries(tensors, numbers, tied, order, wholes), numbers)
    contents: list[tuple[str, bytes | Written]] = [("data.pkl", pickled), ("byteorder", b"little")]
    contents += [(f"data/{k}", written) for k, written in enumerate(tensors)]
    contents += [("version", b"3\n")]
    placed = zip_layout.place([(f"{stem}/{n}", len(c) if isinstance(c, bytes) else c.nbytes) for n, c in contents])
    segments: list[Segment] = []
    known: dict[int, int] = {}
    for number, (place, (_, content)) in enumerate(zip(placed, contents, strict=True)):
        segments.append(Segment(place.header_offset, place.data_offset, place.header))
        if isinstance(content, bytes):
            known[number] = zlib.crc32(content)
        elif not content.nbytes:
            known[number] = 0
        if place.nbytes:
            segments.append(Segment(place.data_offset, place.data_offset + place.nbytes, content, number))
    nbytes = placed[-1].end + zip_layout.directory_nbytes(placed)
    return OutputFile(name, nbytes, segments, ZipTail(placed, known), "torch", list(tensors), dict(tied), list(wholes))


def _entries(
    tensors: Sequence[Written], numbers: Mapping[str, int], tied: Mapping[str, str], order: Sequence[str], wholes: Sequence[Whole]
) -> Iterator[tuple[str, Written | Whole]]:
    """The dict's items; a whole stands where its first part would."""
    first = {whole.parts[0].name: whole for whole in wholes}
    parts = {part.name for whole in wholes for part in whole.parts}
    for name in order:
        if name in first:
            yield first[name].name, first[name]
        elif name not in parts:
            yield name, tensors[numbers[tied.get(name, name)]]


def index_file(name: str, total_size: int, places: Mapping[str, str]) -> OutputFile:
    """The index of a sharded set, as huggingface_hub writes it."""
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(places.items()))}
    return literal_file(name, (json.dumps(index, indent=2) + "\n").encode())


def split(sizes: Sequence[int], most: int | None) -> list[list[int]]:
    """Numbers of tensors by shard, as huggingface_hub splits them: in order, one that is too large in a shard of its own."""
    if most is None:
        return [list(range(len(sizes)))]
    shards: list[list[int]] = []
    current: list[int] = []
    held = 0
    for k, nbytes in enumerate(sizes):
        if nbytes > most:
            shards.append([k])
            continue
        if held + nbytes > most:
            shards.append(current)
            current, held = [], 0
        current.append(k)
        held += nbytes
    if current or not shards:
        shards.append(current)
    return shards
