"""A safetensors header as JSON, read as strictly as the reference does: what a laxer reader would let pass is refused.

Objects collapse to compact entries while they are parsed, so that a million tensors stay small.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from shardyard.errors import DamagedError
from shardyard.findings import Finding
from shardyard.formats.pickles import no_collection
from shardyard.text import printable


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


class _Broken(Exception):
    """A rule of the header is broken; the message goes after the file's name."""


class _Object(list[tuple[str, object]]):
    """A JSON object that is no plain tensor entry: its pairs, so that repeated names are seen."""


_FIELDS = ("dtype", "shape", "data_offsets")


def _collapse(pairs: list[tuple[str, object]]) -> object:
    """Turn an object into an Entry while the JSON is parsed, so that a million of them stay small."""
    if len(pairs) == 3:
        (first, dtype), (second, shape), (third, offsets) = pairs
        if (first, second, third) != _FIELDS:
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


def parse(raw: bytes, name: str, path: str) -> tuple[dict[str, str], dict[str, Entry], list[str]]:
    """(metadata, entries, names that stand twice) of a header."""
    try:
        with no_collection():
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
        value, end = (_DECODE_SLOWLY if "-0" in text and _MINUS_ZERO.search(text) else _DECODE).raw_decode(text, _skip(text, 0))
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


_SPACES = re.compile(r"[ \t\r\n]*")


def _skip(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return match.end() if match else position


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
