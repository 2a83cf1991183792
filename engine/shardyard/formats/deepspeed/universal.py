"""Universal checkpoints: `zero/<parameter>/fp32.pt`, one file a weight, and a copy of the model files.

From stages 1 and 2 `fp32.pt` is a dict whose `param` is shaped; from stage 3 a bare flat tensor, whose shape is in the model
file.  `ds_to_universal` takes aliases, buffers and frozen weights from the 16-bit weights, not from the masters: here a shared
name takes its owner's data, buffers and frozen weights come from the model file.  A source with `round_robin_gradients` was
misread by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardyard.checkpoint import CheckpointKind, FileEntry, Role, Tensor
from shardyard.errors import DamagedError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.deepspeed import frozen, split
from shardyard.formats.deepspeed.flat import Shape, layout_error
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.moments import without_data
from shardyard.formats.deepspeed.names import FileKind
from shardyard.formats.deepspeed.reading import listed
from shardyard.formats.deepspeed.step import Step, read_models
from shardyard.formats.deepspeed.weights import Stored, assemble
from shardyard.formats.deepspeed.zero import unknown
from shardyard.formats.deepspeed.zero_step import stored_names, tell_of_buffers
from shardyard.formats.folder import Entry, Folder
from shardyard.formats.pickles import lookup
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.tensors import TensorValue
from shardyard.layouts import OneRun
from shardyard.text import printable

_DEEPEST = 16


def fill(step: Step) -> None:
    """Put the parts of a universal folder together."""
    reading = step.reading
    step.kind = CheckpointKind.UNIVERSAL
    stage_3 = bool(step.files.of(FileKind.ZERO_MODEL))
    models = read_models(step, step.files.of(FileKind.ZERO_MODEL if stage_3 else FileKind.MODEL))
    model = step.model = models[min(models)] if models else None
    stored, wanted = Stored("", {}, None), dict[str, Shape]()
    if model is None:
        reading.add(
            Finding(
                "missing-metadata",
                Severity.ERROR,
                "The copy of the model file is missing or cannot be read: shapes, buffers and aliases are not known.",
                "Copy the model file of the step that this folder was made from.",
                blocks=Blocks.MERGE,
            )
        )
    else:
        step.world = (model.settings.data_ranks or 1) * max(1, model.settings.model_ranks or 1)
        stored = _stored(step, model, models, stage_3=stage_3)
        if stage_3:
            tell_of_buffers(reading, model, min(models), stored)
        wanted = _wanted([model] if stage_3 else list(models.values()))
        if not stage_3 and split.tensor_parallel(step, models) > 1:
            # The converter joined the pieces; what the model files hold are pieces still, but for buffers.
            wanted = {}
            stored.names = {n: t for n, t in stored.names.items() if stored.buffers and n in stored.buffers}
            stored.frozen = {}
        _refuse_round_robin(step, model)
    tensors, step.extra_files = _masters(step, wanted, stored)
    try:
        weights = assemble(reading, stored, tensors)
        tensors, step.ties = weights.tensors, weights.ties
    except DamagedError as error:
        reading.refuse(error)
    step.add_part("masters", tensors, model=True)
    step.part = "masters"
    step.add_lazy_part("optimizer", lambda: _moments(step))
    step.checked |= {"shapes", "ties"}


def _stored(step: Step, model: ModelFile, models: dict[int, ModelFile], *, stage_3: bool) -> Stored:
    others = [] if stage_3 else list(models.values())
    shared = {a: o for m in others or [model] for a, o in (m.shared or {}).items()}
    stored = Stored(model.file.path, stored_names(step.reading, model, 3 if stage_3 else 2), None, shared)
    if model.buffers is not None:
        stored.buffers = frozenset(b for m in others or [model] for b in m.buffers or ())
    try:
        if not stage_3:
            stored.frozen = frozen.whole(model)
        elif model.frozen:
            stored.frozen = frozen.cut([models.get(r) for r in range(model.settings.data_ranks or len(models))])
    except DamagedError as error:
        step.reading.refuse(error)
    stage = 3 if stage_3 else model.settings.stage or 2
    stored.left_out = frozen.left_out(model, stage)
    frozen.report_left_out(step.reading, model, stage)
    return stored


def _wanted(models: list[ModelFile]) -> dict[str, Shape]:
    """The trainable weights and their shapes, of all pipeline stages."""
    return {name: shape for model in models for group in model.shapes or () for name, shape in group.items()}


def _refuse_round_robin(step: Step, model: ModelFile) -> None:
    """The converter goes by `param_slice_mappings`, which are wrong when the flat order is not the module's."""
    order = {name: i for i, name in enumerate(model.module)}
    for group in model.shapes or ():
        places = [order[n] for n in group if n in order]
        if model.settings.round_robin and places != sorted(places):
            step.reading.add(
                Finding(
                    "corrupt",
                    Severity.ERROR,
                    "This folder was converted from a run with round_robin_gradients, which DeepSpeed's converter puts in the "
                    "wrong order: its weights are wrong.",
                    "Merge the step folder that it was converted from.",
                    blocks=Blocks.MERGE,
                )
            )
            return


def _weight_files(zero: Folder, file: str, above: str = "") -> Iterator[tuple[str, Entry]]:
    """(parameter, file) of all parameters' files of one name; a `/` in a parameter's name makes a folder in a folder."""
    for folder in zero.folders:
        inner = zero.sub(folder)
        entry = inner.files.get(file)
        if entry is not None:
            yield above + folder, entry
        if inner.folders and above.count("/") < _DEEPEST:
            yield from _weight_files(inner, file, f"{above}{folder}/")


def _masters(step: Step, wanted: dict[str, Shape], stored: Stored) -> tuple[dict[str, Tensor], list[FileEntry]]:
    """The weights of `zero/`; buffers, frozen weights and aliases in it are the converter's 16-bit copies and not used."""
    reading = step.reading
    zero = step.files.folder.sub("zero")
    tensors: dict[str, Tensor] = {}
    entries: list[FileEntry] = []
    reading.to_read = reading.done + len(wanted)
    for name, entry in _weight_files(zero, "fp32.pt"):
        path = f"zero/{name}/fp32.pt"
        entries.append(FileEntry(reading.prefix + path, entry.nbytes, "masters+optimizer"))
        used = name in wanted or (not wanted and name not in (stored.buffers or ()) and name not in stored.shared)
        if not used:
            continue
        opened = reading.open(Entry(path, entry.path, entry.is_dir, entry.is_file, entry.nbytes, entry.mtime))
        if opened is None:
            continue
        try:
            value = lookup(opened.root, "param", opened.root)
            if not isinstance(value, TensorValue):
                raise layout_error(f"{printable(path)} holds no tensor.", entry.path)
            tensors[name] = _shaped(opened.tensor(name, value, Role.MASTER), wanted.get(name), path)
        except DamagedError as error:
            reading.refuse(error, path)
    lost = {n: s for n, s in wanted.items() if n not in tensors}
    if lost:
        reading.add(
            Finding(
                "missing-tensor",
                Severity.ERROR,
                f"{len(lost)} of {len(wanted)} weights have no fp32.pt that can be read: {listed(list(lost), 3)}.",
                "Convert the step again, or copy the missing folders.",
                tensors=tuple(lost),
                paths=tuple(f"zero/{n}/fp32.pt" for n in list(lost)[:20]),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
        tensors |= unknown([lost], "its fp32.pt is not here")
    return tensors, entries


def _shaped(tensor: Tensor, shape: Shape | None, path: str) -> Tensor:
    """The tensor in the shape that the model file gives it: stage 3 leaves flat ones, 0-dim ones come as one element."""
    tensor.trainable = True
    if shape is None or tensor.shape == shape:
        return tensor
    if tensor.numel != math.prod(shape) or not isinstance(tensor.layout, OneRun):
        raise layout_error(
            f"{printable(path)} has the shape {list(tensor.shape)} where the model file says {list(shape)}.", tensor.files[0]
        )
    return Tensor(tensor.name, tensor.dtype, shape, tensor.layout, tensor.role, trainable=True)


def _moments(step: Step) -> dict[str, Tensor]:
    zero = step.files.folder.sub("zero")
    found: dict[str, Tensor] = {}
    for key in ("exp_avg", "exp_avg_sq"):
        for weight, entry in _weight_files(zero, f"{key}.pt"):
            tensor = _moment(step, f"{weight}.{key}", entry, like=step.parts["masters"].tensors.get(weight))
            if tensor is not None:
                found[tensor.name] = tensor
    return found


def _moment(step: Step, name: str, entry: Entry, like: Tensor | None) -> Tensor | None:
    try:
        opened = open_torch(step.reading.options.handles, entry.path)
        value = lookup(opened.root, "param", opened.root)
        return opened.tensor(name, value, Role.OPTIMIZER) if isinstance(value, TensorValue) else None
    except DamagedError as error:
        step.reading.add(Finding(error.code, Severity.WARNING, f"{printable(name, 80)}: {error.message}", nbytes=entry.nbytes))
        return without_data(name, like, error)
