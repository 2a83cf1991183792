"""Checkpoints made of arrays in memory, and safetensors files of any size, for tests of what is done with values."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shardyard.checkpoint import Checkpoint, CheckpointKind, Part, Tensor, Tie
from shardyard.dtypes import BY_NAME
from shardyard.layouts import OneRun
from shardyard.pieces import InlineRecord


def tensor(name: str, array: np.ndarray, dtype: str | None = None) -> Tensor:
    """A tensor whose bytes are in memory; `dtype` where the array's own type is not a torch type."""
    kind = BY_NAME[dtype or array.dtype.name]
    data = np.ascontiguousarray(array).tobytes()
    return Tensor(name, kind, array.shape, OneRun(InlineRecord("memory", len(data), 0, data=data), 0, len(data)))


def checkpoint(arrays: Mapping[str, np.ndarray | Tensor], ties: Sequence[Sequence[str]] = (), path: str = "memory") -> Checkpoint:
    """A checkpoint of arrays, or of tensors made by `tensor`."""
    tensors = {name: a if isinstance(a, Tensor) else tensor(name, a) for name, a in arrays.items()}
    part = Part("model", tensors, model=True)
    recorded = [Tie(tuple(names), "recorded") for names in ties]
    return Checkpoint(Path(path), CheckpointKind.SAFETENSORS, [], {"model": part}, "model", ties=recorded)


def sparse_safetensors(path: Path, shapes: Mapping[str, Sequence[int]], dtype: str = "F32", size: int = 4) -> dict[str, int]:
    """A safetensors file of zeros that takes no room on disk; returns where each tensor's bytes begin."""
    header: dict[str, object] = {}
    at = 0
    for name, shape in shapes.items():
        nbytes = size * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return {name: 8 + len(text) + entry["data_offsets"][0] for name, entry in header.items()}  # type: ignore[index]
