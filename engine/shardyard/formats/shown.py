"""Pickled values as short text that is safe to show: what a person sees of a step count, a list of names or a foreign class."""

from __future__ import annotations

from collections.abc import Iterable

from shardyard.formats.pickles import ByteString, Call, Global, Persistent, Set, attribute, pairs, sequence
from shardyard.formats.tensors import CompositeValue, TensorValue, WrapperValue
from shardyard.text import printable

_MOST_ITEMS = 12
_DEEPEST = 4


def shown(value: object, most: int = 200) -> str:
    """The value as a line of at most `most` characters; classes by name, tensors by dtype and shape."""
    return printable(_text(value, 0), most)


def _text(value: object, depth: int) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return _leaf(value)
    if isinstance(value, ByteString):
        return repr(value.text[:400])
    if isinstance(value, TensorValue):
        return f"tensor {value.dtype.name} {list(value.shape)}"
    if isinstance(value, (CompositeValue, WrapperValue)):
        return f"tensor of class {value.subclass or 'torch.Tensor'}"
    if isinstance(value, Global):
        return value.path
    if isinstance(value, Persistent):
        return "a reference"
    if depth >= _DEEPEST:
        return "…"
    items = pairs(value)
    if items is not None:
        return "{" + _joined((f"{_text(k, depth + 1)}: {_text(v, depth + 1)}" for k, v in items), len(items)) + "}"
    found = sequence(value)
    if found is not None:
        opening, closing = _brackets(value)
        return opening + _joined((_text(v, depth + 1) for v in found), len(found)) + closing
    return _call(value, depth) if isinstance(value, Call) else f"<{type(value).__name__}>"


def _leaf(value: object) -> str:
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[:400])
    if type(value) is int and value.bit_length() > 4096:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def _brackets(value: object) -> tuple[str, str]:
    if isinstance(value, tuple) or (isinstance(value, Call) and value.path in ("torch.Size", "builtins.tuple")):
        return "(", ")"
    if isinstance(value, Set) or (isinstance(value, Call) and "set" in value.path):
        return "{", "}"
    return "[", "]"


def _joined(items: Iterable[str], count: int) -> str:
    parts: list[str] = []
    for item in items:
        if len(parts) == _MOST_ITEMS:
            parts.append(f"… {count} in all")
            break
        parts.append(item)
    return ", ".join(parts)


def _call(value: Call, depth: int) -> str:
    """An object of a class that is never imported: its name, its arguments and attributes."""
    state = attribute(value, "__dict__")
    shown_parts = [_text(a, depth + 1) for a in (value.args if isinstance(value.args, tuple) else ())[:_MOST_ITEMS]]
    for kind, payload in value.later:
        if kind == "BUILD" and state is None and pairs(payload) is not None:
            items = pairs(payload) or []
            shown_parts.append(_joined((f"{_key(k)}={_text(v, depth + 1)}" for k, v in items), len(items)))
    return f"{value.path or 'an object'}({', '.join(p for p in shown_parts if p)})"


def _key(value: object) -> str:
    return value if isinstance(value, str) else _text(value, _DEEPEST)
