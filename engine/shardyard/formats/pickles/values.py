"""What a pickle holds, as inert stand-ins: names, calls, dicts as lists of pairs; and how to look into them.

Nothing here imports, calls or hashes what came out of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from shardyard.errors import DamagedError
from shardyard.text import printable


class PickleError(DamagedError):
    """The pickle breaks the rules of its opcodes, or asks for more than the limits allow."""


class Truncated(PickleError):
    """The pickle goes on beyond the bytes given; with more bytes it may be whole."""


class Global:
    """A dotted name that the pickle refers to; never imported."""

    __slots__ = ("module", "name", "path")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.path = f"{_RENAMED.get(module, module)}.{name}"
        """`module.name`, with Python 2's `__builtin__` and `copy_reg` under their present names."""

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
        func = self.func
        if isinstance(func, Global):
            return func.path
        if isinstance(func, Persistent) and isinstance(func.pid, tuple) and len(func.pid) > 1:
            # The legacy container refers to a module's class by ("module", class, source file, source text).
            return func.pid[1].path if isinstance(func.pid[1], Global) else ""
        return ""

    def __repr__(self) -> str:
        return f"Call({printable(self.path)!r})"


class Dict:
    """A dict, as its (key, value) pairs in the order they were set; keys may repeat in hostile files."""

    __slots__ = ("_by_text", "pairs")

    def __init__(self, pairs: Iterable[tuple[object, object]] = ()) -> None:
        self.pairs: list[tuple[object, object]] = list(pairs)
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
    """A compact object that takes the place of a Call while it is built; see `pickles.load`."""

    def build(self, state: object) -> None:
        """Take the state of a BUILD opcode."""
        ...

    def children(self) -> Iterable[object]:
        """The values inside it, for `walk`."""
        ...


Collapse = Callable[[str, object], object]
"""Gets the opcode's name and the arguments; returns what to put on the stack. Raise PickleError to refuse."""

Shortcut = Callable[[bytes, int, list[object], list[object]], int]
"""Gets (data, position after a NEWOBJ without arguments, memo, stack) and may read the object's state itself, in one go.

It leaves the stack as if the object, and what follows as far as it read, had been built step by step, appends to the memo as the
MEMOIZE opcodes in between would, and returns the new position; 0, with nothing changed, where the bytes look otherwise.
"""


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
        if isinstance(value.args, tuple) and value.args:
            first = value.args[0]
            # One level only: a chain of 100,000 lists of lists must not recurse.
            found.extend(first if isinstance(first, (list, tuple)) else first.items if isinstance(first, Set) else ())
        for kind, payload in value.later:
            if kind in ("APPENDS", "ADDITEMS") and isinstance(payload, list):
                found.extend(payload)
        return found
    return None


def integers(value: object) -> tuple[int, ...] | None:
    """A shape, stride or list of plain integers; None if it is anything else."""
    if type(value) is tuple:
        for item in value:
            if type(item) is not int:
                return None
        return value
    items = sequence(value)
    if items is None:
        return None
    numbers = tuple(i for i in items if type(i) is int)
    return numbers if len(numbers) == len(items) else None


def text_of(value: object) -> str | None:
    """A text, also where an old writer left a Python 2 string or bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, ByteString):
        return value.text
    return value.decode("latin-1") if isinstance(value, bytes) else None


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
        elif hasattr(value, "children"):
            waiting.extend(value.children())


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
