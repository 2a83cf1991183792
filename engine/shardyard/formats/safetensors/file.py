"""One safetensors file, by the rules of the reference reader: stricter where that is ambiguous, more patient with damage.

Only the header is read.  The checks and their order follow safetensors 0.8.  What it would refuse is refused here too, but where
the header still tells which tensors there are, they are listed and the damage is a finding that blocks a merge.  Two things
differ: unknown dtypes are kept by name and length, and headers over the reference's 100 MB are read up to `MOST_HEADER_BYTES`.
"""

from __future__ import annotations

import os
from functools import cached_property

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME, BY_SAFETENSORS, DType, Kind, unknown
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.pickles import no_collection
from shardyard.formats.safetensors.checks import check, twice_findings
from shardyard.formats.safetensors.header import Entry, SafetensorsHeader, parse
from shardyard.formats.sniff import HEAD, Content, not_a_checkpoint, sniff
from shardyard.layouts import OneRun
from shardyard.pieces import Record
from shardyard.text import printable

REFERENCE_HEADER_BYTES = 100_000_000
MOST_HEADER_BYTES = 1 << 30
_FLOAT4 = BY_NAME["float4_e2m1fn_x2"]


class SafetensorsFile:
    """A safetensors file, opened."""

    def __init__(self, header: SafetensorsHeader) -> None:
        self.header = header
        self.path = header.path
        self.metadata = header.metadata
        self.findings = header.findings
        self.record = Record(header.path, max(0, header.nbytes - header.data_start), header.data_start)
        """The data section."""

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """By name, in the order of the header. Data beyond the end of a file that was cut short has no layout."""
        with no_collection():
            return {name: self._tensor(name, e) for name, e in self.header.entries.items() if min(e.shape, default=0) >= 0}

    def _tensor(self, name: str, entry: Entry) -> Tensor:
        dtype, shape = torch_type(entry.dtype, entry.shape)
        nbytes = entry.end - entry.begin
        if name in self.header.unreadable:
            return Tensor(name, dtype, shape, None, note="its entry in the header is wrong", nbytes_stored=max(0, nbytes))
        if entry.end > self.record.nbytes:
            note = "its data lies beyond the end of the file, which was cut short"
            return Tensor(name, dtype, shape, None, note=note, nbytes_stored=_stored(dtype, nbytes))
        layout = OneRun(self.record, entry.begin, nbytes)
        return Tensor(name, dtype, shape, layout, nbytes_stored=_stored(dtype, nbytes))


def _stored(dtype: DType, nbytes: int) -> int | None:
    return nbytes if dtype.bits == 0 else None


def torch_type(name: str, shape: tuple[int, ...]) -> tuple[DType, tuple[int, ...]]:
    """The torch dtype and shape of a header's; they differ for F4, where torch counts bytes of two values each."""
    dtype = BY_SAFETENSORS.get(name) or unknown(name)
    if dtype is _FLOAT4:
        if shape and shape[-1] % 2 == 0:
            return dtype, (*shape[:-1], shape[-1] // 2)
        return DType("F4", 4, Kind.OPAQUE, "F4"), shape
    return dtype, shape


def open_safetensors(handles: FileHandles, path: str) -> SafetensorsFile:
    """Open a safetensors file.

    Raises:
        DamagedError: nothing can be said about its tensors.
    """
    return SafetensorsFile(read_header(handles, path))


def read_header(handles: FileHandles, path: str) -> SafetensorsHeader:
    """Read and check a header; errors as `open_safetensors`."""
    nbytes = handles.size(path)
    name = printable(os.path.basename(path))
    head = handles.read(path, 0, min(HEAD, nbytes))
    seen = sniff(head, nbytes)
    if seen.content is not Content.SAFETENSORS and (seen.content not in (Content.UNKNOWN, Content.TEXT) or nbytes < 8):
        if nbytes >= 8 or seen.content is Content.EMPTY:
            raise (
                not_a_checkpoint(path, seen, "safetensors file")
                if seen.content not in _OTHER_NAMES
                else _other(path, seen.content)
            )
        raise DamagedError(f"{name} has {nbytes} bytes, too few for a safetensors header.", code="truncated", path=path)
    length = int.from_bytes(head[:8], "little")
    problem = _length_problem(name, length, nbytes, head)
    if problem is not None:
        raise DamagedError(problem[1], code=problem[0], path=path)
    raw = handles.read(path, 8, length)
    metadata, entries, twice = parse(raw, name, path)
    header = SafetensorsHeader(path, nbytes, 8 + length, metadata, entries)
    if length > REFERENCE_HEADER_BYTES:
        header.findings.append(_large_header(name, length))
    header.findings.extend(twice_findings(name, twice))
    header.findings.extend(check(header, name))
    return header


_OTHER_NAMES = {
    Content.PICKLE: "a pickle, which was not run",
    Content.ZIP: "a zip archive, as torch writes them",
    Content.GGUF: "a GGUF file",
    Content.NPY: "a NumPy array",
}


def _other(path: str, content: Content) -> DamagedError:
    name = printable(os.path.basename(path))
    return DamagedError(f"{name} is no safetensors file: the content is {_OTHER_NAMES[content]}.", code="wrong-type", path=path)


def _length_problem(name: str, length: int, nbytes: int, head: bytes) -> tuple[str, str] | None:
    if length == 0:
        return "corrupt", f"{name}: the safetensors header is empty."
    if length > nbytes - 8:
        if length > MOST_HEADER_BYTES and head[8:9] not in (b"{", b" ", b"\n"):
            return "wrong-type", f"{name} is no safetensors file: its header would have {length:,} bytes, more than the file."
        what = "the file ends right after the length" if nbytes == 8 else f"the file has {nbytes:,} bytes"
        return "truncated", f"{name}: the header claims {length:,} bytes, but {what}; it is damaged or was cut short."
    if length > MOST_HEADER_BYTES:
        return "unsupported", f"{name}: the header claims {length:,} bytes; at most {MOST_HEADER_BYTES:,} are read."
    return None


def _large_header(name: str, length: int) -> Finding:
    return Finding(
        "unsupported",
        Severity.WARNING,
        f"{name}: the header has {length:,} bytes, over the reference library's limit of {REFERENCE_HEADER_BYTES:,}; "
        f"Shardyard reads headers up to {MOST_HEADER_BYTES:,} bytes.",
        "Merge it into shards, so that each header is small enough for every loader.",
        paths=(name,),
        nbytes=length,
    )
