"""The two containers before torch 1.6: the stream of five pickles and raw storages, and the tar of the first releases."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardyard.errors import COPY_AGAIN, DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats import pickles
from shardyard.formats.pickles import Collapse, Loaded, PickleError, Truncated, lookup, sequence, text_of
from shardyard.formats.torch.container import Reading, TorchFile
from shardyard.formats.torch.tensors import PersistentHook
from shardyard.formats.zip_directory import Window
from shardyard.pieces import Record
from shardyard.text import printable

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
FIRST_LOOK = 256 << 10
MOST_STREAM_PICKLE = 256 << 20
"""A pickle in a stream does not tell its length; beyond this much without an end it is given up."""


class BarePickle(DamagedError):
    """A pickle by itself, which torch.load does not take; `globals` are what it names."""

    def __init__(self, message: str, *, path: str, names: Mapping[tuple[str, str], int]) -> None:
        super().__init__(message, code="wrong-type", path=path)
        self.globals = names


@dataclass(slots=True)
class Stream:
    """Pickles one after another in a file: read from its front, further only as far as they go."""

    handles: FileHandles
    window: Window
    head: bytes = b""
    position: int = 0
    names: dict[tuple[str, str], int] = field(default_factory=dict)

    def load(self, collapse: Mapping[str, Collapse] | None = None, hook: PersistentHook | None = None) -> Loaded:
        """The next pickle.

        Raises:
            PickleError: it is damaged; `Truncated` if the file ends in it.
        """
        while True:
            try:
                loaded = pickles.load(self.head, self.position, collapse=collapse, persistent=hook, partial=True)
            except Truncated:
                if len(self.head) == self.window.nbytes:
                    raise
                if len(self.head) - self.position >= MOST_STREAM_PICKLE:
                    raise PickleError(f"it goes on for more than {MOST_STREAM_PICKLE >> 20} MiB.") from None
                self.grow()
                continue
            self.position = loaded.end
            for key, n in loaded.globals.items():
                self.names[key] = self.names.get(key, 0) + n
            return loaded

    def grow(self) -> None:
        # Reading on costs parsing again: four times as much each time keeps that below a third of the whole.
        wanted = min(self.window.nbytes, max(FIRST_LOOK, 4 * len(self.head)))
        start = self.window.start + len(self.head)
        self.head += self.handles.read(self.window.path, start, wanted - len(self.head))

    def bytes(self, n: int) -> bytes:
        """The next raw bytes, wherever they are; shorter at the end of the file."""
        n = max(0, min(n, self.window.nbytes - self.position))
        data = self.handles.read(self.window.path, self.window.start + self.position, n)
        self.position += n
        return data


def open_legacy(handles: FileHandles, window: Window, reading: Reading) -> TorchFile:
    """Open a legacy stream.

    Raises:
        DamagedError: it is no torch file, or it is damaged before its object is whole.
    """
    name = printable(os.path.basename(window.path))
    stream = Stream(handles, window)
    try:
        first = stream.load()
        if first.root != MAGIC:
            raise BarePickle(f"{name} is a bare pickle, not a torch checkpoint.", path=window.path, names=stream.names)
        version = stream.load().root
        system = stream.load().root
        if version != PROTOCOL:
            said = version if isinstance(version, int) else "unknown"
            raise DamagedError(f"{name}: its legacy protocol version {said} is not known.", path=window.path)
        start = stream.position
        main = stream.load(reading.collapse, reading.persistent())
    except PickleError as error:
        what = "is cut off in its description" if isinstance(error, Truncated) else "cannot be read"
        raise type(error)(f"{name} {what}: {error.message}", code=error.code, path=window.path) from error
    file = TorchFile(window.path, "legacy", main.root, {}, protocol=main.protocol, reading=reading)
    file.prologue = stream.head[:start]
    if lookup(system, "little_endian") is False:
        said = f"{name} was written on a big-endian machine; its values are little-endian in this format all the same."
        file.findings.append(Finding("unsupported", Severity.INFO, said, paths=(name,)))
    _find_storages(stream, file)
    file.globals = stream.names
    return file


def _find_storages(stream: Stream, file: TorchFile) -> None:
    """The list of keys, then for each a count and its bytes: sizes are only known from the pickle before."""
    try:
        keys = sequence(stream.load().root)
    except PickleError as error:
        _stop(
            file, f"its list of storages cannot be read: {error.message}", "truncated" if error.code == "truncated" else "corrupt"
        )
        return
    if keys is None:
        _stop(file, "its list of storages is no list.", "corrupt")
        return
    for item in keys:
        key = str(item) if isinstance(item, int) else text_of(item)
        declared = file.reading.declared.get(key) if key is not None else None
        shown = printable(str(key), 40)
        if key is None or declared is None or key in file.storages:
            why = "is listed twice" if key in file.storages else "is listed but in no tensor, so its length is not known"
            _stop(file, f"storage {shown} {why}.", "corrupt")
            return
        raw = stream.bytes(8)
        left = stream.window.nbytes - stream.position
        if len(raw) < 8:
            _stop(file, "it ends before its data; names and shapes are known, values are missing.", "truncated")
            return
        (count,) = struct.unpack("<q", raw)
        if count != declared.numel:
            _stop(file, f"storage {shown} is declared with {declared.numel} values and stored with {count}.", "corrupt")
            return
        if declared.nbytes > left:
            _stop(file, f"it ends in storage {shown}: {declared.nbytes} bytes declared, {left} are there.", "truncated")
            return
        start = stream.window.start + stream.position
        file.storages[key] = Record(file.path, declared.nbytes, start, key)
        stream.position += declared.nbytes
    left = stream.window.nbytes - stream.position
    if left:
        file.unread["after the last storage"] = left
        said = f"{file.name}: {left} unexplained bytes follow the last storage."
        file.findings.append(Finding("corrupt", Severity.WARNING, said, paths=(file.name,), nbytes=left))


def _stop(file: TorchFile, what: str, code: str) -> None:
    """No storage from here on can be placed: each depends on the one before."""
    said = f"{file.name}: {what}"
    for key in file.reading.declared.keys() - file.storages.keys():
        file.unusable[key] = said
    blocks = Blocks.UNLESS_ALLOWED if code == "truncated" else Blocks.MERGE
    file.findings.append(Finding(code, Severity.ERROR, said, COPY_AGAIN, paths=(file.name,), blocks=blocks))
