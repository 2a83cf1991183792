"""GGUF files, for browsing: names, shapes and kinds of quantisation from the header."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Tensor, Usage
from shardyard.dtypes import BY_NAME, DType, Kind
from shardyard.errors import COPY_AGAIN, DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.sniff import Content, not_a_checkpoint, sniff_file
from shardyard.layouts import OneRun
from shardyard.pieces import Record
from shardyard.text import printable

# Type number: (name, elements a block, bytes a block), as ggml numbers them.
_TYPES: dict[int, tuple[str, int, int]] = {
    **{0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22)},
    **{7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292)},
    **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50)},
    **{20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136)},
    **{24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("float64", 1, 8)},
    **{29: ("IQ1_M", 256, 56), 30: ("bfloat16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17)},
}
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a setting's value by its type; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_CHUNK = 1 << 20
MOST_HEADER_BYTES = 512 << 20
_SHOWN = 200
"""Settings longer than this are shown cut."""


class Gguf:
    """The GGUF files of a folder, each a checkpoint."""

    name = "GGUF"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """Files named `.gguf`."""
        for name in unclaimed:
            entry = folder.entries[name]
            if name.lower().endswith(".gguf") and not entry.is_dir:
                yield Candidate(self, folder, Path(entry.path), CheckpointKind.GGUF, (name,))

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the header."""
        name = candidate.files[0]
        path = candidate.folder.entries[name].path
        content = sniff_file(options.handles, path)
        if content.content is not Content.GGUF:
            raise not_a_checkpoint(path, content, "GGUF file")
        header = _Header(options.handles, path)
        tensors, findings = header.read()
        weights = sum(t.nbytes for t in tensors.values())
        return Checkpoint(
            candidate.path,
            CheckpointKind.GGUF,
            [FileEntry(name, header.size, "weights")],
            {"model": Part("model", tensors, model=True)},
            "model",
            findings=findings,
            usage=Usage(weights=min(weights, header.size), other=max(0, header.size - weights)),
            checked={"headers", "shapes"},
            metadata=header.settings,
            merge_note="GGUF files are for browsing here; merge the checkpoint that they were made from.",
        )


FORMAT = Gguf()


class _Header:
    """One pass over a header, read in chunks; nothing is allocated on a length's word alone."""

    def __init__(self, handles: FileHandles, path: str) -> None:
        self.handles = handles
        self.path = path
        self.name = printable(os.path.basename(path))
        self.size = handles.size(path)
        self.position = 4
        self.start = 0
        self.buffer = b""
        self.big = False
        self.settings: dict[str, str] = {}

    def read(self) -> tuple[dict[str, Tensor], list[Finding]]:
        """The tensors, and what is odd."""
        version = self._number(4)
        if version > 0xFFFF and version.to_bytes(4, "little")[:2] == b"\0\0":
            self.big, version = True, int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            raise self._damaged(f"GGUF version {version} is unknown", code="unsupported")
        count, settings = self._number(8), self._number(8)
        left = self.size - self.position
        if settings > left // 12:
            raise self._damaged(f"it claims {settings:,} settings and ends before they could fit; it is damaged")
        if count > left // 24:
            raise self._damaged(f"it claims {count:,} tensors and ends before they could fit; it is damaged")
        alignment = 32
        for _ in range(settings):
            key = self._text()
            value = self._value(self._number(4), depth=0)
            self.settings[key] = printable(str(value), _SHOWN)
            if key == "general.alignment" and isinstance(value, int) and 0 < value <= 1 << 20:
                alignment = value
        infos = [self._info() for _ in range(count)]
        data = self.position + -self.position % alignment
        return self._tensors(infos, data)

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dims = self._number(4)
        if dims > 64:
            raise self._damaged(f"tensor {printable(name, 80)} claims {dims:,} dimensions")
        shape = tuple(reversed([self._number(8) for _ in range(dims)]))
        if math.prod(n for n in shape if n) >= 1 << 63:
            raise self._damaged(f"tensor {printable(name, 80)} has a shape larger than 64 bits can count")
        return name, shape, self._number(4), self._number(8)

    def _tensors(self, infos: list[tuple[str, tuple[int, ...], int, int]], data: int) -> tuple[dict[str, Tensor], list[Finding]]:
        tensors: dict[str, Tensor] = {}
        cut: list[str] = []
        record = Record(self.path, max(0, self.size - data), data)
        starts = sorted(offset for *_, offset in infos)
        following = dict(zip(starts, [*starts[1:], record.nbytes], strict=False))
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise self._damaged(f"tensor {printable(name, 80)} stands twice in the header")
            label, per, block = _TYPES.get(kind, (f"ggml type {kind}", 0, 0))
            numel = math.prod(shape)
            nbytes = -(-numel // per) * block if per else max(0, following[offset] - offset)
            dtype = BY_NAME.get(label) or DType(label, 0, Kind.QUANTISED, None)
            whole = offset + nbytes <= record.nbytes
            if not whole:
                cut.append(name)
            layout = OneRun(record, offset, nbytes) if whole and not (self.big and dtype.word > 1) else None
            note = "" if layout else "big-endian" if whole else "beyond the end of the file"
            tensors[name] = Tensor(name, dtype, shape, layout, note=note, nbytes_stored=None if dtype.bits else nbytes)
        return tensors, self._findings(cut)

    def _findings(self, cut: list[str]) -> list[Finding]:
        found = []
        if cut:
            text = f"{self.name} was cut short: {len(cut)} tensors such as {printable(cut[0], 80)} lie beyond its end."
            remedy = COPY_AGAIN
            found.append(
                Finding("truncated", Severity.ERROR, text, remedy, (self.name,), tuple(cut[:20]), blocks=Blocks.UNLESS_ALLOWED)
            )
        if self.big:
            text = f"{self.name} is a big-endian GGUF file: shapes are shown, values are not read."
            found.append(Finding("unsupported", Severity.INFO, text, paths=(self.name,)))
        return found

    def _bytes(self, count: int) -> bytes:
        if count > self.size - self.position or self.position + count > MOST_HEADER_BYTES:
            raise self._damaged(f"a value of {count:,} bytes goes on beyond the end", code="truncated")
        at = self.position - self.start
        if at < 0 or at + count > len(self.buffer):
            self.start = self.position
            self.buffer = self.handles.read(self.path, self.position, min(max(count, _CHUNK), self.size - self.position))
            at = 0
        self.position += count
        return self.buffer[at : at + count]

    def _number(self, nbytes: int) -> int:
        return int.from_bytes(self._bytes(nbytes), "big" if self.big else "little")

    def _text(self) -> str:
        return self._bytes(self._number(8)).decode("utf-8", "surrogateescape")

    def _value(self, kind: int, depth: int) -> object:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _FIXED:
            raise self._damaged(f"a setting has the unknown type {kind}")
        raw = self._bytes(_FIXED[kind])
        if kind in (6, 12):
            return struct.unpack((">" if self.big else "<") + ("f" if kind == 6 else "d"), raw)[0]
        if kind == 7:
            return raw != b"\0"
        return int.from_bytes(raw, "big" if self.big else "little", signed=kind in (1, 3, 5, 11))

    def _array(self, depth: int) -> str:
        """An array is skipped over and described by its length."""
        if depth > 4:
            raise self._damaged("a setting nests arrays too deeply")
        kind, count = self._number(4), self._number(8)
        if count > self.size - self.position:
            raise self._damaged(f"a setting claims an array of {count:,} values")
        if kind in _FIXED:
            self._skip(count * _FIXED[kind])
        else:
            for _ in range(count):
                if kind == _STRING:
                    self._skip(self._number(8))
                else:
                    self._value(kind, depth + 1)
        return f"[{count:,} values]"

    def _skip(self, count: int) -> None:
        if count > self.size - self.position:
            raise self._damaged(f"a value of {count:,} bytes goes on beyond the end", code="truncated")
        self.position += count

    def _damaged(self, what: str, code: str = "corrupt") -> DamagedError:
        return DamagedError(f"{self.name}: {what}.", code=code, path=self.path)
