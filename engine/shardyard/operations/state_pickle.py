"""The pickle of a state dict whose tensors are whole storages: what a merge writes into a torch file.

Protocol 2 with only the opcodes that torch writes itself, so that `torch.load(weights_only=True)` takes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardyard.checkpoint import row_major
from shardyard.dtypes import STORAGE_CLASSES, DType

if TYPE_CHECKING:
    from shardyard.operations.outputs import Written

_CLASS_OF = {dtype.name: f"torch\n{name}" for name, dtype in STORAGE_CLASSES.items()}
_UNTYPED = "torch.storage\nUntypedStorage"


def pickle_state_dict(entries: Iterable[tuple[str, Written, int]]) -> bytes:
    """The pickle of a dict, for (name, tensor, storage key) in the dict's order."""
    writer = _Writer()
    for name, written, key in entries:
        writer.text(name)
        writer.tensor(written.dtype, written.tensor.shape, key, written.nbytes)
    return b"".join([b"\x80\x02}", b"(", *writer.parts, b"u."])


class _Writer:
    """Opcodes, with globals and common strings kept in the memo."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._memo: dict[tuple[str, str], int] = {}

    def tensor(self, dtype: DType, shape: tuple[int, ...], key: int, nbytes: int) -> None:
        """A rebuild call; dtypes that have no storage class of their own name themselves."""
        typed = dtype.name in _CLASS_OF
        self.known("global", "torch._utils\n_rebuild_tensor_v2" if typed else "torch._utils\n_rebuild_tensor_v3")
        self.parts.append(b"((")
        self.known("text", "storage")
        self.known("global", _CLASS_OF.get(dtype.name, _UNTYPED))
        self.text(str(key))
        self.known("text", "cpu")
        self.number(nbytes // dtype.itemsize if typed else nbytes)
        self.parts.append(b"tQ")
        self.number(0)
        self.numbers(shape)
        self.numbers(row_major(shape, 1))
        self.parts.append(b"\x89")
        self.known("global", "collections\nOrderedDict")
        self.parts.append(b")R")
        if not typed:
            self.known("global", f"torch\n{dtype.name}")
        self.parts.append(b"tR")

    def known(self, kind: str, value: str) -> None:
        """A global or text that comes again and again."""
        place = self._memo.get((kind, value))
        if place is not None:
            self.parts.append(b"h" + bytes([place]))
            return
        place = self._memo[kind, value] = len(self._memo)
        if kind == "global":
            self.parts.append(b"c" + value.encode() + b"\n")
        else:
            self.text(value)
        self.parts.append(b"q" + bytes([place]))

    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.parts.append(b"X" + struct.pack("<I", len(raw)) + raw)

    def numbers(self, values: Sequence[int]) -> None:
        self.parts.append(b"(")
        for value in values:
            self.number(value)
        self.parts.append(b"t")

    def number(self, value: int) -> None:
        if value < 1 << 8:
            self.parts.append(b"K" + struct.pack("<B", value))
        elif value < 1 << 16:
            self.parts.append(b"M" + struct.pack("<H", value))
        elif value < 1 << 31:
            self.parts.append(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little")
            self.parts.append(b"\x8a" + bytes([len(raw)]) + raw)
