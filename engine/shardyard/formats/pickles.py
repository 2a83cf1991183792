"""An inert unpickler: a stack machine that builds a description of a pickle and runs nothing from it.

Nothing named in a pickle is imported, called or hashed.  Calls become `Call` records that keep how they were made and, in order,
what was done to them later, so that the same graph can be written again.  Dicts and sets are lists of pairs and items: a
dict of 60,000 integers with equal hashes, or shared tuples 60 deep used as a key, cost nothing here.

Limits, so that a small file cannot take much time or memory: opcodes <= 1,000,000 + bytes/2 (healthy files use 0.24 opcodes a
byte), an account of memory for everything built, lengths checked against what is left, integers of at most 1 kB.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from shardyard.errors import DamagedError
from shardyard.text import printable


class PickleError(DamagedError):
    """The pickle breaks the rules of its opcodes, or asks for more than the limits allow."""


class Truncated(PickleError):
    """The pickle goes on beyond the bytes given; with more bytes it may be whole."""


class Global:
    """A dotted name that the pickle refers to; never imported."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    @property
    def path(self) -> str:
        """`module.name`, with Python 2's `__builtin__` and `copy_reg` under their present names."""
        return f"{_RENAMED.get(self.module, self.module)}.{self.name}"

    def __repr__(self) -> str:
        return f"Global({printable(self.path)!r})"


class Call:
    """What a REDUCE, NEWOBJ, NEWOBJ_EX, OBJ or INST would have made."""

    __slots__ = ("args", "func", "kwargs", "later", "made_by")

    def __init__(self, made_by: str, func: object, args: object, kwargs: object = None) -> None:
        self.made_by = made_by
        """The opcode's name."""
        self.func = func
        """A Global, or for hostile or odd files any object."""
        self.args = args
        """A tuple in healthy files."""
        self.kwargs = kwargs
        self.later: list[tuple[str, object]] = []
        """In file order: ("BUILD", state), ("SETITEMS", pairs), ("APPENDS", items), ("ADDITEMS", items)."""

    @property
    def path(self) -> str:
        """Dotted name of what was called; empty if that is no plain name."""
        return self.func.path if isinstance(self.func, Global) else ""

    def __repr__(self) -> str:
        return f"Call({printable(self.path)!r})"


class Dict:
    """A dict, as its (key, value) pairs in the order they were set; keys may repeat in hostile files."""

    __slots__ = ("_by_text", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []
        self._by_text: tuple[int, dict[str, object]] | None = None

    def get(self, key: str, default: object = None) -> object:
        """The value set last for a text key."""
        if self._by_text is None or self._by_text[0] != len(self.pairs):
            self._by_text = (len(self.pairs), {k: v for k, v in self.pairs if isinstance(k, str)})
        return self._by_text[1].get(key, default)

    def __contains__(self, key: str) -> bool:
        return self.get(key, _MISSING) is not _MISSING

    def __len__(self) -> int:
        return len(self.pairs)


class Set:
    """A set or frozenset made by its own opcode, as a list of items."""

    __slots__ = ("frozen", "items")

    def __init__(self, items: list[object], *, frozen: bool = False) -> None:
        self.items = items
        self.frozen = frozen


class Persistent:
    """A persistent id that no `persistent` hook turned into something else."""

    __slots__ = ("as_text", "pid")

    def __init__(self, pid: object, *, as_text: bool) -> None:
        self.pid = pid
        self.as_text = as_text


class ByteString:
    """A `str` of Python 2: bytes that must not become a protocol-3 `bytes` when written again."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def text(self) -> str:
        return self.data.decode("latin-1")


class StandIn(Protocol):
    """A compact object that takes the place of a Call while it is built; see `load`."""

    def build(self, state: object) -> None:
        """Take the state of a BUILD opcode."""
        ...


Collapse = Callable[[str, object], object]
"""Gets the opcode's name and the arguments; returns what to put on the stack. Raise PickleError to refuse."""


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


def load(
    data: bytes | bytearray | memoryview,
    start: int = 0,
    *,
    collapse: Mapping[str, Collapse] | None = None,
    persistent: Callable[[object], object] | None = None,
    partial: bool = False,
) -> Loaded:
    """Read the pickle at `start`.

    Args:
        data: the bytes.
        collapse: for dotted names, functions that turn a call into something compact as it is built.  If the result has a
            `build` method, a later BUILD goes there; BUILD on any other result that is no Call is refused.
        persistent: turns a persistent id into something else; without it a `Persistent` is kept.
        partial: `data` may be only the beginning of a longer file: running out of bytes raises `Truncated`.

    Raises:
        PickleError: the pickle is damaged or beyond the limits.
    """
    return _Machine(bytes(data) if not isinstance(data, bytes) else data, start, collapse, persistent, partial).run()


def pairs(value: object) -> list[tuple[object, object]] | None:
    """The pairs of a dict or of a call that makes one (OrderedDict, defaultdict, Counter); None for anything else."""
    if isinstance(value, Dict):
        return value.pairs
    if isinstance(value, Call) and value.path in _MAPPINGS:
        found: list[tuple[object, object]] = []
        if isinstance(value.args, tuple) and value.args:
            last = value.args[-1]
            if isinstance(last, Dict):
                found.extend(last.pairs)
            elif isinstance(last, list):
                found.extend((p[0], p[1]) for p in last if isinstance(p, (tuple, list)) and len(p) == 2)
        for kind, payload in value.later:
            if kind == "SETITEMS" and isinstance(payload, list):
                found.extend(payload)
        return found
    return None


def lookup(value: object, key: str, default: object = None) -> object:
    """The value set last under a text key in anything that `pairs` understands."""
    if isinstance(value, Dict):
        return value.get(key, default)
    for k, v in reversed(pairs(value) or ()):
        if isinstance(k, str) and k == key:
            return v
    return default


def attribute(value: object, name: str, default: object = None) -> object:
    """An attribute that a BUILD set on a call; knows the (dict, slots dict) form."""
    if isinstance(value, Call):
        for kind, state in reversed(value.later):
            if kind != "BUILD":
                continue
            for part in reversed(state) if isinstance(state, tuple) and len(state) == 2 else (state,):
                found = lookup(part, name, _MISSING)
                if found is not _MISSING:
                    return found
    return default


def sequence(value: object) -> list[object] | None:
    """The items of a list, tuple, torch.Size, set, frozenset or deque; None for anything else."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Set):
        return list(value.items)
    if isinstance(value, Call) and value.path in _SEQUENCES:
        found: list[object] = []
        if isinstance(value.args, tuple):
            for argument in value.args[:1]:
                found.extend(sequence(argument) or ())
        for kind, payload in value.later:
            if kind in ("APPENDS", "ADDITEMS") and isinstance(payload, list):
                found.extend(payload)
        return found
    return None


def integers(value: object) -> tuple[int, ...] | None:
    """A shape, stride or list of plain integers; None if it is anything else."""
    items = sequence(value)
    if items is None:
        return None
    numbers = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))
    return numbers if len(numbers) == len(items) else None


def text_of(value: object) -> str | None:
    """A text, also where an old writer left a Python 2 string or bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, ByteString):
        return value.text
    return value.decode("latin-1") if isinstance(value, bytes) else None


_MISSING = object()
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MAPPINGS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "builtins.dict",
    "torch.nn.modules.container.ParameterDict",
}
_SEQUENCES = {
    "torch.Size",
    "builtins.set",
    "builtins.frozenset",
    "builtins.list",
    "builtins.tuple",
    "collections.deque",
}
_INTEGER_BYTES = 1024
_TEXT_DIGITS = 2500


class _Machine:
    """One run over one pickle."""

    def __init__(
        self,
        data: bytes,
        start: int,
        collapse: Mapping[str, Collapse] | None,
        persistent: Callable[[object], object] | None,
        partial: bool,
    ) -> None:
        self.data = data
        self.position = start
        self.collapse = collapse or {}
        self.persistent = persistent
        self.partial = partial
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.known: dict[tuple[str, str], Global] = {}
        self.protocol = 0
        size = len(data) - start
        self.opcodes_left = 1_000_000 + size // 2
        self.memory_left = 100_000_000 + 16 * size

    def run(self) -> Loaded:
        data = self.data
        stack = self.stack
        append = stack.append
        memo = self.memo
        rare = _RARE
        position = self.position
        spend = 0
        opcodes = self.opcodes_left
        try:
            while True:
                opcode = data[position]
                position += 1
                opcodes -= 1
                if opcodes < 0:
                    raise PickleError("it has far more instructions than a checkpoint of its size needs.")
                # The commonest opcodes stand here, in falling order of use in data.pkl files; the rest are methods.
                if opcode == 0x71:  # BINPUT
                    memo[data[position]] = stack[-1]
                    position += 1
                elif opcode == 0x72:  # LONG_BINPUT
                    memo[int.from_bytes(data[position : position + 4], "little")] = stack[-1]
                    position += 4
                    spend += 90
                elif opcode == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                    spend += 90
                elif opcode == 0x68:  # BINGET
                    append(memo[data[position]])
                    position += 1
                elif opcode == 0x6A:  # LONG_BINGET
                    append(memo[int.from_bytes(data[position : position + 4], "little")])
                    position += 4
                elif opcode == 0x4B:  # BININT1
                    append(data[position])
                    position += 1
                elif opcode == 0x4D:  # BININT2
                    append(data[position] | data[position + 1] << 8)
                    position += 2
                elif opcode == 0x4A:  # BININT
                    append(int.from_bytes(data[position : position + 4], "little", signed=True))
                    position += 4
                elif opcode == 0x28:  # MARK
                    self.marks.append(len(stack))
                    spend += 8
                elif opcode == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                    spend += 56
                elif opcode == 0x86:  # TUPLE2
                    stack[-2:] = [(stack[-2], stack[-1])]
                    spend += 64
                elif opcode == 0x87:  # TUPLE3
                    stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
                    spend += 72
                elif opcode == 0x89:  # NEWFALSE
                    append(False)
                elif opcode == 0x88:  # NEWTRUE
                    append(True)
                elif opcode == 0x4E:  # NONE
                    append(None)
                elif opcode == 0x58:  # BINUNICODE
                    n = int.from_bytes(data[position : position + 4], "little")
                    position += 4
                    if n > len(data) - position:
                        raise IndexError
                    append(str(data[position : position + n], "utf-8", "surrogatepass"))
                    position += n
                    spend += 60 + n
                elif opcode == 0x8C:  # SHORT_BINUNICODE
                    n = data[position]
                    position += 1 + n
                    if position > len(data):
                        raise IndexError
                    append(str(data[position - n : position], "utf-8", "surrogatepass"))
                    spend += 60 + n
                elif opcode == 0x2E:  # STOP
                    root = stack.pop()
                    self.position = position
                    return Loaded(root, position, self.protocol, self.names)
                else:
                    method = rare.get(opcode)
                    if method is None:
                        raise PickleError(f"it has an unknown instruction, byte {opcode:#04x} at {position - 1}.")
                    self.position = position
                    method(self)
                    position = self.position
                    spend += 16
                if spend > 4096:
                    self.memory_left -= spend
                    spend = 0
                    if self.memory_left < 0:
                        raise PickleError("it would build far more objects than a checkpoint of its size holds.")
        except IndexError:
            self._ran_out(position)
        except KeyError:
            raise PickleError(f"it refers to an object that it never stored, near byte {position}.") from None
        except UnicodeDecodeError:
            raise PickleError(f"it holds text that is not UTF-8, near byte {position}.") from None
        except (struct.error, ValueError, OverflowError):
            raise PickleError(f"it holds a malformed value near byte {position}.") from None
        raise AssertionError("unreachable")

    def _ran_out(self, position: int) -> None:
        """Tell the end of the bytes from an empty stack."""
        if position >= len(self.data) or (self.partial and position + 16 >= len(self.data)):
            raise Truncated("it ends before its STOP instruction.", code="truncated")
        if self._needs_more(position):
            raise Truncated("it ends in the middle of a value.", code="truncated")
        raise PickleError(f"it takes a value that was never put there, near byte {position}.")

    def _needs_more(self, position: int) -> bool:
        """Whether the failing read was about bytes: a length that leaves the data."""
        return self.wanted_end > len(self.data)

    wanted_end = 0

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
        self.push_global(str(module, "utf-8", "replace"), str(name, "utf-8", "replace"))

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
            self.spend(400)
        self.names[key] = self.names.get(key, 0) + 1
        self.stack.append(known)

    def made(self, made_by: str, func: object, args: object, kwargs: object = None) -> None:
        if isinstance(func, Global) and self.collapse:
            collapse = self.collapse.get(func.path)
            if collapse is not None and kwargs is None:
                self.spend(64)
                self.stack.append(collapse(made_by, args))
                return
        self.spend(200)
        self.stack.append(Call(made_by, func, args, kwargs))

    def reduce(self) -> None:
        args = self.stack.pop()
        self.made("REDUCE", self.stack.pop(), args)

    def newobj(self) -> None:
        args = self.stack.pop()
        self.made("NEWOBJ", self.stack.pop(), args)

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
        self.push_persistent(str(self.line(), "utf-8", "replace"), as_text=True)

    def binpersid(self) -> None:
        self.push_persistent(self.stack.pop(), as_text=False)

    def push_persistent(self, pid: object, *, as_text: bool) -> None:
        self.spend(56)
        self.stack.append(self.persistent(pid) if self.persistent else Persistent(pid, as_text=as_text))

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

    def empty_tuple(self) -> None:
        self.stack.append(())

    def empty_set(self) -> None:
        self.spend(120)
        self.stack.append(Set([]))

    def dict_(self) -> None:
        items = self.since_mark()
        self.empty_dict()
        self.set_items(items)

    def list_(self) -> None:
        self.stack.append(self.since_mark())

    def tuple_(self) -> None:
        self.stack.append(tuple(self.since_mark()))

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
            target.later.append(("SETITEMS", found))
        else:
            raise PickleError(f"it sets items of a value that is no dict, near byte {self.position}.")

    def put(self) -> None:
        self.memo[self.decimal(self.line())] = self.stack[-1]
        self.spend(90)

    def get(self) -> None:
        self.stack.append(self.memo[self.decimal(self.line())])

    def decimal(self, digits: bytes) -> int:
        if len(digits) > _TEXT_DIGITS:
            raise PickleError(f"it holds a number of {len(digits)} digits.")
        return int(digits)

    def int_(self) -> None:
        line = self.line()
        self.stack.append(line == b"01" if line in (b"00", b"01") else self.decimal(line))

    def long_(self) -> None:
        line = self.line()
        self.stack.append(self.decimal(line[:-1] if line[-1:] == b"L" else line))

    def long1(self) -> None:
        self.big_integer(self.number(1))

    def long4(self) -> None:
        self.big_integer(int.from_bytes(self.take(4), "little", signed=True))

    def big_integer(self, n: int) -> None:
        if n > _INTEGER_BYTES:
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


_RARE: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    0x63: _Machine.global_name,
    0x93: _Machine.stack_global,
    0x52: _Machine.reduce,
    0x81: _Machine.newobj,
    0x92: _Machine.newobj_ex,
    0x6F: _Machine.obj,
    0x69: _Machine.inst,
    0x62: _Machine.build,
    0x50: _Machine.persid,
    0x51: _Machine.binpersid,
    0x30: _Machine.pop,
    0x31: _Machine.pop_mark,
    0x32: _Machine.dup,
    0x7D: _Machine.empty_dict,
    0x5D: _Machine.empty_list,
    0x29: _Machine.empty_tuple,
    0x8F: _Machine.empty_set,
    0x64: _Machine.dict_,
    0x6C: _Machine.list_,
    0x74: _Machine.tuple_,
    0x91: _Machine.frozenset_,
    0x61: _Machine.append_,
    0x65: _Machine.appends,
    0x90: _Machine.additems,
    0x73: _Machine.setitem,
    0x75: _Machine.setitems,
    0x70: _Machine.put,
    0x67: _Machine.get,
    0x49: _Machine.int_,
    0x4C: _Machine.long_,
    0x8A: _Machine.long1,
    0x8B: _Machine.long4,
    0x46: _Machine.float_,
    0x47: _Machine.binfloat,
    0x53: _Machine.string,
    0x56: _Machine.unicode,
    0x8D: _Machine.binunicode8,
    0x54: _Machine.binstring,
    0x55: _Machine.short_binstring,
    0x42: _Machine.binbytes,
    0x43: _Machine.short_binbytes,
    0x8E: _Machine.binbytes8,
    0x96: _Machine.bytearray8,
    0x82: _Machine.refuse_extension,
    0x83: _Machine.refuse_extension,
    0x84: _Machine.refuse_extension,
    0x97: _Machine.refuse_buffer,
    0x98: _Machine.refuse_buffer,
}


def walk(root: object) -> Iterator[object]:
    """Every container, call and leaf of a graph once, without recursion; cycles and shared parts are normal."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (str, int, float, bytes, bool, type(None), Global)):
            yield value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (list, tuple)):
            waiting.extend(reversed(value))
        elif isinstance(value, Dict):
            for key, item in reversed(value.pairs):
                waiting.extend((item, key))
        elif isinstance(value, Set):
            waiting.extend(reversed(value.items))
        elif isinstance(value, Persistent):
            waiting.append(value.pid)
        elif isinstance(value, Call):
            for _, payload in reversed(value.later):
                waiting.append(payload)
            waiting.extend((value.kwargs, value.args, value.func))
