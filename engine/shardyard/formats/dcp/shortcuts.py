"""The two objects that a `.metadata` pickle holds by the hundred thousand, read from their usual bytes in one go.

A chunk, and a slice's key with its place, take thirty to forty opcodes each; one regular expression takes each apart four times
faster and lets equal sizes be one tuple.  What looks otherwise in any way (another protocol, a frame border in the middle, a
further attribute, the first object of its class, which brings the names along) goes the long way, with the same result.
"""

from __future__ import annotations

import re

from shardyard.formats.dcp.rows import CHUNK, KEY, PLACE, SIZE, Chunk, Key, Place
from shardyard.formats.pickles import Global, Shortcut

_REF = rb"(h.|j.{4})"
_INT = rb"(?:K.|M..|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_TUPLE = rb"(\)|%b\x85\x94|%b{2}\x86\x94|%b{3}\x87\x94|\(%b{4,}t\x94)" % ((_INT,) * 4)
_SIZE = rb"%b(?:%b\x85\x94R\x94)?" % (_REF, _TUPLE)
_TEXT = rb"(?:%b|\x8c(.)([ -~]+)\x94)" % _REF
_NEW = rb"\x94}\x94\("
_CHUNK = re.compile(rb"%b%b%b%b%bub" % (_NEW, _REF, _SIZE, _REF, _SIZE), re.DOTALL)
_SLICE = re.compile(
    rb"%b%b%b%b(?:%b|N)%b%bub%b\)\x81%b%b%b%b(%b)%b(%b)ub"
    % (_NEW, _REF, _TEXT, _REF, _INT, _REF, _SIZE, _REF, _NEW, _REF, _TEXT, _REF, _INT, _REF, _INT),
    re.DOTALL,
)
_HIDDEN = object()
"""Stands in the memo for what the writer memoised and never refers to: the dicts of attributes, the arguments of a size."""


class Shortcuts:
    """The shortcuts for one pickle."""

    def __init__(self) -> None:
        self._sizes: dict[bytes, tuple[int, ...]] = {}
        self._trusted: set[tuple[tuple[bytes, ...], tuple[bytes, ...]]] = set()
        """References to names and classes that were looked up once: the memo does not change afterwards."""
        self._size_class = b""
        """The last reference that was found to be `torch.Size`."""

    def by_class(self) -> dict[str, Shortcut]:
        """As `pickles.load` takes them."""
        return {CHUNK: self.chunk, KEY: self.slice}

    def chunk(self, data: bytes, position: int, memo: list[object], stack: list[object]) -> int:
        """A `ChunkStorageMetadata`."""
        match = _CHUNK.match(data, position)
        if match is None:
            return 0
        offsets_key, offsets_ref, offsets_raw, sizes_key, sizes_ref, sizes_raw = match.groups()
        if not self._as_expected(memo, (offsets_key, sizes_key), ("offsets", "sizes"), ()):
            return 0
        offsets = self._size(memo, offsets_ref, offsets_raw)
        sizes = self._size(memo, sizes_ref, sizes_raw)
        if offsets is None or sizes is None or len(offsets) != len(sizes):
            return 0
        made = Chunk(offsets, sizes)
        memo += (made, _HIDDEN)
        _remember(memo, offsets, offsets_raw)
        _remember(memo, sizes, sizes_raw)
        stack.append(made)
        return match.end()

    def slice(self, data: bytes, position: int, memo: list[object], stack: list[object]) -> int:
        """A `MetadataIndex` and the `_StorageInfo` stored under it."""
        match = _SLICE.match(data, position)
        if match is None:
            return 0
        (
            fqn_key, name_ref, name_length, name_raw, index_key, offset_key, size_ref, size_raw,
            info_class, path_key, path_ref, path_length, path_raw, start_key, start_raw, length_key, length_raw,
        ) = match.groups()  # fmt: skip
        keys = (fqn_key, index_key, offset_key, path_key, start_key, length_key)
        names = ("fqn", "index", "offset", "relative_path", "offset", "length")
        if not self._as_expected(memo, keys, names, (info_class,)):
            return 0
        offsets = self._size(memo, size_ref, size_raw)
        name, path = _text(memo, name_ref, name_length, name_raw), _text(memo, path_ref, path_length, path_raw)
        start, length = _integer(start_raw), _integer(length_raw)
        if offsets is None or name is None or start < 0 or length < 0 or not path or path[0] == "." or "/" in path:
            return 0
        key, place = Key(name, offsets), Place(path, start, length)
        memo += (key, _HIDDEN) if name_ref else (key, _HIDDEN, name)
        _remember(memo, offsets, size_raw)
        memo += (place, _HIDDEN) if path_ref else (place, _HIDDEN, path)
        stack += (key, place)
        return match.end()

    def _as_expected(
        self, memo: list[object], refs: tuple[bytes, ...], names: tuple[str, ...], classes: tuple[bytes, ...]
    ) -> bool:
        """Whether the attributes' names, and the second class, are those that the bytes were taken for."""
        if (refs, classes) in self._trusted:
            return True
        expected = all(_at(memo, ref) == name for ref, name in zip(refs, names, strict=True)) and all(
            _path(_at(memo, ref)) == PLACE for ref in classes
        )
        if expected:
            self._trusted.add((refs, classes))
        return expected

    def _size(self, memo: list[object], ref: bytes, raw: bytes | None) -> tuple[int, ...] | None:
        """A `torch.Size`: one that was built before, or a new one, whose class is then what `ref` refers to."""
        if raw is None:
            value = _at(memo, ref)
            return value if isinstance(value, tuple) else None
        if ref != self._size_class:
            if _path(_at(memo, ref)) != SIZE:
                return None
            self._size_class = ref
        size = self._sizes.get(raw)
        if size is None:
            size = self._sizes[raw] = _integers(raw)
        return size


def _at(memo: list[object], ref: bytes) -> object:
    index = ref[1] if len(ref) == 2 else int.from_bytes(ref[1:], "little")
    return memo[index] if index < len(memo) else None


def _path(value: object) -> str:
    return value.path if isinstance(value, Global) else ""


def _text(memo: list[object], ref: bytes | None, length: bytes | None, raw: bytes | None) -> str | None:
    if ref is not None:
        value = _at(memo, ref)
        return value if isinstance(value, str) else None
    return raw.decode("ascii") if raw is not None and length is not None and length[0] == len(raw) else None


def _remember(memo: list[object], size: tuple[int, ...], raw: bytes | None) -> None:
    """The memo entries of a size that was new: its tuple, unless it is the empty one, the arguments, and itself."""
    if raw is not None:
        memo += (size, _HIDDEN, size) if size else (_HIDDEN, size)


def _integer(raw: bytes) -> int:
    """K and M are unsigned, J and the long form are not."""
    return int.from_bytes(raw[2:] if raw[0] == 0x8A else raw[1:], "little", signed=raw[0] in (0x4A, 0x8A))


_WIDTHS = {0x4B: 2, 0x4D: 3, 0x4A: 5}


def _integers(raw: bytes) -> tuple[int, ...]:
    """The integers of a tuple's bytes."""
    found = []
    at = 1 if raw[:1] == b"(" else 0
    while raw[at] in _WIDTHS or raw[at] == 0x8A:
        width = _WIDTHS.get(raw[at]) or 2 + raw[at + 1]
        found.append(_integer(raw[at : at + width]))
        at += width
    return tuple(found)
