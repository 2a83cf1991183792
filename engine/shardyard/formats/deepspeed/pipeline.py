"""Pipeline steps: weights by layer, masters by stage.

Layer files hold bare state dicts; a parameter's full name is `<layer>.<name>`, or `tied_modules.<key>.<name>` for a layer that is
used twice.  Every stage (MM) has its own shapes and its own data ranks; a tied weight is in each stage that uses it, with equal
values: one copy is read, the others are checked.  Layers without weights have no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardyard.checkpoint import CheckpointKind, Role, Tensor, Tie
from shardyard.errors import DamagedError
from shardyard.findings import Finding, Severity
from shardyard.formats.deepspeed import frozen
from shardyard.formats.deepspeed.flat import layout_error
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.moments import moments
from shardyard.formats.deepspeed.names import FileKind
from shardyard.formats.deepspeed.ranks import load_ranks
from shardyard.formats.deepspeed.reading import are, listed, numbered
from shardyard.formats.deepspeed.state_dicts import read_state_dict
from shardyard.formats.deepspeed.step import Step
from shardyard.formats.deepspeed.weights import Stored, assemble, same_views
from shardyard.formats.deepspeed.zero_step import rebuild
from shardyard.formats.pickles import lookup, pairs, sequence
from shardyard.formats.torch.tensors import TensorValue
from shardyard.text import printable

Layers = dict[int, dict[str, Tensor]]
TIED = "tied_modules."


def fill(step: Step, models: dict[int, ModelFile]) -> None:
    """Put the parts of a pipeline step together."""
    step.kind = CheckpointKind.PIPELINE
    reading = step.reading
    stages = stage_ranks(step, models)
    layers = read_layers(step)
    data_ranks = max((m.settings.data_ranks or 1 for m in models.values()), default=1)
    if any(m.shapes is not None for m in models.values()) or not models:
        masters = _masters(step, models, stages)
        data_ranks = max((r.world for r in step.rank_sets), default=data_ranks)
        _report_missing_layers(step, layers, masters)
        try:
            stored = stored_layers(models, layers, masters)
            weights = assemble(reading, stored, masters)
            step.ties = weights.ties
            step.add_part("masters", weights.tensors, model=True)
        except DamagedError as error:
            reading.refuse(error)
            step.add_part("masters", masters, model=True)
        step.part = "masters"
        step.add_part("module", _plain(models, layers), model=True)
        _add_moments(step)
    else:
        tensors = _plain(models, layers)
        _report_unmatched_weights(step, models, layers)
        if step.files.of(FileKind.OPTIMIZER):
            # Without ZeRO a bf16 pipeline still writes optimizer files, and no shapes to read their masters by.
            text = "The optimizer files hold fp32 masters too, without names and shapes; what is read are the 16-bit weights."
            reading.add(Finding("masters-unnamed", Severity.INFO, text))
        step.ties = [Tie(tuple(names), "storage") for names in same_views(tensors)]
        step.add_part("model", tensors, model=True)
        step.part = "model"
    step.world = data_ranks * max(len(stages), 1)
    step.checked |= {"ranks", "shapes", "ties"}


def stage_ranks(step: Step, models: dict[int, ModelFile]) -> range:
    """All stages that the run had, with a finding for those whose model file is not here."""
    said = max((m.settings.model_ranks or 0 for m in models.values()), default=0)
    stages = range(max(said, max(step.files.model_ranks(), default=-1) + 1))
    there = {f.model_rank for f in step.files.of(FileKind.MODEL)}
    missing = [s for s in stages if s not in there]
    if missing:
        names = [f"mp_rank_{s:02d}_model_states.pt" for s in missing]
        message = f"The model files of pipeline {numbered('stage', missing)} of {len(stages)} are not here: {listed(names)}."
        step.reading.missing("missing-rank", message, names)
    return stages


def read_layers(step: Step) -> Layers:
    """The tensors of all layer files, by layer and bare name."""
    found: Layers = {}
    for file in step.files.of(FileKind.LAYER):
        opened = step.reading.open(file.entry)
        if opened is None:
            continue
        try:
            values = read_state_dict(opened.root, opened).tensors
            found[file.layer] = {n: opened.tensor(f"{file.layer}.{n}", v) for n, v in values.items()}
        except DamagedError as error:
            step.reading.refuse(error, file.name)
    return found


def _masters(step: Step, models: dict[int, ModelFile], stages: Iterable[int]) -> dict[str, Tensor]:
    """The masters of all stages; a name that several stages hold has replicas."""
    found: dict[str, Tensor] = {}
    for stage in stages:
        files = [f for f in step.files.of(FileKind.OPTIMIZER) if f.model_rank == stage]
        model = models.get(stage)
        said = model.settings.data_ranks if model is not None else None
        ranks = load_ranks(step.reading, files, stage, said, bf16=model is not None and model.settings.bf16)
        step.rank_sets.append(ranks)
        shapes = model.shapes if model is not None else None
        step.shapes.append(shapes or [])
        for name, tensor in (rebuild(step.reading, ranks, shapes) if shapes is not None else {}).items():
            other = found.get(name)
            if other is None or other.layout is None:
                found[name] = tensor
            elif other.shape != tensor.shape:
                error = layout_error(f"{printable(name, 80)} has two shapes in two pipeline stages.", None)
                step.reading.refuse(error, files[0].name if files else "")
            elif tensor.layout is not None:
                found[name] = replace(other, replicas=(*other.replicas, tensor.layout))
    return found


def _add_moments(step: Step) -> None:
    """The moments of all stages, when asked for."""
    handles, sources = step.reading.options.handles, list(zip(step.rank_sets, step.shapes, strict=True))
    step.add_lazy_part("optimizer", lambda: {n: t for r, s in sources for n, t in moments(handles, r, s).items()})


def stored_layers(models: dict[int, ModelFile], layers: Layers, masters: dict[str, Tensor]) -> Stored:
    """The layer files' tensors under the names that the whole module gives them.

    Raises:
        DamagedError: a recorded frozen weight has no data.
    """
    path = next((m.file.path for m in models.values()), "")
    buffers = {b for m in models.values() for b in m.buffers or ()}
    tied: dict[str, list[str]] = {}
    for name in [*masters, *buffers]:
        if name.startswith(TIED) and name.count(".") >= 2:
            tied.setdefault(name.split(".", 2)[2], []).append(name)
    names: dict[str, Tensor | None] = {}
    for layer, tensors in sorted(layers.items()):
        for bare, tensor in tensors.items():
            name = f"{layer}.{bare}"
            owners = [] if name in masters or name in buffers else _owners(tied.get(bare, ()), masters, tensor)
            if not owners:
                names[name] = tensor
            elif len(owners) == 1:
                known = names.get(owners[0])
                layouts = (tensor.layout,) if tensor.layout is not None else ()
                copy = replace(tensor, name=owners[0]) if known is None else replace(known, replicas=(*known.replicas, *layouts))
                names[owners[0]] = copy
    whole = {n: t for m in models.values() for n, t in frozen.whole(m).items()}
    shared = {a: o for m in models.values() for a, o in (m.shared or {}).items()}
    return Stored(path, names, frozenset(buffers), shared, whole)


def _owners(candidates: Sequence[str], masters: dict[str, Tensor], tensor: Tensor) -> list[str]:
    """Tied weights that a layer file's tensor can be a copy of."""
    return [c for c in candidates if c not in masters or masters[c].shape == tensor.shape]


def _plain(models: dict[int, ModelFile], layers: Layers) -> dict[str, Tensor]:
    """What the layer files hold, as `<layer>.<name>`."""
    buffers = {b for m in models.values() for b in m.buffers or ()}
    found = {}
    for tensors in (layers[i] for i in sorted(layers)):
        for tensor in tensors.values():
            found[tensor.name] = replace(tensor, role=Role.BUFFER) if tensor.name in buffers else tensor
    return found


def _report_missing_layers(step: Step, layers: Layers, masters: dict[str, Tensor]) -> None:
    """Layers that have masters and no file: buffers and frozen weights in it would be lost unseen."""
    numbers = {int(head) for name in masters if (head := name.partition(".")[0]).isdigit() and head.isascii()}
    there = {f.layer for f in step.files.of(FileKind.LAYER)}
    missing = sorted(numbers - there)
    if missing:
        _missing_layers(step, [_layer_name(step, n) for n in missing])


def _missing_layers(step: Step, names: Sequence[str]) -> None:
    message = f"{listed(names)} {are(names)} not here: buffers and frozen weights of the layer would be missing."
    step.reading.missing("missing-shard", message, names)


def _layer_name(step: Step, layer: int) -> str:
    files = step.files.of(FileKind.LAYER)
    middle = "-model_00" if files and files[0].model_rank >= 0 else ""
    return f"layer_{layer:02d}{middle}-model_states.pt"


def _report_unmatched_weights(step: Step, models: dict[int, ModelFile], layers: Layers) -> None:
    """Without ZeRO nothing names the layers; the optimizer's moments have the weights' shapes, so weights without file show.

    A weight that two stages share has moments in both and one file: it stands at the head of its stages.
    """
    files = Counter(t.shape for tensors in layers.values() for t in tensors.values())
    heads: Counter[tuple[int, ...]] = Counter()
    unmatched: list[tuple[int, ...]] = []
    for model in reversed(list(models.values())):
        shapes = _moment_shapes(model)
        left = []
        for shape in reversed(shapes):
            if files[shape]:
                files[shape] -= 1
            else:
                left.append(shape)
        unmatched += left
        heads.update(set(shapes[: max(len(left), 1)]))
    if any(heads[shape] < 2 for shape in unmatched):
        _missing_layers(step, ["a layer file"])


def _moment_shapes(model: ModelFile) -> list[tuple[int, ...]]:
    """The shapes of the trainable weights of a stage, in their order, as its masters or moments have them."""
    groups = sequence(lookup(model.optimizer, "fp32_groups"))
    if groups is not None:
        return [v.shape for g in groups for v in sequence(g) or () if isinstance(v, TensorValue)]
    state = lookup(model.optimizer, "optimizer_state_dict", model.optimizer)
    found = []
    for _, values in pairs(lookup(state, "state")) or ():
        moment = lookup(values, "exp_avg")
        if isinstance(moment, TensorValue):
            found.append(moment.shape)
    return found
