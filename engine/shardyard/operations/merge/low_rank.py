"""Adding a LoRA change to a weight, block by block, in float32: what `--lora fold` does to the bytes."""

from __future__ import annotations

import numpy as np

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.files import FileHandles
from shardyard.operations import gather
from shardyard.operations.merge.adapters import Fold
from shardyard.operations.merge.casts import cast_block
from shardyard.operations.merge.written import Written

_FLOAT = BY_NAME["float32"]


class LowRank:
    """The two matrices of a change, oriented so that row r of the change is `left[r] @ right`."""

    def __init__(self, fold: Fold, handles: FileHandles) -> None:
        a, b = _matrix(fold.a, handles), _matrix(fold.b, handles)
        left, right = (a.T, b.T) if fold.transposed else (b, a)
        self.left = np.ascontiguousarray(left) * np.float32(fold.scale)
        self.right = np.ascontiguousarray(right)

    def add(self, written: Written, first: int, source: memoryview, out: memoryview) -> int:
        """Write `source` (stored bytes from `first` on) plus the change into `out`; returns how many values overflowed."""
        item = written.tensor.dtype.itemsize
        columns = written.tensor.shape[1]
        begin, count = first // item, len(source) // item
        row, last = begin // columns, -(-(begin + count) // columns)
        change = (self.left[row:last] @ self.right).reshape(-1)[begin - row * columns :][:count]
        values = np.empty(count, np.float32)
        cast_block(source, written.tensor.dtype, values.data.cast("B"), _FLOAT)
        values += change
        if written.dtype == _FLOAT:
            out[:] = values.data.cast("B")
            return 0
        return cast_block(values.data.cast("B"), _FLOAT, out, written.dtype)


def _matrix(tensor: Tensor, handles: FileHandles) -> np.ndarray:
    """A small matrix, in float32."""
    stored = bytearray(tensor.nbytes)
    gather.read_range(tensor, 0, tensor.nbytes, memoryview(stored), handles)
    values = np.empty(tensor.shape, np.float32)
    if tensor.dtype == _FLOAT:
        values.data.cast("B")[:] = stored
    else:
        cast_block(memoryview(stored), tensor.dtype, values.data.cast("B"), _FLOAT)
    return values
