"""A ZeRO step without pipeline: stages 1 to 3, every version, with or without experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardyard.checkpoint import CheckpointKind, Tensor
from shardyard.errors import DamagedError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.deepspeed import frozen, moe
from shardyard.formats.deepspeed.flat import layout_error
from shardyard.formats.deepspeed.model_file import ModelFile, Shapes
from shardyard.formats.deepspeed.moments import moments
from shardyard.formats.deepspeed.names import FileKind, StepFile
from shardyard.formats.deepspeed.optimizer_file import OptimizerFile
from shardyard.formats.deepspeed.ranks import RankSet, check_model_files, load_ranks
from shardyard.formats.deepspeed.reading import Reading, are, listed
from shardyard.formats.deepspeed.step import Step, read_models
from shardyard.formats.deepspeed.weights import Stored, assemble
from shardyard.formats.deepspeed.zero import Rename, masters, starts, unknown
from shardyard.text import printable

STAGES = {1: CheckpointKind.ZERO1, 2: CheckpointKind.ZERO2, 3: CheckpointKind.ZERO3}


def fill(step: Step, model: ModelFile | None) -> None:
    """Put the step's parts together from its optimizer files and, if there is one, its model file."""
    reading = step.reading
    said = model.settings.data_ranks if model is not None else None
    model_rank = min(step.files.model_ranks(), default=0)
    files = [f for f in step.files.of(FileKind.OPTIMIZER) if f.model_rank == model_rank]
    ranks = load_ranks(reading, files, model_rank, said, bf16=model is not None and model.settings.bf16)
    step.rank_sets.append(ranks)
    step.world = ranks.world
    stage = stage_of(step, model, ranks)
    step.kind = STAGES[stage]
    known = _shapes(reading, model, ranks)
    shapes = known or []
    stored = _stored(step, model, ranks, stage)
    rename = None
    if model is not None and step.files.of(FileKind.EXPERT):
        step.kind = CheckpointKind.MOE
        if stage == 3:
            reading.refuse(layout_error("Expert files beside ZeRO-3 are a layout that is not known.", model.file.path))
        moe.add_experts(step, model, stored)
        rename = moe.renamer(model, shapes)
    rebuilt = rebuild(reading, ranks, shapes, rename, model) if known is not None else {}
    if stage == 3:
        # Small weights may stay whole on every rank (`param_persistence_threshold`): the masters are the truth.
        stored.names = {n: None if n in rebuilt else t for n, t in stored.names.items()}
    try:
        weights = assemble(reading, stored, rebuilt)
    except DamagedError as error:
        reading.refuse(error)
        weights = assemble(reading, Stored(stored.path, {}, stored.buffers), rebuilt)
    step.add_part("masters", weights.tensors, model=True)
    step.ties = weights.ties
    step.part = "masters"
    if stage < 3 and any(stored.names.values()):
        step.add_part("module", stored.tensors(), model=True)
        reading.findings[:] = [_offer_copy(f) for f in reading.findings]
    step.add_lazy_part("optimizer", partial(moments, reading.options.handles, ranks, shapes, rename))
    step.checked |= {"ranks", "shapes", "ties"}


def _offer_copy(finding: Finding) -> Finding:
    """Where masters are lost, the whole 16-bit weights may be what somebody wants."""
    if finding.blocks is not Blocks.UNLESS_ALLOWED or not about_optimizer(finding):
        return finding
    offer = "The 16-bit weights are here: merge them with --part module."
    return finding if offer in finding.remedy else replace(finding, remedy=f"{finding.remedy} {offer}".strip())


def about_optimizer(finding: Finding) -> bool:
    """Whether a finding is about optimizer files alone, which the 16-bit weights do not need."""
    return bool(finding.paths) and all("optim_states" in p for p in finding.paths)


def stage_of(step: Step, model: ModelFile | None, ranks: RankSet) -> int:
    """The stage: by the optimizer files, between 1 and 2 by the run's config, which version 0.5 needs."""
    said = model.settings.stage if model is not None else None
    stage = ranks.first.stage if ranks.first is not None else 0
    if stage == 3 or (not stage and (said == 3 or step.files.of(FileKind.ZERO_MODEL))):
        return 3
    return said if said in (1, 2) else stage or 1


def _shapes(reading: Reading, model: ModelFile | None, ranks: RankSet) -> list[Shapes] | None:
    """`param_shapes`, from where the version keeps it; None, with a finding, where the folder does not have it."""
    first = ranks.first
    if model is not None and model.shapes is not None:
        return model.shapes
    if first is not None and first.shapes is not None:
        return first.shapes
    reading.add(
        Finding(
            "missing-metadata",
            Severity.ERROR,
            "The names and shapes of the weights are not here: the model file of rank 0 is missing or cannot be read."
            if model is None
            else f"{model.name} does not record the shapes of the weights.",
            "Add the model file, mp_rank_00_model_states.pt (ZeRO-3: zero_pp_rank_0_mp_rank_00_model_states.pt).",
            paths=(model.name if model is not None else "mp_rank_00_model_states.pt",),
            blocks=Blocks.MERGE,
        )
    )
    return None


def check_order(model: ModelFile, first: OptimizerFile, shapes: list[Shapes]) -> None:
    """Compare the walk with the 16-bit weights, which are views of one vector a group, laid out as the masters are.

    Raises:
        DamagedError: a weight lies elsewhere than the walk says: order or gaps are not what the files record.
    """
    for group, names in enumerate(shapes):
        places, total = starts(names, first, group)
        origins: dict[str, int] = {}
        for name, place in zip(names, places, strict=True):
            value = model.module.get(name)
            if value is None or value.storage is None or value.storage.numel < total or 0 in value.shape:
                continue
            origin = value.offset - place
            if origins.setdefault(value.storage.key, origin) != origin:
                raise layout_error(
                    f"{printable(model.name)}: {printable(name, 80)} lies elsewhere in the 16-bit vector than in the masters', "
                    "whose order is therefore not known.",
                    model.file.path,
                )


def rebuild(
    reading: Reading, ranks: RankSet, shapes: list[Shapes], rename: Rename | None = None, model: ModelFile | None = None
) -> dict[str, Tensor]:
    """The masters; where their layout is not known, names without data and a finding that says why."""
    first = ranks.first
    if first is not None and first.single_dict and len(first.groups) > 1 and (first.stage < 3 or first.base_groups != 1):
        # One dict in module order over all groups: 0.3.16's own script returns wrong weights here.
        reading.add(
            Finding(
                "missing-metadata",
                Severity.ERROR,
                f"This version of DeepSpeed does not store which weights are in which of its {len(first.groups)} optimizer "
                "groups, so their masters cannot be told apart.",
                "" if first.stage < 3 else "Load the step with that version and save the weights.",
                paths=(first.name,),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
        return unknown(shapes, "which optimizer group it is in is not stored")
    try:
        found = masters(ranks, shapes, rename)
        if model is not None and first is not None and first.stage < 3:
            check_order(model, first, shapes)
        return found
    except DamagedError as error:
        reading.refuse(error)
        return unknown(shapes, "its place in the flat vectors is not known")


def _stored(step: Step, model: ModelFile | None, ranks: RankSet, stage: int) -> Stored:
    """What the model files hold; at stage 3 with frozen weights, those of all ranks."""
    reading = step.reading
    zero_files = step.files.of(FileKind.ZERO_MODEL)
    if stage == 3:
        check_model_files(reading, zero_files, ranks.world)
    if model is None:
        if stage < 3 and ranks.first is not None and ranks.first.shapes is not None:
            lost = "mp_rank_00_model_states.pt"
            text = f"{lost} is missing or cannot be read: buffers, frozen weights and ties are not known."
            reading.missing("missing-metadata", text, [lost])
        return Stored("", {}, None)
    if not model.module_stored:
        reading.missing("missing-metadata", f"{printable(model.name)} has no `module`: other names are not known.", [model.name])
    found = Stored(
        model.file.path, stored_names(reading, model, stage), frozenset(model.buffers) if model.buffers is not None else None
    )
    found.shared = model.shared or {}
    found.left_out = frozen.left_out(model, stage)
    frozen.report_left_out(reading, model, stage)
    others = [f for f in zero_files if f.name != model.name and f.data_rank < ranks.world]
    try:
        if stage < 3:
            found.frozen = frozen.whole(model)
        elif model.frozen:
            found.frozen = frozen.cut(_all_models(step, model, others, ranks.world))
    except DamagedError as error:
        reading.refuse(error)
    if stage == 3:
        _check_others(step, model, others, found)
    return found


def _check_others(step: Step, model: ModelFile, others: list[StepFile], stored: Stored) -> None:
    """The other stage-3 model files: part of a whole step also where nothing is needed from them."""
    first = next((f.data_rank for f in step.files.of(FileKind.ZERO_MODEL) if f.name == model.name), 0)
    if not model.frozen:
        # Those before the first that can be read were tried and told of.
        for file in others:
            if file.data_rank > first:
                step.reading.check(file.entry)
    tell_of_buffers(step.reading, model, first, stored)


def tell_of_buffers(reading: Reading, model: ModelFile, rank: int, stored: Stored) -> None:
    """Each rank has buffers of its own; rank 0's are meant. Each of another rank's is marked so."""
    buffers = [name for name in model.buffers or () if stored.names.get(name) is not None]
    if not rank or not buffers:
        return
    reading.add(
        Finding(
            "missing-metadata",
            Severity.WARNING,
            f"Buffers are those of rank {rank} ({printable(model.name)}), since the file of rank 0 cannot be read; what a rank "
            f"gathers by itself, such as running means, differs from rank to rank: {listed(buffers)}.",
            "Add the model file of rank 0, or take the buffers from another step.",
            paths=(model.name,),
            tensors=tuple(buffers),
        )
    )
    for name in buffers:
        tensor = stored.names[name]
        stored.names[name] = tensor and replace(tensor, note=f"a buffer of rank {rank}, which may differ from rank 0's")


def stored_names(reading: Reading, model: ModelFile, stage: int) -> dict[str, Tensor | None]:
    """Every name of the state dict with what is stored under it; None for stage 3's placeholders."""
    found: dict[str, Tensor | None] = {}
    buffers = frozenset(model.buffers or ())
    for name, value in model.module.items():
        # Before 0.9 a placeholder is of shape (1,), later of shape (0,); buffers, integers among them, are always real.
        if stage == 3 and name not in buffers and (0 in value.shape or (value.shape == (1,) and value.dtype.castable)):
            found[name] = None
            continue
        try:
            found[name] = model.file.tensor(name, value)
        except DamagedError as error:
            reading.refuse(error, model.name)
            found[name] = None
    if model.odd:
        reading.add(
            Finding(
                "unsupported",
                Severity.ERROR,
                f"{listed(list(model.odd))} {are(model.odd)} no plain {'tensor' if len(model.odd) == 1 else 'tensors'}: "
                f"{listed(sorted(set(model.odd.values())))}.",
                paths=(model.name,),
                tensors=tuple(model.odd),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
    return found


def _all_models(step: Step, model: ModelFile, others: list[StepFile], world: int) -> list[ModelFile | None]:
    """The model files of all ranks: only frozen weights of stage 3 need them."""
    by_rank = read_models(step, others)
    for file in step.files.of(FileKind.ZERO_MODEL):
        if file.name == model.name:
            by_rank[file.data_rank] = model
    return [by_rank.get(r) for r in range(world)]
