"""Checkpoints as state dicts: each tensor is read when it is asked for, tied names share one tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.discover import open_checkpoint
from shardyard.dtypes import SHORT_NAMES
from shardyard.errors import AmbiguousError, IncompleteError, UsageError
from shardyard.files import FileHandles
from shardyard.findings import Blocks
from shardyard.formats.candidate import OpenOptions
from shardyard.operations.gather import read_range


class StateDict(Mapping[str, torch.Tensor]):
    """A state dict whose tensors are read from disk one by one, when they are asked for.

    Names that are tied give the same tensor object for as long as somebody holds it, so `dict(state)` shares what is shared.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> None:
        self._tensors = checkpoint.tensors
        self._dtype = dtype
        self._handles = FileHandles()
        self._owner = {name: tie.names[0] for tie in checkpoint.ties for name in tie.names}
        self._alive: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()

    def __getitem__(self, name: str) -> torch.Tensor:
        owner = self._owner.get(name, name)
        found = self._alive.get(owner)
        if found is None:
            found = read_tensor(self._tensors[owner if owner in self._tensors else name], self._handles, self._dtype)
            self._alive[owner] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __repr__(self) -> str:
        return f"StateDict({len(self)} tensors, read on demand)"


def state_dict(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    tag: str | None = None,
    part: str | None = None,
) -> StateDict:
    """The weights of any readable checkpoint as a lazily read state dict.

    Args:
        path: a checkpoint: a folder, a file, or with `more` the folders of one checkpoint.
        more: further folders of the same checkpoint.
        dtype: cast float64, float32, bfloat16 and float16 tensors to this; everything else stays as stored.
        tag: a step such as `global_step10`; default: what `latest` says.
        part: a component such as `ema`; default: the model.

    Raises:
        ShardyardError: not a checkpoint, several qualify, incomplete or damaged.
    """
    checkpoint = open_checkpoint([Path(path), *map(Path, more)], OpenOptions(tag=tag, part=part))
    if part is not None:
        if part not in checkpoint.parts:
            raise UsageError(f"There is no part {part}; there are: {', '.join(checkpoint.parts)}.", path=str(path))
        checkpoint.part = part
    if checkpoint.part is None:
        raise AmbiguousError("Several parts qualify; choose one with part=.", list(checkpoint.parts), path=str(path))
    blocking = next((f for f in checkpoint.findings if f.blocks is not Blocks.NOTHING), None)
    if blocking is not None or checkpoint.merge_note:
        message = blocking.message if blocking is not None else checkpoint.merge_note
        code = blocking.code if blocking is not None else "unsupported"
        raise IncompleteError(message, code=code, path=str(path))
    return StateDict(checkpoint, torch_dtype(dtype))


def load_into(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    strict: bool = True,
    tag: str | None = None,
) -> None:
    """Copy a checkpoint's weights into a model, one tensor at a time: no second copy of the model is ever in memory.

    Values are cast to the dtype of the model's own parameters.

    Raises:
        UsageError: with `strict`, names or shapes differ; nothing was copied then.
    """
    state = state_dict(path, *more, tag=tag)
    targets = model.state_dict(keep_vars=True)
    if strict:
        _check_names(state, targets)
    done: set[int] = set()
    with torch.no_grad():
        for name, target in targets.items():
            if name in state and id(target) not in done:
                target.copy_(state[name])
                done.add(id(target))


def _check_names(state: StateDict, targets: Mapping[str, torch.Tensor]) -> None:
    present = {id(target) for name, target in targets.items() if name in state}
    missing = [name for name, target in targets.items() if name not in state and id(target) not in present]
    unexpected = [name for name in state if name not in targets]
    shapes = [n for n, t in targets.items() if n in state and tuple(t.shape) != state._tensors[n].shape]
    problems = [f"{what}: {', '.join(names[:5])}" for what, names in _labelled(missing, unexpected, shapes) if names]
    if problems:
        raise UsageError(f"The checkpoint does not fit the model; {'; '.join(problems)}.")


def _labelled(missing: list[str], unexpected: list[str], shapes: list[str]) -> list[tuple[str, list[str]]]:
    return [("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)]


def torch_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype by its name (`bfloat16`, `bf16`) or as it is.

    Raises:
        UsageError: weights cannot be cast to it.
    """
    if isinstance(dtype, str):
        dtype = getattr(torch, SHORT_NAMES.get(dtype, dtype), None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError("dtype takes float32, bfloat16 or float16.")
    if dtype is not None and dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise UsageError(f"Weights are not cast to {dtype}; take float32, bfloat16 or float16.")
    return dtype


def read_tensor(tensor: Tensor, handles: FileHandles, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Read one tensor; only float64, float32, bfloat16 and float16 are cast."""
    kind = getattr(torch, tensor.dtype.name, None)
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"torch has no dtype {tensor.dtype.name}, which {tensor.name} has.", tensors=[tensor.name])
    raw = torch.empty(tensor.nbytes, dtype=torch.uint8)
    if tensor.nbytes:
        read_range(tensor, 0, tensor.nbytes, raw.numpy().data, handles)
    found = raw.view(kind).reshape(tensor.shape) if tensor.nbytes else torch.empty(tensor.shape, dtype=kind)
    return found.to(dtype) if dtype is not None and tensor.dtype.castable else found
