"""What health, reports and the app count alike: tensors of the model, parameters, bytes by use, ties."""

from __future__ import annotations

from collections.abc import Iterable

from shardyard.checkpoint import Checkpoint, Part, Role, Tensor
from shardyard.dtypes import Kind
from shardyard.formats.folder import Folder
from shardyard.formats.side_files import side_files

FLOAT4 = "float4_e2m1fn_x2"


def model_part(checkpoint: Checkpoint) -> Part | None:
    """The part that the checkpoint is about: the default, else the largest whole model in it."""
    if checkpoint.part is not None:
        return checkpoint.parts[checkpoint.part]
    models = [p for p in checkpoint.parts.values() if p.model]
    return max(models, key=lambda p: sum(t.nbytes for t in p.tensors.values()), default=None)


def model_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors of `model_part`; of all parts where none is a model (an optimizer alone)."""
    part = model_part(checkpoint)
    if part is not None:
        return part.tensors
    return {f"{p.name}.{n}": t for p in checkpoint.parts.values() for n, t in p.tensors.items()}


def all_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's tensors by their own names, then those of other parts under the part's name."""
    found = dict(model_tensors(checkpoint))
    model = model_part(checkpoint)
    if model is None:
        return found
    seen = {id(t) for t in found.values()}
    for part in checkpoint.parts.values():
        if part is model:
            continue
        for name, tensor in part.tensors.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found.setdefault(f"{part.name}.{name}", tensor)
    return found


def known(tensor: Tensor) -> bool:
    """Whether dtype and shape are known (not so for tensors of a missing shard)."""
    return tensor.layout is not None or tensor.dtype.name != "unknown"


def tied_groups(checkpoint: Checkpoint) -> list[tuple[str, ...]]:
    """Groups of the model's names that are one tensor, the owner first; what config.json only declares is not among them."""
    names = model_tensors(checkpoint)
    groups: dict[str, tuple[str, ...]] = {}
    for tie in checkpoint.ties:
        present = tuple(n for n in tie.names if n in names)
        if tie.source != "config" and len(present) > 1:
            groups.setdefault(present[0], present)
    return list(groups.values())


def once(checkpoint: Checkpoint) -> Iterable[Tensor]:
    """The model's tensors, tied ones once."""
    dropped = {name for group in tied_groups(checkpoint) for name in group[1:]}
    return (t for n, t in model_tensors(checkpoint).items() if n not in dropped)


def parameters(checkpoint: Checkpoint) -> int:
    """Elements of the model's weights, tied ones counted once, buffers not."""
    return sum(elements(t) for t in once(checkpoint) if known(t) and t.role is not Role.BUFFER)


def elements(tensor: Tensor) -> int:
    """Values that a tensor holds: torch counts two 4-bit values as one."""
    return tensor.numel * (2 if tensor.dtype.name == FLOAT4 else 1)


def bytes_by_use(checkpoint: Checkpoint) -> dict[str, int]:
    """Where the bytes are."""
    usage = checkpoint.usage
    return {
        "files": sum(f.nbytes for f in checkpoint.files),
        "weights": usage.weights,
        "masters": usage.masters,
        "optimizer": usage.optimizer,
        "other": usage.other,
        "wasted": usage.wasted,
    }


def floating_bytes(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes of the model's floating-point tensors by dtype, tied ones once."""
    found: dict[str, int] = {}
    for tensor in once(checkpoint):
        if tensor.dtype.kind is Kind.FLOAT and known(tensor):
            found[tensor.dtype.name] = found.get(tensor.dtype.name, 0) + tensor.nbytes
    return found


def side_names(folder: Folder) -> frozenset[str]:
    """Names of the files that go with the weights of a folder."""
    return frozenset(f.path for f in side_files(folder))


def is_model(checkpoint: Checkpoint) -> bool:
    """Whether it holds a set of weights at all."""
    return model_part(checkpoint) is not None
