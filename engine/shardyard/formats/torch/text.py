"""Values of a pickled graph that are no tensors, as short text that is safe to show."""

from __future__ import annotations

from shardyard.formats.pickles import ByteString, Call, Dict, Global, Persistent, Set, pairs, sequence, text_of
from shardyard.formats.torch.numpy_values import ArrayValue, scalar_text
from shardyard.formats.torch.tensors import Broken, CompositeValue, StorageRef, TensorValue, WrapperValue
from shardyard.text import printable

_SHOWN = 200
_SHOWN_ITEMS = 16
_SHOWN_DIGITS = 40


def is_scalar(value: object) -> bool:
    """Whether nothing can be inside the value."""
    return value is None or isinstance(value, (str, int, float, complex, bytes, bytearray, ByteString, Global, StorageRef))


def key_text(key: object, at: int) -> str:
    """A dict's key as a part of a name; `at` numbers keys that have no text of their own."""
    if isinstance(key, str):
        return key
    if isinstance(key, ByteString):
        return key.text
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key) if abs(key) < 1 << 4096 else describe(key)
    if key is None or isinstance(key, (bool, float, bytes)):
        return repr(key) if not isinstance(key, bytes) or len(key) <= _SHOWN else describe(key)
    if isinstance(key, tuple) and len(key) <= _SHOWN_ITEMS and all(map(is_scalar, key)):
        inner = ", ".join(repr(k) if isinstance(k, str) else key_text(k, at) for k in key)
        return f"({inner},)" if len(key) == 1 else f"({inner})"
    if isinstance(key, Global):
        return key.path
    return f"<key {at}>"


def describe(value: object, depth: int = 2) -> str:
    """Short text for any value; two levels deep at most."""
    if isinstance(value, str):
        return repr(printable(value, _SHOWN))
    if isinstance(value, bool) or value is None or isinstance(value, (float, complex)):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_SHOWN_DIGITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, (bytes, bytearray, ByteString)):
        raw = value.data if isinstance(value, ByteString) else bytes(value)
        return f"{len(raw)} bytes" if len(raw) > _SHOWN_DIGITS else printable(repr(raw))
    if isinstance(value, Global):
        return printable(value.path, _SHOWN)
    if isinstance(value, StorageRef):
        return f"storage of {value.numel} {value.dtype.name if value.dtype else 'bytes'}"
    if isinstance(value, (list, tuple, Set, Dict)):
        return _container(value, depth)
    if isinstance(value, Call):
        return _call(value, depth)
    return _other(value)


def _other(value: object) -> str:
    if isinstance(value, TensorValue):
        return f"tensor {value.dtype.name} {list(value.shape)}"
    if isinstance(value, CompositeValue):
        return f"{value.kind} tensor"
    if isinstance(value, WrapperValue):
        return printable(value.subclass, _SHOWN)
    if isinstance(value, ArrayValue):
        return value.what
    if isinstance(value, Persistent):
        kind = text_of(value.pid[0]) if isinstance(value.pid, tuple) and value.pid else None
        if kind == "module" and isinstance(value.pid, tuple) and len(value.pid) > 1:
            return describe(value.pid[1])
        return "something that is stored elsewhere"
    return value.reason if isinstance(value, Broken) else "an unknown value"


def _container(value: object, depth: int) -> str:
    items = pairs(value)
    opening, closing = ("{", "}") if items is not None or isinstance(value, Set) else ("(", ")")
    if isinstance(value, list):
        opening, closing = "[", "]"
    listed = sequence(value) if items is None else items
    count = len(listed or ())
    if not count:
        return opening + closing
    if depth <= 0:
        return f"{opening}…{closing}"
    if items is not None:
        shown = [f"{describe(k, depth - 1)}: {describe(v, depth - 1)}" for k, v in items[:_SHOWN_ITEMS]]
    else:
        shown = [describe(item, depth - 1) for item in (listed or [])[:_SHOWN_ITEMS]]
    text = ", ".join(shown)
    if count > _SHOWN_ITEMS:
        return f"{opening}{text}, …{closing} ({count} values)"
    return f"{opening}{text}{',' if isinstance(value, tuple) and count == 1 else ''}{closing}"


def _call(value: Call, depth: int) -> str:
    scalar = scalar_text(value)
    if scalar is not None:
        return scalar
    name = printable(value.path, _SHOWN) or "an unnamed call"
    if value.path == "torch.Size":
        return f"torch.Size({describe(sequence(value) or [], 1)})"
    arguments = value.args if isinstance(value.args, tuple) else ()
    if depth <= 0:
        return f"{name}(…)"
    shown = [describe(a, depth - 1) for a in arguments[:_SHOWN_ITEMS]]
    for kind, state in value.later:
        for key, item in (pairs(state) or [])[:_SHOWN_ITEMS] if kind == "BUILD" else ():
            shown.append(f"{key_text(key, len(shown))}={describe(item, depth - 1)}")
    return f"{name}({', '.join(shown)}{', …' if len(arguments) > _SHOWN_ITEMS else ''})"
