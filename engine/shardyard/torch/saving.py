"""Saving weights so that they cannot bloat: each storage view is written once, tensor by tensor, with one tensor of extra memory.

A plain `torch.save` of views stores the whole buffer behind each of them, once a file; cloning them all doubles the memory and
unties what was tied.  Here tied names are found by what they look at, and one of them is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import OutputExistsError, UnsupportedError, UsageError
from shardyard.operations.merge.options import parse_size
from shardyard.operations.merge.outputs import OutputFile, index_file, safetensors_file, split
from shardyard.operations.merge.ties import owner_of
from shardyard.operations.merge.written import Written
from shardyard.text import printable
from shardyard.torch.loading import torch_dtype


def save(
    weights: Mapping[str, torch.Tensor] | torch.nn.Module,
    folder: str | os.PathLike[str],
    *,
    max_shard_size: str | int | None = "5GB",
    dtype: torch.dtype | str | None = None,
) -> list[Path]:
    """Write a model's or a state dict's weights as safetensors into a new folder; returns the files.

    Tied names are written once, under their owner, and recorded in the file as `{alias: owner}`.  The folder appears whole or
    not at all.

    Args:
        weights: a module, or names to tensors.
        folder: must be missing or empty.
        max_shard_size: such as `5GB` or a number of bytes; None for one file.
        dtype: cast float64, float32, bfloat16 and float16 tensors to this.

    Raises:
        UsageError: a tensor is only a part (ZeRO-3 placeholder, DTensor): gather it with `consolidate`.
        UnsupportedError: safetensors cannot hold a tensor.
        OutputExistsError: the folder holds files.
    """
    target = Path(os.path.abspath(folder))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputExistsError(
            f"{printable(str(target))} is there already and not empty; choose another folder.", path=str(target)
        )
    kind = torch_dtype(dtype)
    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    tensors = {name: _checked(name, value) for name, value in state.items()}
    tied = _ties(tensors)
    files = _lay_out(tensors, tied, kind, parse_size(max_shard_size))
    staging = target.with_name(target.name + ".shardyard-partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for file in files:
        _write(staging / file.name, file, tensors, kind)
    _sync(staging)
    if target.exists():
        target.rmdir()
    staging.rename(target)
    _sync(target.parent)
    return [target / file.name for file in files]


def _checked(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"{printable(name)} is a {type(value).__name__}, not a tensor; save takes weights only.", tensors=[name])
    if hasattr(value, "ds_id") or hasattr(value, "full_tensor") or hasattr(value, "local_shards"):
        raise UsageError(
            f"{printable(name)} is one rank's part of a tensor; gather the model with shardyard.torch.consolidate.",
            tensors=[name],
        )
    dtype = BY_NAME.get(str(value.dtype).removeprefix("torch."))
    plain = value.layout == torch.strided and not value.is_quantized and value.device.type != "meta"
    if not plain or dtype is None or dtype.safetensors is None:
        raise UnsupportedError(
            f"safetensors cannot hold {printable(name)} ({value.layout}, {value.dtype}); leave it out.",
            code="unsupported",
            tensors=[name],
        )
    return value


def _ties(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Aliases to owners, of names that look at the same elements in the same way."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, value in tensors.items():
        view = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        key = (*view, value.is_conj(), value.is_neg()) if value.numel() else (name,)
        groups.setdefault(key, []).append(name)
    owners = {owner_of(names): names for names in groups.values()}
    return {name: owner for owner, names in owners.items() for name in names if name != owner}


def _lay_out(
    tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str], dtype: torch.dtype | None, most: int | None
) -> list[OutputFile]:
    written = [_written(name, value, dtype) for name, value in tensors.items() if name not in tied]
    shards = split([w.nbytes for w in written], most)
    files, places = [], {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        mine = [written[i] for i in shard]
        names = {w.name for w in mine}
        aliases = {alias: owner for alias, owner in sorted(tied.items()) if owner in names}
        files.append(safetensors_file(name, mine, {"format": "pt", **aliases}))
        places.update(dict.fromkeys(names, name))
    if len(shards) > 1:
        files.append(index_file("model.safetensors.index.json", sum(w.nbytes for w in written), places))
    return files


def _written(name: str, value: torch.Tensor, dtype: torch.dtype | None) -> Written:
    stored = BY_NAME[str(value.dtype).removeprefix("torch.")]
    kind = BY_NAME[str(dtype).removeprefix("torch.")] if dtype is not None and stored.castable else stored
    return Written(name, Tensor(name, stored, tuple(value.shape), None), kind)


def _write(path: Path, file: OutputFile, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> None:
    with open(path, "xb", buffering=0) as out:
        for segment in file.segments:
            content = segment.content
            data = memoryview(content) if isinstance(content, bytes) else _bytes_of(tensors[content.name], dtype)
            while len(data):
                data = data[out.write(data) :]
        os.fsync(out.fileno())


def _bytes_of(value: torch.Tensor, dtype: torch.dtype | None) -> memoryview:
    castable = BY_NAME[str(value.dtype).removeprefix("torch.")].castable
    value = value.detach().resolve_conj().resolve_neg().to(device="cpu", dtype=dtype if dtype and castable else value.dtype)
    data: memoryview = value.contiguous().flatten().view(torch.uint8).numpy().data
    return data


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
