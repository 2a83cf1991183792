"""Right answers, read by a reader that shares nothing with the engine."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from shardyard.checkpoint import Tensor
from shardyard.files import FileHandles
from shardyard.operations.gather import read_range


@dataclass(frozen=True)
class Answer:
    """A tensor as it should be."""

    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]
    data: bytes


def answers(path: Path) -> dict[str, Answer]:
    """The tensors of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = Answer(entry["dtype"], tuple(entry["shape"]), raw[start:end])
    return found


def contents(tensor: Tensor, handles: FileHandles) -> Answer:
    """What the engine makes of a tensor: its layout proven and every byte gathered."""
    assert tensor.layout is not None, f"{tensor.name} has no data: {tensor.note}"
    tensor.layout.prove(tensor.nbytes)
    buffer = memoryview(bytearray(tensor.nbytes))
    read_range(tensor, 0, tensor.nbytes, buffer, handles)
    return Answer(tensor.dtype.safetensors or "", tensor.shape, bytes(buffer))


def differences(tensors: dict[str, Tensor], truth: dict[str, Answer], handles: FileHandles) -> list[str]:
    """Names that are missing, too many, or of another type, shape or value."""
    found = [f"missing {name}" for name in truth if name not in tensors]
    for name, tensor in tensors.items():
        if name not in truth:
            found.append(f"unexpected {name}")
        elif tensor.layout is None:
            found.append(f"no data for {name}")
        elif contents(tensor, handles) != truth[name]:
            found.append(f"different {name}")
    return found
