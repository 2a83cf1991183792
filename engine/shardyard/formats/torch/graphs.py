"""Whether two pickled graphs mean the same: equal values, and the same objects shared in the same places.

The walk goes over both graphs at once, without recursion.  Containers and calls are matched one to one: where the first graph has
one object in two places, so must the second, and the other way round.  Storages are known by their keys, not by identity.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from shardyard.formats.pickles import ByteString, Call, Dict, Global, Persistent, Set
from shardyard.formats.torch.tensors import StorageRef
from shardyard.formats.torch.text import describe

Pairs = Iterable[tuple[object, object]]
Match = Callable[[object, object], "Pairs | None"]
"""Given two values, the pairs inside them that remain to be compared; None to compare them in the usual way."""


class Different(Exception):
    """Two graphs differ; says where, as far as that can be said shortly."""


def compare(a: object, b: object, match: Match | None = None) -> None:
    """Compare two graphs.

    Args:
        match: takes over the comparison of values that may differ in a known way, such as tensors whose storages moved.

    Raises:
        Different: they do not mean the same.
    """
    forth: dict[int, object] = {}
    back: dict[int, object] = {}
    waiting: list[tuple[object, object]] = [(a, b)]
    while waiting:
        x, y = waiting.pop()
        if isinstance(x, _BY_VALUE) or isinstance(y, _BY_VALUE) or x is None or y is None:
            if not _equal(x, y):
                raise Different(f"{describe(x)} became {describe(y)}")
            continue
        if not isinstance(x, (StorageRef, Persistent)) and x != ():
            known = forth.get(id(x))
            if known is not None or id(y) in back:
                if known is not y or back.get(id(y)) is not x:
                    raise Different(f"{describe(x)} is shared differently")
                continue
            forth[id(x)], back[id(y)] = y, x
        inner = match(x, y) if match is not None else None
        waiting.extend(_inner(x, y) if inner is None else inner)


_BY_VALUE = (str, int, float, bytes, Global, ByteString, complex)


def _equal(x: object, y: object) -> bool:
    if type(x) is not type(y):
        return False
    if isinstance(x, float) and isinstance(y, float):
        return struct.pack("<d", x) == struct.pack("<d", y)
    if isinstance(x, Global) and isinstance(y, Global):
        return (x.module, x.name) == (y.module, y.name)
    if isinstance(x, ByteString) and isinstance(y, ByteString):
        return x.data == y.data
    return x == y


def _inner(x: object, y: object) -> Pairs:
    """What is inside two values of one kind."""
    if type(x) is not type(y):
        raise Different(f"{describe(x)} became {describe(y)}")
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return _zip(x, y, x)
    if isinstance(x, Dict) and isinstance(y, Dict):
        return _zip(_flat(x.pairs), _flat(y.pairs), x)
    if isinstance(x, Set) and isinstance(y, Set) and x.frozen == y.frozen:
        return _zip(x.items, y.items, x)
    if isinstance(x, Call) and isinstance(y, Call):
        return _calls(x, y)
    if isinstance(x, Persistent) and isinstance(y, Persistent) and x.as_text == y.as_text:
        return [(x.pid, y.pid)]
    if isinstance(x, StorageRef) and isinstance(y, StorageRef):
        return [(x.pid, y.pid)]
    if isinstance(x, bytearray) and x == y:
        return ()
    raise Different(f"{describe(x)} became {describe(y)}")


def _calls(x: Call, y: Call) -> Pairs:
    if x.made_by != y.made_by or [kind for kind, _ in x.later] != [kind for kind, _ in y.later]:
        raise Different(f"{describe(x)} is made or changed differently")
    found: list[tuple[object, object]] = [(x.func, y.func), (x.args, y.args), (x.kwargs, y.kwargs)]
    for (kind, p), (_, q) in zip(x.later, y.later, strict=True):
        if kind != "BUILD" and isinstance(p, list) and isinstance(q, list):
            # The list of an operation is no object of the graph, its items are.
            found += _zip(_flat(p), _flat(q), x) if kind == "SETITEMS" else _zip(p, q, x)
        else:
            found.append((p, q))
    return found


def _flat(items: Iterable[object]) -> list[object]:
    return [part for pair in items if isinstance(pair, tuple) for part in pair]


def _zip(
    x: list[object] | tuple[object, ...], y: list[object] | tuple[object, ...], whole: object
) -> list[tuple[object, object]]:
    if len(x) != len(y):
        raise Different(f"{describe(whole)} has {len(x)} items, then {len(y)}")
    return list(zip(x, y, strict=True))
