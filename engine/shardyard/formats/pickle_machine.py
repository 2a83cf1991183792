"""The stack machine behind `pickles.load`: one run over one pickle, opcode by opcode, with its limits.

The commonest opcodes are one chain of comparisons in falling order of use, because a call for each would double the time:
100,000 tensors are three million opcodes.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from itertools import repeat

from shardyard.formats.pickle_values import (
    ByteString,
    Call,
    Collapse,
    Dict,
    Global,
    Persistent,
    PickleError,
    Set,
    Shortcut,
    Truncated,
    text_of,
)
from shardyard.text import printable

_INTEGER_BYTES = 1024
_TEXT_DIGITS = 2500
_CHECK_EVERY = 4096
_LONGEST_OPERAND = 9
FREE_OPCODES = 1_000_000
FREE_MEMORY = 100_000_000
MEMORY_A_BYTE = 16
SHORTCUT_MEMORY_A_BYTE = 8


class Loaded:
    """A pickle that was read."""

    __slots__ = ("end", "globals", "protocol", "root")

    def __init__(self, root: object, end: int, protocol: int, names: dict[tuple[str, str], int]) -> None:
        self.root = root
        self.end = end
        """Offset of the first byte after it: another pickle may follow (the legacy container has five in a row)."""
        self.protocol = protocol
        self.globals = names
        """How often each (module, name) was referred to."""


class Machine:
    """One run over one pickle."""

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

    def run(self) -> Loaded:
        """Run to the STOP instruction.

        Raises:
            PickleError: the pickle is damaged or beyond the limits.
        """
        try:
            for _ in range(0, self.opcodes, _CHECK_EVERY):
                if self.watch is not None:
                    self.watch(self.position)
                if self.steps():
                    root = self.stack.pop()
                    return Loaded(root, self.position, self.protocol, self.names)
        except IndexError:
            raise self.ran_out() from None
        except KeyError:
            raise self.or_truncated("it refers to an object that it never stored") from None
        except UnicodeDecodeError:
            raise self.or_truncated("it holds text that is not UTF-8") from None
        except (struct.error, ValueError, OverflowError):
            raise self.or_truncated("it holds a malformed value") from None
        except Truncated:
            raise
        except PickleError as error:
            if self.partial and self.position + _LONGEST_OPERAND > len(self.data):
                raise Truncated("it ends in the middle of a value.", code="truncated") from None
            raise error
        raise PickleError("it has far more instructions than a checkpoint of its size needs.")

    def steps(self) -> bool:
        """Up to 4,096 instructions; whether STOP was reached."""
        data = self.data
        stack = self.stack
        append = stack.append
        memo = self.memo
        sparse = self.sparse
        marks = self.marks
        collapse = self.collapse
        rare = _RARE
        position = self.position
        spend = 0
        try:
            for _ in repeat(None, _CHECK_EVERY):
                opcode = data[position]
                position += 1
                if opcode == 0x72:  # LONG_BINPUT
                    n = int.from_bytes(data[position : position + 4], "little")
                    position += 4
                    if n == len(memo):
                        memo.append(stack[-1])
                    else:
                        self.put_at(n)
                    spend += 16
                elif opcode == 0x4B:  # BININT1
                    append(data[position])
                    position += 1
                elif opcode == 0x68:  # BINGET
                    n = data[position]
                    append(memo[n] if n < len(memo) else sparse[n])
                    position += 1
                elif opcode == 0x94:  # MEMOIZE
                    if sparse:
                        self.put_at(len(memo) + len(sparse))
                    else:
                        memo.append(stack[-1])
                    spend += 16
                elif opcode == 0x28:  # MARK
                    marks.append(len(stack))
                    spend += 8
                elif opcode == 0x58:  # BINUNICODE
                    n = int.from_bytes(data[position : position + 4], "little")
                    position += 4
                    if n > len(data) - position:
                        self.wanted_end = position + n
                        raise IndexError
                    append(str(data[position : position + n], "utf-8", "surrogatepass"))
                    position += n
                    spend += 60 + n
                elif opcode == 0x52:  # REDUCE
                    args = stack.pop()
                    func = stack[-1]
                    shorten = collapse.get(func.path) if type(func) is Global else None
                    stack[-1] = shorten("REDUCE", args) if shorten is not None else Call("REDUCE", func, args)
                    spend += 200
                elif opcode == 0x74:  # TUPLE
                    mark = marks.pop()
                    if mark > len(stack):
                        raise IndexError
                    items = tuple(stack[mark:])
                    del stack[mark:]
                    append(items)
                    spend += 56 + 8 * len(items)
                elif opcode == 0x86:  # TUPLE2
                    last = stack.pop()
                    stack[-1] = (stack[-1], last)
                    spend += 64
                elif opcode == 0x29:  # EMPTY_TUPLE
                    append(())
                elif opcode == 0x51:  # BINPERSID
                    pid = stack[-1]
                    stack[-1] = self.persistent(pid) if self.persistent is not None else Persistent(pid, as_text=False)
                    spend += 120
                elif opcode == 0x89:  # NEWFALSE
                    append(False)
                elif opcode == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                    spend += 56
                elif opcode == 0x71:  # BINPUT
                    n = data[position]
                    position += 1
                    if n == len(memo):
                        memo.append(stack[-1])
                    else:
                        self.put_at(n)
                elif opcode == 0x6A:  # LONG_BINGET
                    n = int.from_bytes(data[position : position + 4], "little")
                    append(memo[n] if n < len(memo) else sparse[n])
                    position += 4
                elif opcode == 0x8C:  # SHORT_BINUNICODE
                    n = data[position]
                    position += 1 + n
                    if position > len(data):
                        raise IndexError
                    append(str(data[position - n : position], "utf-8", "surrogatepass"))
                    spend += 60 + n
                elif opcode == 0x4D:  # BININT2
                    append(data[position] | data[position + 1] << 8)
                    position += 2
                elif opcode == 0x4A:  # BININT
                    append(int.from_bytes(data[position : position + 4], "little", signed=True))
                    position += 4
                elif opcode == 0x87:  # TUPLE3
                    stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
                    spend += 72
                elif opcode == 0x88:  # NEWTRUE
                    append(True)
                elif opcode == 0x4E:  # NONE
                    append(None)
                elif opcode == 0x2E:  # STOP
                    if not stack:
                        raise PickleError("it ends with no value.")
                    return True
                else:
                    method = rare.get(opcode)
                    if method is None:
                        raise PickleError(f"it has an unknown instruction, byte {opcode:#04x} at {position - 1}.")
                    self.position = position
                    method(self)
                    position = self.position
                    spend += 16
        finally:
            self.position = position
        self.spend(spend)
        return False

    def ran_out(self) -> PickleError:
        """Tell the end of the bytes from an empty stack."""
        if self.position >= len(self.data):
            return Truncated("it ends before its STOP instruction.", code="truncated")
        if self.wanted_end > len(self.data):
            return Truncated("it ends in the middle of a value.", code="truncated")
        return self.or_truncated("it takes a value that was never put there")

    def or_truncated(self, what: str) -> PickleError:
        """The error, unless it may come from an operand that more bytes would complete."""
        if self.partial and self.position + _LONGEST_OPERAND > len(self.data):
            return Truncated("it ends in the middle of a value.", code="truncated")
        return PickleError(f"{what}, near byte {self.position}.")

    # Reading operands

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


_RARE: dict[int, Callable[[Machine], None]] = {
    0x80: Machine.proto,
    0x95: Machine.frame,
    0x63: Machine.global_name,
    0x93: Machine.stack_global,
    0x81: Machine.newobj,
    0x92: Machine.newobj_ex,
    0x6F: Machine.obj,
    0x69: Machine.inst,
    0x62: Machine.build,
    0x50: Machine.persid,
    0x30: Machine.pop,
    0x31: Machine.pop_mark,
    0x32: Machine.dup,
    0x7D: Machine.empty_dict,
    0x5D: Machine.empty_list,
    0x8F: Machine.empty_set,
    0x64: Machine.dict_,
    0x6C: Machine.list_,
    0x91: Machine.frozenset_,
    0x61: Machine.append_,
    0x65: Machine.appends,
    0x90: Machine.additems,
    0x73: Machine.setitem,
    0x75: Machine.setitems,
    0x70: Machine.put,
    0x67: Machine.get,
    0x49: Machine.int_,
    0x4C: Machine.long_,
    0x8A: Machine.long1,
    0x8B: Machine.long4,
    0x46: Machine.float_,
    0x47: Machine.binfloat,
    0x53: Machine.string,
    0x56: Machine.unicode,
    0x8D: Machine.binunicode8,
    0x54: Machine.binstring,
    0x55: Machine.short_binstring,
    0x42: Machine.binbytes,
    0x43: Machine.short_binbytes,
    0x8E: Machine.binbytes8,
    0x96: Machine.bytearray8,
    0x82: Machine.refuse_extension,
    0x83: Machine.refuse_extension,
    0x84: Machine.refuse_extension,
    0x97: Machine.refuse_buffer,
    0x98: Machine.refuse_buffer,
}
