"""The inert pickler: writes a graph made of the stand-ins of `pickles` (or plain values) as a pickle, importing nothing.

Every list, dict, tuple and call is memoised as CPython does it, so shared and self-containing objects come back shared, and the
operations that were done to a call are written in the order in which they were read.  There is no recursion: a list nested
100,000 deep is written like any other.  Explicit PUTs and no frames keep one code path for all protocols, and torch's
`weights_only` loader accepts what it writes.  A value that only a later protocol's opcode can express was read from such an
opcode, so it is written with it whatever the header says, as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

from shardyard.formats.pickles import ByteString, Call, Dict, Global, Persistent, Set

T = TypeVar("T")
_BATCH = 1000


class UnwritableError(TypeError):
    """A value of the graph has no pickle form here: a programming error, not a property of a file."""


def dump(root: object, protocol: int = 2, *, persistent_id: Callable[[object], object] | None = None) -> bytes:
    """The graph as a pickle.

    Args:
        root: plain values, `pickles` stand-ins, and whatever `persistent_id` knows.
        protocol: 0 and 1 are written as 2, the lowest that has every opcode used here.
        persistent_id: for objects that are stored elsewhere, returns the id (a graph) to write; None for all others.
    """
    return _Writer(max(2, protocol), persistent_id).write(root)


class _Writer:
    def __init__(self, protocol: int, persistent_id: Callable[[object], object] | None) -> None:
        self.protocol = protocol
        self.persistent_id = persistent_id
        self.out = bytearray()
        self.memo: dict[int, int] = {}
        self.texts: dict[str, int] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.puts = 0
        self.kept: list[object] = []
        """Keeps temporary objects alive: the memo goes by identity."""

    def write(self, root: object) -> bytes:
        self.out += b"\x80" + bytes([self.protocol])
        work: list[Iterator[object]] = [iter((root,))]
        # Each generator yields the values it needs written next; what it does in between writes opcodes around them.
        while work:
            for value in work[-1]:
                steps = self.value(value)
                if steps is not None:
                    work.append(steps)
                    break
            else:
                work.pop()
        self.out += b"."
        return bytes(self.out)

    def value(self, value: object) -> Iterator[object] | None:
        """Write a leaf at once (None), or return the steps of a value that has parts."""
        if value is None:
            self.out += b"N"
        elif value is True or value is False:
            self.out += b"\x88" if value else b"\x89"
        elif type(value) is int:
            self.integer(value)
        elif type(value) is float:
            self.out += b"G" + struct.pack(">d", value)
        elif type(value) is str:
            self.text(value)
        elif type(value) is tuple and not value:
            self.out += b")"
        elif isinstance(value, Global):
            self.global_name(value)
        elif id(value) in self.memo:
            self.fetch(self.memo[id(value)])
        elif self.persistent_id is not None and (pid := self.persistent_id(value)) is not None:
            self.kept.append(pid)
            return self.persistent(pid)
        else:
            return self.compound(value)
        return None

    def compound(self, value: object) -> Iterator[object] | None:
        if type(value) in (bytes, bytearray, ByteString):
            self.byte_value(value)
            return None
        if type(value) is tuple:
            return self.tuple_(value)
        if type(value) is list:
            return self.list_(value)
        if type(value) is dict:
            return self.dict_(value, list(value.items()))
        if isinstance(value, Dict):
            return self.dict_(value, value.pairs)
        if isinstance(value, Set):
            return self.set_(value)
        if isinstance(value, Persistent):
            return self.text_persistent(value) if value.as_text else self.persistent(value.pid)
        if isinstance(value, Call):
            return self.call(value)
        raise UnwritableError(f"cannot pickle a {type(value).__name__}")

    # Leaves

    def integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + len(data).to_bytes(4, "little")
            self.out += data

    def text(self, value: str) -> None:
        known = self.texts.get(value)
        if known is not None:
            self.fetch(known)
            return
        data = value.encode("utf-8", "surrogatepass")
        n = len(data)
        self.out += (b"X" + n.to_bytes(4, "little") if n <= 0xFFFFFFFF else b"\x8d" + n.to_bytes(8, "little")) + data
        self.texts[value] = self.put()

    def global_name(self, value: Global) -> None:
        key = (value.module, value.name)
        known = self.names.get(key)
        if known is not None:
            self.fetch(known)
            return
        if _in_lines(value) and (self.protocol < 4 or not _strict(value)):
            self.out += b"c" + _line(value.module) + _line(value.name)
        else:
            self.text(value.module)
            self.text(value.name)
            self.out += b"\x93"
        self.names[key] = self.put()

    def byte_value(self, value: object) -> None:
        if isinstance(value, ByteString):
            n = len(value.data)
            self.out += (b"U" + bytes([n]) if n < 256 else b"T" + n.to_bytes(4, "little")) + value.data
        elif isinstance(value, bytearray):
            self.out += b"\x96" + len(value).to_bytes(8, "little") + value
        elif isinstance(value, bytes):
            n = len(value)
            head = b"C" + bytes([n]) if n < 256 else b"B" + n.to_bytes(4, "little")
            self.out += (b"\x8e" + n.to_bytes(8, "little") if n > 0xFFFFFFFF else head) + value
        self.remember(value)

    # Values with parts

    def tuple_(self, value: tuple[object, ...]) -> Iterator[object]:
        if len(value) > 3:
            self.out += b"("
        yield from value
        if id(value) in self.memo:
            # It contains itself: its own parts have written it already, so what was just pushed is dropped.
            self.out += b"1" if len(value) > 3 else b"0" * len(value)
            self.fetch(self.memo[id(value)])
            return
        self.out += b"t" if len(value) > 3 else (b"\x85", b"\x86", b"\x87")[len(value) - 1]
        self.remember(value)

    def list_(self, value: list[object]) -> Iterator[object]:
        self.out += b"]"
        self.remember(value)
        yield from self.batched(value, b"e")

    def batched(self, items: list[object], opcode: bytes) -> Iterator[object]:
        for batch in _batches(items):
            self.out += b"("
            yield from batch
            self.out += opcode

    def dict_(self, value: object, pairs: list[tuple[object, object]]) -> Iterator[object]:
        self.out += b"}"
        self.remember(value)
        yield from self.setitems(pairs)

    def setitems(self, pairs: list[tuple[object, object]]) -> Iterator[object]:
        for batch in _batches(pairs):
            self.out += b"("
            for key, item in batch:
                yield key
                yield item
            self.out += b"u"

    def set_(self, value: Set) -> Iterator[object]:
        if value.frozen:
            self.out += b"("
            yield from value.items
            if id(value) in self.memo:
                # An item contains the set: it wrote it already.
                self.out += b"1"
                self.fetch(self.memo[id(value)])
                return
            self.out += b"\x91"
            self.remember(value)
            return
        self.out += b"\x8f"
        self.remember(value)
        yield from self.batched(value.items, b"\x90")

    def persistent(self, pid: object) -> Iterator[object]:
        yield pid
        self.out += b"Q"

    def text_persistent(self, value: Persistent) -> Iterator[object]:
        self.out += b"P" + str(value.pid).encode("utf-8", "surrogateescape") + b"\n"
        yield from ()

    def call(self, value: Call) -> Iterator[object]:
        grouped = value.made_by in ("OBJ", "INST")
        by_lines = value.made_by == "INST" and isinstance(value.func, Global) and _in_lines(value.func)
        parts = [value.args]
        if grouped:
            self.out += b"("
            parts = list(value.args) if isinstance(value.args, tuple) else []
        elif value.made_by == "NEWOBJ_EX":
            parts = [value.args, value.kwargs]
        if not by_lines:
            yield value.func
        yield from parts
        if id(value) in self.memo:
            # Its arguments contain it: they wrote it already, so what was just pushed is dropped.
            self.out += b"1" if grouped else b"0" * (1 + len(parts))
            self.fetch(self.memo[id(value)])
            return
        if by_lines and isinstance(value.func, Global):
            self.out += b"i" + _line(value.func.module) + _line(value.func.name)
        else:
            self.out += _MAKERS[value.made_by]
        self.remember(value)
        for kind, payload in value.later:
            yield from self.later(kind, payload)

    def later(self, kind: str, payload: object) -> Iterator[object]:
        if kind == "BUILD":
            yield payload
            self.out += b"b"
        elif isinstance(payload, list):
            yield from (
                self.setitems(payload) if kind == "SETITEMS" else self.batched(payload, b"e" if kind == "APPENDS" else b"\x90")
            )

    # The memo

    def put(self) -> int:
        n = self.puts
        self.puts += 1
        self.out += b"q" + bytes([n]) if n < 256 else b"r" + n.to_bytes(4, "little")
        return n

    def remember(self, value: object) -> None:
        self.memo[id(value)] = self.put()

    def fetch(self, n: int) -> None:
        self.out += b"h" + bytes([n]) if n < 256 else b"j" + n.to_bytes(4, "little")


_MAKERS = {"REDUCE": b"R", "NEWOBJ": b"\x81", "NEWOBJ_EX": b"\x92", "OBJ": b"o", "INST": b"o"}


def _in_lines(value: Global) -> bool:
    """Whether a name can stand in a GLOBAL or INST opcode, which end at a newline."""
    return "\n" not in value.module and "\n" not in value.name


def _strict(value: Global) -> bool:
    """Whether a name is text; one that was read from bytes that are no UTF-8 is not."""
    try:
        f"{value.module}{value.name}".encode()
    except UnicodeEncodeError:
        return False
    return True


def _line(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\n"


def _batches(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
