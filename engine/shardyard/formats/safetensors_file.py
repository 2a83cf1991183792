"""One safetensors file, by the rules of the reference reader: stricter where that is ambiguous, more patient with damage.

Only the header is read.  The checks and their order follow safetensors 0.8.  What it would refuse is refused here too, but where
the header still tells which tensors there are, they are listed and the damage is a finding that blocks a merge.  Two things
differ: unknown dtypes are kept by name and length, and headers over the reference's 100 MB are read up to `MOST_HEADER_BYTES`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property

from shardyard.checkpoint import OneRun, Record, Tensor
from shardyard.dtypes import BY_NAME, BY_SAFETENSORS, DType, Kind, unknown
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.sniff import HEAD, Content, not_a_checkpoint, sniff
from shardyard.text import printable

REFERENCE_HEADER_BYTES = 100_000_000
MOST_HEADER_BYTES = 1 << 30
MOST_NAMED = 20
"""Names listed in one finding."""
_U64 = 1 << 64
_FLOAT4 = BY_NAME["float4_e2m1fn_x2"]


@dataclass(slots=True, eq=False)
class Entry:
    """A tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class SafetensorsHeader:
    """A parsed and checked header."""

    path: str
    nbytes: int
    """Size of the file."""
    data_start: int
    metadata: dict[str, str]
    entries: dict[str, Entry]
    findings: list[Finding] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    """Names whose entries contradict themselves: listed, never read."""

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(e.end - e.begin for e in self.entries.values())


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
        return {
            name: self._tensor(name, entry) for name, entry in self.header.entries.items() if min(entry.shape, default=0) >= 0
        }

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
    metadata, entries, twice = _parse(raw, name, path)
    header = SafetensorsHeader(path, nbytes, 8 + length, metadata, entries)
    if length > REFERENCE_HEADER_BYTES:
        header.findings.append(_large_header(name, length))
    header.findings.extend(_twice(name, twice))
    header.findings.extend(_check(header, name))
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


class _Broken(Exception):
    """A rule of the header is broken; the message goes after the file's name."""


class _Object(list[tuple[str, object]]):
    """A JSON object that is no plain tensor entry: its pairs, so that repeated names are seen."""


def _collapse(pairs: list[tuple[str, object]]) -> object:
    """Turn an object into an Entry while the JSON is parsed, so that a million of them stay small."""
    if len(pairs) == 3:
        values = dict(pairs)
        offsets, shape, dtype = values.get("data_offsets"), values.get("shape"), values.get("dtype")
        if (
            type(dtype) is str
            and type(shape) is list
            and type(offsets) is list
            and len(offsets) == 2
            and type(offsets[0]) is type(offsets[1]) is int
            and all(type(n) is int for n in shape)
        ):
            return Entry(dtype, tuple(shape), offsets[0], offsets[1])
    return _Object(pairs)


def _constant(text: str) -> object:
    raise _Broken(f"is not valid JSON ({text})")


def _strict_int(text: str) -> object:
    """Refuse what the reference's integer parser refuses: `-0` is a float to it."""
    return -0.0 if text == "-0" else int(text)


_DECODE = json.JSONDecoder(object_pairs_hook=_collapse, parse_constant=_constant)
_DECODE_SLOWLY = json.JSONDecoder(object_pairs_hook=_collapse, parse_constant=_constant, parse_int=_strict_int)
_MINUS_ZERO = re.compile(r"[:,\[\s]-0")


def _parse(raw: bytes, name: str, path: str) -> tuple[dict[str, str], dict[str, Entry], list[str]]:
    """(metadata, entries, names that stand twice) of a header."""
    try:
        root = _json(raw)
        if not isinstance(root, _Object):
            if isinstance(root, Entry):
                raise _Broken("describes a single tensor without a name")
            raise _Broken(f"is {_kind(root)}, not an object")
        metadata: dict[str, str] | None = None
        entries: dict[str, Entry] = {}
        twice: list[str] = []
        for key, value in root:
            if key == "__metadata__":
                if metadata is not None:
                    raise _Broken("has __metadata__ twice")
                metadata = _metadata(value)
                continue
            if key in entries:
                twice.append(key)
            entries[key] = value if isinstance(value, Entry) else _entry(key, value)
        _surrogates(raw, metadata or {}, entries)
        return metadata or {}, entries, twice
    except _Broken as broken:
        raise DamagedError(f"{name}: the header {broken}.", path=path) from None


def _json(raw: bytes) -> object:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Broken(f"is not valid UTF-8 (at byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise _Broken("begins with a byte-order mark, which is not valid JSON")
    if "\0" in text[:4]:
        raise _Broken("is not valid JSON (it looks like UTF-16)")
    try:
        value, end = (_DECODE_SLOWLY if _MINUS_ZERO.search(text) else _DECODE).raw_decode(text, _skip(text, 0))
    except RecursionError:
        raise _Broken("is nested too deeply to be a safetensors header") from None
    except json.JSONDecodeError as error:
        raise _Broken(f"is not valid JSON ({error.msg.lower()} at character {error.pos})") from None
    except ValueError:
        raise _Broken("holds a number that does not fit 64 bits") from None
    end = _skip(text, end)
    if end != len(text):
        rest = text[end : end + 8]
        raise _Broken("is followed by NUL bytes (only spaces may)" if rest.startswith("\0") else "is followed by extra text")
    return value


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "an object")


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, _Object):
        raise _Broken("has a __metadata__ that is not an object of texts")
    found: dict[str, str] = {}
    for key, text in value:
        if not isinstance(text, str):
            raise _Broken(f"has a __metadata__ that must map text to text, but {printable(key, 60)} is {_kind(text)}")
        found[key] = text
    return found


def _entry(name: str, value: object) -> Entry:
    """An entry with extra fields, or with something wrong: say what."""
    what = f"describes tensor {printable(name, 120)} wrongly:"
    if not isinstance(value, _Object):
        raise _Broken(f"{what} its entry is {_kind(value)}, not an object")
    fields: dict[str, object] = {}
    for key, item in value:
        if key in fields and key in ("dtype", "shape", "data_offsets"):
            raise _Broken(f"{what} it gives its {key} twice")
        fields[key] = item
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    for field_name in ("dtype", "shape", "data_offsets"):
        if field_name not in fields:
            raise _Broken(f"{what} it has no {field_name}")
    if not isinstance(dtype, str):
        raise _Broken(f"{what} its dtype is not text")
    if not isinstance(shape, list):
        raise _Broken(f"{what} its shape is not a list")
    if not isinstance(offsets, list):
        raise _Broken(f"{what} its offsets are not a list")
    if any(type(n) is not int for n in shape):
        raise _Broken(f"{what} its shape is not made of integers")
    if len(offsets) != 2:
        raise _Broken(f"{what} it has {len(offsets)} offsets instead of 2")
    if any(type(n) is not int for n in offsets):
        raise _Broken(f"{what} its offsets are not integers")
    return Entry(dtype, tuple(shape), offsets[0], offsets[1])


_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def _surrogates(raw: bytes, metadata: dict[str, str], entries: dict[str, Entry]) -> None:
    if not _SURROGATE_ESCAPE.search(raw):
        return
    for text in (*metadata, *metadata.values(), *entries, *(e.dtype for e in entries.values())):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise _Broken(f"has a name that is not valid Unicode (a lone surrogate): {printable(text, 60)}")


def _twice(name: str, twice: list[str]) -> list[Finding]:
    if not twice:
        return []
    names = tuple(dict.fromkeys(twice))
    text = f"{name}: tensor name {printable(names[0], 120)} stands twice in the header" + _and_more(len(names) - 1)
    return [Finding("corrupt", Severity.ERROR, text + ".", _AGAIN, (name,), names[:MOST_NAMED], blocks=Blocks.MERGE)]


_AGAIN = "Copy or write the file again."


def _and_more(count: int) -> str:
    return f", and {count} more" if count else ""


def _check(header: SafetensorsHeader, name: str) -> list[Finding]:
    """The reference's checks of offsets, shapes and sizes, each kind of fault told once."""
    problems: list[tuple[str, str]] = []
    position = 0
    size = header.nbytes - header.data_start
    beyond: list[str] = []
    unknown_types: dict[str, list[str]] = {}
    before = ""
    for tensor, entry in sorted(header.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > size:
            beyond.append(tensor)
        size_problem = _size_problem(tensor, entry)
        if size_problem or not 0 <= entry.begin <= entry.end < _U64:
            header.unreadable.add(tensor)
        problem = _order_problem(tensor, entry, position, before) or size_problem
        if problem:
            problems.append((tensor, problem))
        if entry.dtype not in BY_SAFETENSORS:
            unknown_types.setdefault(entry.dtype, []).append(tensor)
        position = max(position, entry.end)
        before = tensor
    findings = []
    if problems:
        text = f"{name}: {problems[0][1]}{_and_more(len(problems) - 1)}."
        names = tuple(t for t, _ in problems[:MOST_NAMED])
        findings.append(Finding("corrupt", Severity.ERROR, text, _AGAIN, (name,), names, blocks=Blocks.MERGE))
    findings.extend(_length_findings(header, name, position, size, beyond, bool(problems)))
    findings.extend(_unknown_type(name, dtype, tensors) for dtype, tensors in unknown_types.items())
    return findings


def _order_problem(tensor: str, entry: Entry, position: int, before: str) -> str:
    shown = printable(tensor, 120)
    if entry.begin < 0 or entry.end < 0:
        return f"tensor {shown} has a negative offset"
    if entry.end >= _U64:
        return f"tensor {shown} has an offset that does not fit 64 bits"
    if entry.end < entry.begin:
        return f"tensor {shown} ends before it starts"
    if entry.begin < position:
        return f"tensors {printable(before, 120)} and {shown} overlap in the file, which the format forbids"
    if entry.begin > position:
        where = f"between {printable(before, 120)} and {shown}" if before else f"before {shown}"
        return f"{entry.begin - position:,} bytes {where} belong to no tensor, which the format forbids"
    return ""


def _size_problem(tensor: str, entry: Entry) -> str:
    shown = printable(tensor, 120)
    count = 1
    for n in entry.shape:
        if n < 0:
            return f"tensor {shown} has a negative dimension"
        count *= n
        if n >= _U64 or count >= _U64:
            return f"tensor {shown} has a shape larger than 64 bits can count"
    dtype = BY_SAFETENSORS.get(entry.dtype)
    if dtype is None:
        return ""
    bits = count * (4 if dtype is _FLOAT4 else dtype.bits)
    if bits >= _U64:
        return f"tensor {shown} has a shape larger than 64 bits can count"
    shape = "[" + ", ".join(map(str, entry.shape)) + "]"
    if bits % 8:
        return f"tensor {shown}: {entry.dtype} {shape} is not a whole number of bytes"
    if bits // 8 != entry.end - entry.begin:
        return f"tensor {shown}: {entry.dtype} {shape} needs {bits // 8:,} bytes, its range has {entry.end - entry.begin:,}"
    return ""


def _length_findings(
    header: SafetensorsHeader, name: str, end: int, size: int, beyond: list[str], damaged: bool
) -> list[Finding]:
    if beyond:
        text = f"{name} was cut short: its tensors need {end:,} bytes, {size:,} are there"
        first = f"; {printable(beyond[0], 120)}{_and_more(len(beyond) - 1)} cannot be read."
        # What lies before the cut is whole; beyond it nothing can be had.
        return [
            Finding(
                "truncated",
                Severity.ERROR,
                text + first,
                "Copy the file again from where it was written.",
                (name,),
                tuple(beyond[:MOST_NAMED]),
                max(0, end - size),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        ]
    if end < size and not damaged:
        text = f"{name}: {size - end:,} bytes follow the last tensor; the reference library refuses the file."
        return [Finding("corrupt", Severity.ERROR, text, _AGAIN, (name,), nbytes=size - end, blocks=Blocks.MERGE)]
    return []


def _unknown_type(name: str, dtype: str, tensors: list[str]) -> Finding:
    shown = printable(tensors[0], 120)
    return Finding(
        "unsupported",
        Severity.WARNING,
        f"{name}: tensor {shown}{_and_more(len(tensors) - 1)} has the unknown dtype {printable(dtype, 40)}; "
        "its bytes are copied as they are.",
        "Update Shardyard if this is a new dtype.",
        (name,),
        tuple(tensors[:MOST_NAMED]),
    )
