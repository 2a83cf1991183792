"""Frozen weights: whole at stage 2, cut over the model files of all ranks at stage 3, and whether they were left out on purpose.

They are of the run's 16-bit type, not fp32.  At stage 1 nothing is recorded and they are only under `module`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from shardyard.checkpoint import Role, Tensor
from shardyard.findings import Finding, Severity
from shardyard.formats.deepspeed.flat import Columns, FlatVector, flat_vector, layout_error, share
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.reading import Reading, listed, ranges
from shardyard.layouts import Runs
from shardyard.text import printable


def whole(model: ModelFile) -> dict[str, Tensor]:
    """Frozen weights of a stage-2 model file, and trainable weights without elements, which are recorded with them.

    Raises:
        DamagedError: a recorded weight has no fragment of its shape.
    """
    found: dict[str, Tensor] = {}
    for name, shape in (model.frozen or {}).items():
        value = model.fragments.get(name)
        if value is None or value.shape != shape:
            raise layout_error(
                f"{printable(model.name)}: the frozen {printable(name, 80)} is not stored in its shape.", model.file.path
            )
        found[name] = model.file.tensor(name, value, Role.WEIGHT)
        found[name].trainable = False if found[name].numel else None
    return found


def cut(models: Sequence[ModelFile | None]) -> dict[str, Tensor]:
    """Frozen weights of stage 3, joined from the model files of all ranks; None for a file that is not here.

    Raises:
        DamagedError: the pieces are not of the sizes that stage 3 makes.
    """
    first = next((m for m in models if m is not None), None)
    if first is None or not first.frozen:
        return {}
    absent = ranges([r for r, m in enumerate(models) if m is None])
    found: dict[str, Tensor] = {}
    for name, shape in first.frozen.items():
        numel = math.prod(shape)
        value = first.fragments.get(name)
        if value is None:
            raise layout_error(f"{printable(first.name)}: the frozen {printable(name, 80)} has no piece.", first.file.path)
        if numel == 0:
            found[name] = Tensor(name, value.dtype, shape, Runs([], 0))
            continue
        layout = Columns([_piece(m, name, share(numel, len(models)), first) for m in models]).layout(0, numel, value.dtype)
        note = "" if layout is not None else f"needs the model file of rank {absent}, which is not here"
        found[name] = Tensor(name, value.dtype, shape, layout, trainable=False, note=note)
    return found


def _piece(model: ModelFile | None, name: str, per: int, first: ModelFile) -> FlatVector | None:
    if model is None:
        return None
    where = f"{printable(model.name)}: the frozen {printable(name, 80)}"
    if name not in model.fragments:
        raise layout_error(f"{where} has no piece.", model.file.path)
    piece = flat_vector(model.file, model.fragments[name], f"the frozen {printable(name, 80)}")
    if piece.numel != per:
        raise layout_error(f"{where} has {piece.numel} elements on this rank where {per} are due.", model.file.path)
    weights = model.module.get(name)
    if piece.dtype != first.fragments[name].dtype or (weights is not None and weights.dtype != piece.dtype):
        raise layout_error(f"{where} is stored in another type than the model's.", model.file.path)
    return piece


def left_out(model: ModelFile, stage: int) -> bool:
    """Whether the run saved without its frozen weights, as far as it is recorded: from stage 2 on."""
    return stage >= 2 and model.frozen_recorded and model.frozen is None


def report_left_out(reading: Reading, model: ModelFile, stage: int) -> None:
    """Say so when the run saved without its frozen weights (`exclude_frozen_parameters`).

    From stage 2 on a recorded None tells.  At stage 1 that is always None: there a module that has a bias and no weight, or lacks
    what its like in other layers have, is a likely sign.
    """
    if left_out(model, stage):
        signs: list[str] = []
    elif stage == 1 and model.frozen_recorded and model.module_stored:
        signs = _gaps([n for n in model.module if n not in (model.buffers or ())], model.modules)
        if not signs:
            return
    else:
        return
    likely = f" ({listed(signs)} {'lacks' if len(signs) == 1 else 'lack'} a weight)" if signs else ""
    reading.add(
        Finding(
            "partial",
            Severity.INFO,
            f"This step was saved without its frozen weights{likely}: what is here are the trained ones.",
            "Load them over the base model that the run started from.",
            paths=(model.name,),
            sure=not signs,
        )
    )


def _gaps(names: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Modules that seem to lack parameters: a bias without a weight, an adapter's base layer without any, or less than the same
    module has in other layers.
    """
    members: dict[str, set[str]] = defaultdict(set)
    for name in names:
        path, _, leaf = name.rpartition(".")
        members[path].add(leaf)
    alike: dict[str, set[str]] = defaultdict(set)
    named = [m for m in modules if m and not m.rpartition(".")[2].isdigit()]
    for path in named:
        alike[re.sub(r"\d+", "#", path)] |= members.get(path, set())
    return [
        path
        for path in named
        if ("bias" in members.get(path, set()) and "weight" not in members[path])
        or (path.endswith(".base_layer") and path not in members)
        or alike[re.sub(r"\d+", "#", path)] - members.get(path, set())
    ]
