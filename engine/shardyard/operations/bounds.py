"""A tensor of a few stored bytes may claim to be a million times as large: what reads values refuses it by name.

Such a view (stride 0) is a legal way to store one number many times, and a way to keep a reader busy for a week.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardyard.checkpoint import Tensor
from shardyard.errors import UnsupportedError
from shardyard.text import printable

FREE = 1 << 30
"""Bytes that any tensor may have."""
MOST_REPEATS = 1024
"""How many times its stored bytes a larger one may have."""


def refuse_endless(tensors: Iterable[Tensor]) -> None:
    """Raise UnsupportedError if one of them repeats its stored bytes too often to be read."""
    for tensor in tensors:
        if tensor.nbytes <= FREE or tensor.layout is None:
            continue
        stored = sum(record.nbytes for record in tensor.layout.records())
        if stored * MOST_REPEATS < tensor.nbytes:
            name = printable(tensor.name, 120)
            raise UnsupportedError(
                f"{name} repeats {stored:,} stored bytes until they are {tensor.nbytes:,}; its values are not read.",
                code="unsupported",
                path=next(iter(tensor.files), None),
                tensors=[tensor.name],
            )
