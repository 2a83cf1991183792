"""An inert unpickler: builds a description of a pickle and runs nothing from it.

Nothing named in a pickle is imported, called or hashed.  Calls become `Call` records that keep how they were made and, in order,
what was done to them later, so that the same graph can be written again.  Dicts and sets are lists of pairs and items: a
dict of 60,000 integers with equal hashes, or shared tuples 60 deep used as a key, cost nothing here.

Limits, so that a small file cannot take much time or memory: opcodes <= 1,000,000 + bytes/2 (healthy files use 0.24 opcodes a
byte), an account of memory for everything built, lengths checked against what is left, integers of at most 1 kB.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shardyard.formats.pickles.machine import Loaded, Machine
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
    StandIn,
    Truncated,
    attribute,
    integers,
    lookup,
    pairs,
    sequence,
    text_of,
    walk,
)

_LARGE = 1 << 18


def load(
    data: bytes | bytearray | memoryview,
    start: int = 0,
    *,
    collapse: Mapping[str, Collapse] | None = None,
    persistent: Callable[[object], object] | None = None,
    partial: bool = False,
    shortcuts: Mapping[str, Shortcut] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Loaded:
    """Read the pickle at `start`.

    Args:
        data: the bytes.
        collapse: for dotted names, functions that turn a call into something compact as it is built.  If the result has a
            `build` method, a later BUILD goes there; BUILD on any other result that is no Call is refused.
        persistent: turns a persistent id into something else; without it a `Persistent` is kept.
        partial: `data` may be only the beginning of a longer file: running out of bytes raises `Truncated`.
        shortcuts: for dotted names of classes that come by the hundred thousand, readers of their usual bytes.
        watch: called with the position now and then; may raise to stop.

    Raises:
        PickleError: the pickle is damaged or beyond the limits.
    """
    whole = data if isinstance(data, bytes) else bytes(data)
    machine = Machine(whole, start, collapse, persistent, partial, shortcuts, watch)
    if len(whole) - start < _LARGE:
        return machine.run()
    with no_collection():
        return machine.run()


_pausing = threading.Lock()
_paused = 0


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: a graph of a million fresh objects holds no garbage, and looking costs half the time."""
    global _paused
    with _pausing:
        first = _paused == 0 and gc.isenabled()
        _paused += 1 if first or _paused else 0
        counted = _paused > 0
        if first:
            gc.disable()
    try:
        yield
    finally:
        with _pausing:
            if counted:
                _paused -= 1
                if _paused == 0:
                    gc.enable()


__all__ = [
    "ByteString",
    "Call",
    "Collapse",
    "Dict",
    "Global",
    "Loaded",
    "Persistent",
    "PickleError",
    "Set",
    "Shortcut",
    "StandIn",
    "Truncated",
    "attribute",
    "integers",
    "load",
    "lookup",
    "no_collection",
    "pairs",
    "sequence",
    "text_of",
    "walk",
]
