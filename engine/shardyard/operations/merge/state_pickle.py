"""The pickle of a state dict whose tensors are whole storages: what a merge writes into a torch file.

Protocol 2 with only the opcodes that torch writes itself, so that `torch.load(weights_only=True)` takes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from shardyard.dtypes import STORAGE_CLASSES
from shardyard.operations.merge.written import Whole, Written
from shardyard.pieces import row_major

_CLASS_OF = {dtype.name: f"torch\n{name}" for name, dtype in STORAGE_CLASSES.items()}
_UNTYPED = "torch.storage\nUntypedStorage"


WHOLES = frozenset({"sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "quantised", "nested"})
"""Kinds of composite values that can be written."""


def pickle_state_dict(entries: Iterable[tuple[str, Written | Whole]], keys: Mapping[str, int]) -> bytes:
    """The pickle of a dict, for (name, value) in the dict's order; `keys` are the storages by tensor name."""
    writer = _Writer(keys)
    for name, value in entries:
        writer.text(name)
        writer.value(value)
    return b"".join([b"\x80\x02}", b"(", *writer.parts, b"u."])


class _Writer:
    """Opcodes, with globals and common strings kept in the memo."""

    def __init__(self, keys: Mapping[str, int]) -> None:
        self.parts: list[bytes] = []
        self._keys = keys
        self._memo: dict[tuple[str, str], int] = {}

    def value(self, value: Written | Whole) -> None:
        """A tensor, or a sparse, quantised or nested value made of tensors."""
        if isinstance(value, Written):
            self.tensor(value)
        elif value.kind == "quantised":
            self.quantised(value)
        elif value.kind == "nested":
            self.nested(value)
        else:
            self.sparse(value)

    def tensor(self, written: Written) -> None:
        """A rebuild call; dtypes that have no storage class of their own name themselves."""
        typed = written.dtype.name in _CLASS_OF
        self.known("global", "torch._utils\n_rebuild_tensor_v2" if typed else "torch._utils\n_rebuild_tensor_v3")
        self.parts.append(b"(")
        self.storage(written)
        self.no_grad()
        if not typed:
            self.known("global", f"torch\n{written.dtype.name}")
        self.parts.append(b"tR")

    def storage(self, written: Written) -> None:
        """A whole storage, and the packed view of it: offset, shape, strides."""
        dtype, shape = written.dtype, written.tensor.shape
        typed = dtype.name in _CLASS_OF
        self.parts.append(b"(")
        self.known("text", "storage")
        self.known("global", _CLASS_OF.get(dtype.name, _UNTYPED))
        self.text(str(self._keys[written.name]))
        self.known("text", "cpu")
        self.number(written.nbytes // dtype.itemsize if typed else written.nbytes)
        self.parts.append(b"tQ")
        self.number(0)
        self.numbers(shape)
        self.numbers(row_major(shape, 1))

    def no_grad(self) -> None:
        """`requires_grad` and no hooks."""
        self.parts.append(b"\x89")
        self.known("global", "collections\nOrderedDict")
        self.parts.append(b")R")

    def sparse(self, whole: Whole) -> None:
        """(layout, (parts…, size[, is_coalesced]))."""
        self.known("global", "torch._utils\n_rebuild_sparse_tensor")
        self.parts.append(b"(")
        self.known("global", "torch.serialization\n_get_layout")
        self.parts.append(b"(")
        self.text(f"torch.{whole.kind}")
        self.parts.append(b"tR(")
        for part in whole.parts:
            self.tensor(part)
        self.known("global", "torch\nSize")
        self.parts.append(b"(")
        self.numbers(whole.integers("size"))
        self.parts.append(b"tR")
        if "is_coalesced" in whole.parameters:
            self.parts.append(b"\x88" if whole.parameters["is_coalesced"] else b"\x89")
        self.parts.append(b"ttR")

    def quantised(self, whole: Whole) -> None:
        """(storage, offset, size, stride, quantiser, requires_grad, hooks)."""
        scheme = str(whole.parameters["scheme"]).removeprefix("torch.")
        self.known("global", "torch._utils\n_rebuild_qtensor")
        self.parts.append(b"(")
        self.storage(whole.parts[0])
        self.parts.append(b"(")
        self.known("global", f"torch\n{scheme}")
        if len(whole.parts) == 1:
            self.parts.append(b"G" + struct.pack(">d", float(str(whole.parameters["scale"]))))
            self.number(int(str(whole.parameters["zero_point"])))
        else:
            for part in whole.parts[1:]:
                self.tensor(part)
            self.number(int(str(whole.parameters["axis"])))
        self.parts.append(b"t")
        self.no_grad()
        self.parts.append(b"tR")

    def nested(self, whole: Whole) -> None:
        """(buffer, sizes, strides, offsets)."""
        self.known("global", "torch._utils\n_rebuild_nested_tensor")
        self.parts.append(b"(")
        for part in whole.parts:
            self.tensor(part)
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
        if value < 0:
            self.parts.append(b"J" + struct.pack("<i", value))
        elif value < 1 << 8:
            self.parts.append(b"K" + struct.pack("<B", value))
        elif value < 1 << 16:
            self.parts.append(b"M" + struct.pack("<H", value))
        elif value < 1 << 31:
            self.parts.append(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little")
            self.parts.append(b"\x8a" + bytes([len(raw)]) + raw)
