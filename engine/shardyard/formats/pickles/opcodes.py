"""The state of the stack machine behind `pickles.load`, and all opcodes but the commonest, one method each.

Limits are kept here: every length is checked against what is left, and an account of memory is charged for what is built.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping

from shardyard.formats.pickles.values import (
    ByteString,
    Call,
    Collapse,
    Dict,
    Global,
    Persistent,
    PickleError,
    Set,
    Shortcut,
    text_of,
)
from shardyard.text import printable

_INTEGER_BYTES = 1024
_TEXT_DIGITS = 2500
FREE_OPCODES = 1_000_000
FREE_MEMORY = 100_000_000
MEMORY_A_BYTE = 16
SHORTCUT_MEMORY_A_BYTE = 8


class State:
    """Stack, marks and memo of one run, and what each opcode does to them."""

    def __init__(
        self,
        data: bytes,
        start: int,
        collapse: Mapping[str, Collapse] | None,
        persistent: Callable[[object], object] | None,
        partial: bool,
        shortcuts: Mapping[str, Shortcut] | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self.data = data
        self.position = start
        self.collapse = collapse or {}
        self.persistent = persistent
        self.partial = partial
        self.shortcuts = shortcuts or {}
        self.watch = watch
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: list[object] = []
        self.sparse: dict[int, object] = {}
        """Memo entries beyond the end of `memo`; writers number theirs without gaps."""
        self.names: dict[tuple[str, str], int] = {}
        self.known: dict[tuple[str, str], Global] = {}
        self.protocol = 0
        self.wanted_end = 0
        size = len(data) - start
        self.opcodes = FREE_OPCODES + size // 2
        self.memory_left = FREE_MEMORY + MEMORY_A_BYTE * size

    def take(self, n: int) -> bytes:
        end = self.position + n
        if n < 0:
            raise PickleError(f"it gives a negative length at byte {self.position}.")
        if end > len(self.data):
            self.wanted_end = end
            raise IndexError
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            self.wanted_end = len(self.data) + 1
            raise IndexError
        piece = self.data[self.position : end]
        self.position = end + 1
        return piece

    def spend(self, nbytes: int) -> None:
        self.memory_left -= nbytes
        if self.memory_left < 0:
            raise PickleError("it would build far more objects than a checkpoint of its size holds.")

    def since_mark(self) -> list[object]:
        if not self.marks:
            raise PickleError(f"it closes a group that was never opened, near byte {self.position}.")
        mark = self.marks.pop()
        if mark > len(self.stack):
            raise PickleError(f"it takes a value that was never put there, near byte {self.position}.")
        items = self.stack[mark:]
        del self.stack[mark:]
        self.spend(56 + 8 * len(items))
        return items

    # Opcodes

    def proto(self) -> None:
        self.protocol = self.number(1)
        if self.protocol > 5:
            raise PickleError(f"it is of pickle protocol {self.protocol}; 5 is the newest there is.")

    def frame(self) -> None:
        n = self.number(8)
        if n > len(self.data) - self.position and not self.partial:
            self.wanted_end = self.position + n
            raise IndexError

    def global_name(self) -> None:
        module, name = self.line(), self.line()
        self.push_global(str(module, "utf-8", "surrogateescape"), str(name, "utf-8", "surrogateescape"))

    def stack_global(self) -> None:
        name, module = text_of(self.stack.pop()), text_of(self.stack.pop())
        if module is None or name is None:
            raise PickleError(f"it names a class by something that is no text, near byte {self.position}.")
        self.push_global(module, name)

    def push_global(self, module: str, name: str) -> None:
        key = (module, name)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = Global(module, name)
            self.spend(400 + 2 * (len(module) + len(name)))
        self.names[key] = self.names.get(key, 0) + 1
        self.stack.append(known)

    def made(self, made_by: str, func: object, args: object, kwargs: object = None) -> None:
        self.spend(200)
        shorten = self.collapse.get(func.path) if isinstance(func, Global) and kwargs is None else None
        self.stack.append(shorten(made_by, args) if shorten is not None else Call(made_by, func, args, kwargs))

    def newobj(self) -> None:
        args = self.stack.pop()
        func = self.stack.pop()
        if self.shortcuts and args == () and isinstance(func, Global):
            shortcut = self.shortcuts.get(func.path)
            end = shortcut(self.data, self.position, self.memo, self.stack) if shortcut is not None else 0
            if end:
                self.spend(SHORTCUT_MEMORY_A_BYTE * (end - self.position))
                self.position = end
                return
        self.made("NEWOBJ", func, args)

    def newobj_ex(self) -> None:
        kwargs, args = self.stack.pop(), self.stack.pop()
        self.made("NEWOBJ_EX", self.stack.pop(), args, kwargs)

    def obj(self) -> None:
        items = self.since_mark()
        if not items:
            raise PickleError(f"it makes an object of no class, near byte {self.position}.")
        self.made("OBJ", items[0], tuple(items[1:]))

    def inst(self) -> None:
        self.global_name()
        func = self.stack.pop()
        self.made("INST", func, tuple(self.since_mark()))

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Call):
            self.spend(120)
            target.later.append(("BUILD", state))
            return
        if isinstance(target, Global):
            raise PickleError(f"it would change the class {printable(target.path, 80)} itself.")
        build = getattr(target, "build", None)
        if build is None:
            raise PickleError(f"it sets attributes on a plain value, near byte {self.position}.")
        build(state)

    def persid(self) -> None:
        self.spend(120)
        pid = str(self.line(), "utf-8", "surrogateescape")
        found = self.persistent(pid) if self.persistent is not None else None
        self.stack.append(Persistent(pid, as_text=True) if found is None or isinstance(found, Persistent) else found)

    def pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def pop_mark(self) -> None:
        self.since_mark()

    def dup(self) -> None:
        self.stack.append(self.stack[-1])

    def empty_dict(self) -> None:
        self.spend(160)
        self.stack.append(Dict())

    def empty_list(self) -> None:
        self.spend(60)
        self.stack.append([])

    def empty_set(self) -> None:
        self.spend(120)
        self.stack.append(Set([]))

    def dict_(self) -> None:
        items = self.since_mark()
        self.empty_dict()
        self.set_items(items)

    def list_(self) -> None:
        self.stack.append(self.since_mark())

    def frozenset_(self) -> None:
        self.stack.append(Set(self.since_mark(), frozen=True))

    def append_(self) -> None:
        self.extend("APPENDS", [self.stack.pop()])

    def appends(self) -> None:
        self.extend("APPENDS", self.since_mark())

    def additems(self) -> None:
        self.extend("ADDITEMS", self.since_mark())

    def extend(self, kind: str, items: list[object]) -> None:
        target = self.stack[-1]
        self.spend(16 * len(items))
        if isinstance(target, list) and kind == "APPENDS":
            target.extend(items)
        elif isinstance(target, Set) and kind == "ADDITEMS":
            target.items.extend(items)
        elif isinstance(target, Call):
            self.spend(120)
            if items:
                target.later.append((kind, items))
        else:
            raise PickleError(f"it adds items to a value that is no list or set, near byte {self.position}.")

    def setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def setitems(self) -> None:
        self.set_items(self.since_mark())

    def set_items(self, flat: list[object]) -> None:
        if len(flat) % 2:
            raise PickleError(f"it sets a key without a value, near byte {self.position}.")
        found = list(zip(flat[::2], flat[1::2], strict=True))
        self.spend(72 * len(found))
        target = self.stack[-1]
        if isinstance(target, Dict):
            target.pairs.extend(found)
        elif isinstance(target, Call):
            self.spend(120)
            if found:
                target.later.append(("SETITEMS", found))
        else:
            raise PickleError(f"it sets items of a value that is no dict, near byte {self.position}.")

    def put(self) -> None:
        line = self.line()
        n = self.decimal(line)
        if n == len(self.memo):
            self.memo.append(self.stack[-1])
        else:
            self.put_at(n)
        self.spend(16 + len(line))

    def put_at(self, n: int) -> None:
        """A memo entry that is not the next one: nothing that was read on trust in a plain memo may be trusted further."""
        self.shortcuts = {}
        if 0 <= n < len(self.memo):
            self.memo[n] = self.stack[-1]
        else:
            self.sparse[n] = self.stack[-1]
        self.spend(90)

    def get(self) -> None:
        n = self.decimal(self.line())
        self.stack.append(self.memo[n] if 0 <= n < len(self.memo) else self.sparse[n])

    def decimal(self, digits: bytes) -> int:
        if len(digits) > _TEXT_DIGITS:
            raise PickleError(f"it holds a number of {len(digits)} digits.")
        return int(digits)

    def int_(self) -> None:
        line = self.line()
        self.stack.append(line == b"01" if line in (b"00", b"01") else self.decimal(line))

    def long_(self) -> None:
        line = self.line()
        self.spend(len(line))
        self.stack.append(self.decimal(line[:-1] if line[-1:] == b"L" else line))

    def long1(self) -> None:
        self.big_integer(self.number(1))

    def long4(self) -> None:
        self.big_integer(int.from_bytes(self.take(4), "little", signed=True))

    def big_integer(self, n: int) -> None:
        if n > _INTEGER_BYTES:
            if self.position + n > len(self.data):
                self.wanted_end = self.position + n
                raise IndexError
            raise PickleError(f"it holds an integer of {n} bytes.")
        self.stack.append(int.from_bytes(self.take(n), "little", signed=True))

    def float_(self) -> None:
        line = self.line()
        if len(line) > _TEXT_DIGITS:
            raise PickleError(f"it holds a number of {len(line)} digits.")
        self.stack.append(float(line))

    def binfloat(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def string(self) -> None:
        line = self.line().strip()
        if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
            raise PickleError(f"it holds a text without quotes, near byte {self.position}.")
        self.push_bytes(codecs.escape_decode(line[1:-1])[0], ByteString)

    def unicode(self) -> None:
        line = self.line()
        self.spend(60 + 4 * len(line))
        self.stack.append(str(line, "raw-unicode-escape"))

    def push_bytes(self, data: bytes, kind: Callable[[bytes], object]) -> None:
        self.spend(40 + len(data))
        self.stack.append(kind(data))

    def binunicode8(self) -> None:
        data = self.take(self.number(8))
        self.spend(60 + len(data))
        self.stack.append(str(data, "utf-8", "surrogatepass"))

    def binstring(self) -> None:
        self.push_bytes(self.take(int.from_bytes(self.take(4), "little", signed=True)), ByteString)

    def short_binstring(self) -> None:
        self.push_bytes(self.take(self.number(1)), ByteString)

    def binbytes(self) -> None:
        self.push_bytes(self.take(self.number(4)), bytes)

    def short_binbytes(self) -> None:
        self.push_bytes(self.take(self.number(1)), bytes)

    def binbytes8(self) -> None:
        self.push_bytes(self.take(self.number(8)), bytes)

    def bytearray8(self) -> None:
        self.push_bytes(self.take(self.number(8)), bytearray)

    def refuse_extension(self) -> None:
        raise PickleError("it uses an extension registry that no torch file uses.")

    def refuse_buffer(self) -> None:
        raise PickleError("it takes data from outside the file.")
