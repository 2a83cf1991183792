"""Gathering a model that is being trained: DeepSpeed ZeRO 1 to 3, FSDP 1 and 2, or a plain module, onto rank 0.

Every rank must call it: gathering is collective.  One parameter is whole at a time; only rank 0 keeps it, on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from shardyard.torch.loading import torch_dtype
from shardyard.torch.saving import save


def consolidate(
    model: Any,
    *,
    dtype: torch.dtype | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    max_shard_size: str | int | None = "5GB",
) -> dict[str, torch.Tensor] | None:
    """The whole state dict of a live model, on rank 0; None on the other ranks.

    Trained parameters of a DeepSpeed ZeRO engine are taken from the fp32 masters, frozen ones as they are; persistent buffers
    are included; shared parameters stay one tensor under all their names.

    Args:
        model: a DeepSpeed engine, an FSDP model, or any module.
        dtype: cast floating parameters to this; default: as they are kept (fp32 masters are fp32).
        folder: write there (rank 0) instead of returning the tensors.
        max_shard_size: for `folder`, as in `save`.
    """
    kind = torch_dtype(dtype)
    rank = torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else 0
    found: dict[str, torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}
    for name, key, gather, is_parameter in _plan(model):
        if key not in copies:
            whole = gather()
            if rank == 0:
                copies[key] = _on_cpu(whole, kind if is_parameter else None)
            else:
                copies[key] = _NOTHING
            del whole
        if rank == 0:
            found[name] = copies[key]
    if rank != 0:
        _wait_for_rank_0(folder)
        return None
    if folder is None:
        return found
    save(found, folder, max_shard_size=max_shard_size)
    _wait_for_rank_0(folder)
    return {}


_NOTHING = torch.empty(0)
_Step = tuple[str, int, Callable[[], torch.Tensor], bool]


def _wait_for_rank_0(folder: object) -> None:
    if folder is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _on_cpu(whole: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    castable = whole.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    target = dtype if dtype is not None and castable else whole.dtype
    # A copy even where nothing changes: the gathered tensor is about to be taken apart again.
    return whole.detach().to(device="cpu", dtype=target, copy=True).contiguous()


def _plan(model: Any) -> Iterator[_Step]:
    """Names, identities and gatherers, the same on every rank and in the same order."""
    if hasattr(model, "zero_optimization_stage"):
        yield from _deepspeed_plan(model)
    elif _is_fsdp1(model):
        yield from _fsdp1_plan(model)
    elif isinstance(model, nn.Module):
        yield from _module_plan(model)
    else:
        raise TypeError(f"consolidate takes a module or an engine, not {type(model).__name__}")


def _module_plan(model: nn.Module) -> Iterator[_Step]:
    """FSDP 2 and plain modules: parameters are DTensors or whole."""
    parameters = {id(p) for p in model.parameters()}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            yield _clean(name), id(value), partial(_whole, value), id(value) in parameters


def _whole(value: torch.Tensor) -> torch.Tensor:
    full = getattr(value, "full_tensor", None)
    return full() if full is not None else value


def _clean(name: str) -> str:
    for part in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(part, "")
    return name


def _is_fsdp1(model: Any) -> bool:
    fsdp = getattr(torch.distributed, "fsdp", None)
    if fsdp is None or not isinstance(model, nn.Module):
        return False
    return any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules())


def _fsdp1_plan(model: nn.Module) -> Iterator[_Step]:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType

    tied = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        state = model.state_dict()
    clean_ids = {_clean(name): key for name, key in tied.items()}
    for name, value in state.items():
        key = clean_ids.get(_clean(name), id(value))
        yield _clean(name), key, partial(_whole_sharded, value), _clean(name) in clean_ids


def _whole_sharded(value: Any) -> torch.Tensor:
    if not hasattr(value, "local_shards"):
        return _whole(value)
    # ShardedTensor gathers to one rank; the others get an empty stand-in.
    whole = torch.empty(value.size(), dtype=value.dtype) if torch.distributed.get_rank() == 0 else None
    value.gather(dst=0, out=whole)
    return whole if whole is not None else _NOTHING


def _deepspeed_plan(engine: Any) -> Iterator[_Step]:
    module: nn.Module = engine.module
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, id(parameter), partial(_deepspeed_parameter, parameter), True
    kept = set(module.state_dict(keep_vars=True))
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in kept:
            yield name, id(buffer), partial(_whole, buffer), False


def _deepspeed_parameter(parameter: Any) -> torch.Tensor:
    """The fp32 master where there is one, else the parameter itself, gathered under ZeRO-3."""
    from deepspeed import zero
    from deepspeed.utils import safe_get_full_fp32_param

    shape = getattr(parameter, "ds_shape", parameter.shape)
    numel = getattr(parameter, "ds_numel", parameter.numel())
    if parameter.requires_grad and numel:
        master = safe_get_full_fp32_param(parameter)
        if master is not None:
            return torch.as_tensor(master).reshape(shape)
    if hasattr(parameter, "ds_id"):
        with zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return torch.as_tensor(parameter)
