"""numpy arrays and scalars inside a pickle, read without numpy: their bytes are in the pickle itself."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from shardyard.dtypes import BY_NAME, DType
from shardyard.formats.pickles import ByteString, Call, Collapse, Global, integers, sequence, text_of
from shardyard.formats.torch.tensors import StorageRef, TensorValue
from shardyard.pieces import Ops

_KINDS = {
    "f": {2: "float16", 4: "float32", 8: "float64"},
    "i": {1: "int8", 2: "int16", 4: "int32", 8: "int64"},
    "u": {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"},
    "b": {1: "bool"},
    "c": {8: "complex64", 16: "complex128"},
}
_SCALARS = {
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "bool": "?",
}


class ArrayValue:
    """A numpy array. `tensor` is set when its type is one that tensors have too."""

    __slots__ = ("tensor", "what")

    def __init__(self) -> None:
        self.tensor: TensorValue | None = None
        self.what = "numpy array"
        """What to show for an array without `tensor`."""

    def build(self, state: object) -> None:
        """The state of an ndarray: (version, shape, dtype, Fortran order, bytes or a list of objects)."""
        if isinstance(state, tuple) and len(state) == 5:
            self.fill(state[1], state[2], state[3] is True, state[4])

    def fill(self, size: object, dtype: object, fortran: bool, data: object) -> None:
        shape, described = integers(size), element_type(dtype)
        raw = _bytes(data)
        if shape is None or min(shape, default=0) < 0:
            return
        self.what = f"numpy array of {'objects' if isinstance(data, list) else 'another type'}, shape {list(shape)}"
        if described is None or raw is None:
            return
        element, swapped = described
        strides, step = [], 1
        for n in shape if fortran else reversed(shape):
            strides.append(step)
            step *= n
        if step * element.itemsize != len(raw):
            return
        order = tuple(strides) if fortran else tuple(reversed(strides))
        storage = StorageRef("numpy", element, step, "cpu", inline=raw)
        self.tensor = TensorValue(storage, element, shape, order, 0, Ops.SWAP if swapped else Ops.NONE)

    def children(self) -> Iterable[object]:
        return ()


def element_type(value: object) -> tuple[DType, bool] | None:
    """The element type that a pickled `numpy.dtype` names, and whether its bytes are big-endian; None for all others."""
    if not isinstance(value, Call) or value.path != "numpy.dtype" or not isinstance(value.args, tuple) or not value.args:
        return None
    code = value.args[0]
    if isinstance(code, Global):
        found = BY_NAME.get(code.name)  # ml_dtypes pickles its types by class
        return (found, False) if found else None
    text = text_of(code) or ""
    name = _KINDS.get(text[:1], {}).get(int(text[1:]) if text[1:].isdigit() and len(text) < 4 else 0)
    if name is None:
        return None
    order = "<"
    for kind, state in value.later:
        if kind == "BUILD" and isinstance(state, tuple) and len(state) > 1:
            order = text_of(state[1]) or "<"
    return BY_NAME[name], order == ">"


def scalar_text(value: object) -> str | None:
    """The value of a pickled numpy scalar as text; None if it is none or of another type."""
    if not isinstance(value, Call) or not value.path.endswith("multiarray.scalar"):
        return None
    if not isinstance(value.args, tuple) or len(value.args) != 2:
        return None
    described, raw = element_type(value.args[0]), _bytes(value.args[1])
    if described is None or raw is None or described[0].name not in _SCALARS or len(raw) != described[0].itemsize:
        return None
    return str(struct.unpack((">" if described[1] else "<") + _SCALARS[described[0].name], raw)[0])


def _bytes(value: object) -> bytes | None:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.data if isinstance(value, ByteString) else None


def _reconstruct(made_by: str, args: object) -> object:
    return ArrayValue()


def _frombuffer(made_by: str, args: object) -> object:
    """Protocol 5: (buffer, dtype, shape, order)."""
    value = ArrayValue()
    if isinstance(args, tuple) and len(args) == 4:
        value.fill(args[2], args[1], args[3] == "F", args[0])
    return value


def _encode(made_by: str, args: object) -> object:
    """`_codecs.encode(text, "latin1")`: how protocol 2 writes bytes."""
    items = sequence(args) or []
    if len(items) == 2 and isinstance(items[0], str) and text_of(items[1]) in ("latin1", "latin-1"):
        try:
            return items[0].encode("latin-1")
        except UnicodeEncodeError:
            pass
    return Call(made_by, Global("_codecs", "encode"), args)


def _no_bytes(made_by: str, args: object) -> object:
    """`bytes()`: how protocol 2 writes empty bytes."""
    return b"" if args == () else Call(made_by, Global("builtins", "bytes"), args)


NUMPY: dict[str, Collapse] = {
    "builtins.bytes": _no_bytes,
    "_codecs.encode": _encode,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _frombuffer for core in ("core", "_core")},
}
"""As `pickles.load(collapse=…)` takes them."""
