"""Every element type that a checkpoint can hold, by its torch name.

Data is moved as opaque words; a dtype is needed only for names, sizes and casts.  Nothing here imports numpy or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shardyard.text import printable


class Kind(Enum):
    """What the bits mean, as far as casts and statistics care."""

    FLOAT = "float"
    COMPLEX = "complex"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"
    QUANTISED = "quantised"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class DType:
    """An element type."""

    name: str
    """The torch name, such as `bfloat16`; for unknown safetensors types the name in the file."""
    bits: int
    """Bits an element; below 8 several elements share a byte. 0: not known, only whole byte runs can be moved."""
    kind: Kind
    safetensors: str | None
    """The name in a safetensors header, or None where that format has none."""

    @property
    def itemsize(self) -> int:
        """Bytes an element, at least 1."""
        return max(1, self.bits // 8)

    @property
    def castable(self) -> bool:
        """Whether `--dtype` may change it: only float64, float32, bfloat16 and float16 are ever cast."""
        return self.name in CASTABLE

    @property
    def word(self) -> int:
        """Bytes of the unit that a byte swap reverses: half an element for complex numbers."""
        return self.itemsize // 2 if self.kind is Kind.COMPLEX else self.itemsize

    def nbytes(self, numel: int) -> int:
        """Bytes of `numel` elements, rounded up for sub-byte types."""
        return (numel * self.bits + 7) // 8


CASTABLE = frozenset({"float64", "float32", "bfloat16", "float16"})

_TABLE: tuple[tuple[str, int, Kind, str | None], ...] = (
    ("float64", 64, Kind.FLOAT, "F64"),
    ("float32", 32, Kind.FLOAT, "F32"),
    ("bfloat16", 16, Kind.FLOAT, "BF16"),
    ("float16", 16, Kind.FLOAT, "F16"),
    ("float8_e4m3fn", 8, Kind.FLOAT, "F8_E4M3"),
    ("float8_e5m2", 8, Kind.FLOAT, "F8_E5M2"),
    ("float8_e4m3fnuz", 8, Kind.FLOAT, "F8_E4M3FNUZ"),
    ("float8_e5m2fnuz", 8, Kind.FLOAT, "F8_E5M2FNUZ"),
    ("float8_e8m0fnu", 8, Kind.FLOAT, "F8_E8M0"),
    # torch counts one byte, two values; safetensors counts the values: shape [1, 2] is written as F4 [1, 4].
    ("float4_e2m1fn_x2", 8, Kind.OPAQUE, "F4"),
    ("float6_e2m3", 6, Kind.OPAQUE, "F6_E2M3"),
    ("float6_e3m2", 6, Kind.OPAQUE, "F6_E3M2"),
    ("complex128", 128, Kind.COMPLEX, None),
    ("complex64", 64, Kind.COMPLEX, "C64"),
    ("complex32", 32, Kind.COMPLEX, None),
    ("int64", 64, Kind.INT, "I64"),
    ("int32", 32, Kind.INT, "I32"),
    ("int16", 16, Kind.INT, "I16"),
    ("int8", 8, Kind.INT, "I8"),
    ("uint64", 64, Kind.UINT, "U64"),
    ("uint32", 32, Kind.UINT, "U32"),
    ("uint16", 16, Kind.UINT, "U16"),
    ("uint8", 8, Kind.UINT, "U8"),
    ("bool", 8, Kind.BOOL, "BOOL"),
    ("qint8", 8, Kind.QUANTISED, None),
    ("quint8", 8, Kind.QUANTISED, None),
    ("qint32", 32, Kind.QUANTISED, None),
    ("quint4x2", 4, Kind.QUANTISED, None),
    ("quint2x4", 2, Kind.QUANTISED, None),
    ("bits8", 8, Kind.OPAQUE, None),
    ("bits16", 16, Kind.OPAQUE, None),
    ("bits1x8", 8, Kind.OPAQUE, None),
    ("bits2x4", 8, Kind.OPAQUE, None),
    ("bits4x2", 8, Kind.OPAQUE, None),
)

BY_NAME: dict[str, DType] = {row[0]: DType(*row) for row in _TABLE}
BY_SAFETENSORS: dict[str, DType] = {d.safetensors: d for d in BY_NAME.values() if d.safetensors}

STORAGE_CLASSES: dict[str, DType] = {
    f"{cls}Storage": BY_NAME[name]
    for cls, name in (
        ("Double", "float64"),
        ("Float", "float32"),
        ("Half", "float16"),
        ("BFloat16", "bfloat16"),
        ("Long", "int64"),
        ("Int", "int32"),
        ("Short", "int16"),
        ("Char", "int8"),
        ("Byte", "uint8"),
        ("Bool", "bool"),
        ("ComplexDouble", "complex128"),
        ("ComplexFloat", "complex64"),
        ("QInt8", "qint8"),
        ("QInt32", "qint32"),
        ("QUInt8", "quint8"),
        ("QUInt4x2", "quint4x2"),
        ("QUInt2x4", "quint2x4"),
    )
}
"""torch's typed storage classes, by class name; `UntypedStorage` counts bytes and is not among them."""

SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def unknown(name: str) -> DType:
    """A dtype that this version does not know: shown by name, which is a stranger's text, moved as bytes, never cast."""
    return DType(printable(name, 80), 0, Kind.OPAQUE, name)
