"""Sets whose files each have a part of every tensor, cut in ways that the files do not tell: shown piece by piece, never merged.

Tensor parallelism without a pipeline, layer files of several tensor-parallel ranks, MiCS (weights cut over groups of ranks) and
AutoEP (expert weights cut over expert ranks).  A part of a model must never pass for a whole one.
"""

from __future__ import annotations

from dataclasses import replace

from shardyard.checkpoint import CheckpointKind, Tensor
from shardyard.errors import DamagedError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.deepspeed import unsharded, zero_step
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.names import FileKind, StepFiles
from shardyard.formats.deepspeed.reading import listed, numbered
from shardyard.formats.deepspeed.state_dicts import read_state_dict
from shardyard.formats.deepspeed.step import Step


def reason(step: Step, models: dict[int, ModelFile]) -> str:
    """Why the step cannot be merged; empty if it can."""
    settings = [m.settings for m in models.values()]
    tensor_ranks = tensor_parallel(step, models)
    if tensor_ranks > 1:
        return (
            f"Each of its files holds a part of every weight: the run used {tensor_ranks} tensor-parallel ranks, and the files "
            "do not say how each weight was cut."
        )
    if any(s.mics > 0 for s in settings):
        return "It was trained with MiCS, which cuts weights over groups of ranks in a way that is not merged here."
    if any(s.auto_experts for s in settings):
        return "It was trained with AutoEP, whose expert weights are cut over expert ranks in a way that is not merged here."
    return ""


def tensor_parallel(step: Step, models: dict[int, ModelFile]) -> int:
    """Tensor-parallel ranks of the run, by what is recorded and by the files there are."""
    layer_ranks = len({f.model_rank for f in step.files.of(FileKind.LAYER)})
    found = max(layer_ranks, 1)
    pipeline = bool(step.files.of(FileKind.LAYER)) or any(not m.module_stored for m in models.values())
    for model in models.values():
        settings = model.settings
        stages = settings.pipeline_stages or 1
        if settings.tensor_ranks is not None:
            found = max(found, settings.tensor_ranks)
        elif settings.model_ranks and not pipeline:
            found = max(found, settings.model_ranks // stages)
    if not models:
        found = max(found, len(step.files.model_ranks()))
    return found


def fill(step: Step, models: dict[int, ModelFile], note: str) -> None:
    """Show the pieces, each under the name of its file's rank."""
    step.kind = CheckpointKind.TENSOR_PARALLEL
    step.merge_note = note
    pieces: dict[str, Tensor] = {}
    for rank in step.files.model_ranks():
        head = f"mp_rank_{rank:02d}"
        part = _member(step, rank, models.get(rank))
        for name, tensor in part.items():
            pieces[f"{head}/{name}"] = replace(tensor, name=f"{head}/{name}")
    pieces |= _bare(step)
    step.add_part("pieces", pieces, model=True)
    step.part = "pieces"
    _report_missing(step, models)


def _member(step: Step, rank: int, model: ModelFile | None) -> dict[str, Tensor]:
    """What one model rank holds: its masters under ZeRO, else its weights."""
    files = StepFiles(
        step.files.folder,
        {
            kind: [f for f in found if f.model_rank == rank]
            for kind, found in step.files.by_kind.items()
            if kind in (FileKind.MODEL, FileKind.ZERO_MODEL, FileKind.OPTIMIZER)
        },
    )
    member = Step(files, step.reading, model=model)
    if files.of(FileKind.OPTIMIZER) and (model is None or not (model.settings.mics or model.settings.auto_experts)):
        zero_step.fill(member, model)
    elif model is not None and model.shapes is None:
        unsharded.fill(member, model)
    elif model is not None:
        names = zero_step.stored_names(step.reading, model, 3 if files.of(FileKind.ZERO_MODEL) else 2)
        member.add_part("module", {n: t for n, t in names.items() if t is not None}, model=True)
        member.part = "module"
        member.world = model.settings.data_ranks
    step.rank_sets += member.rank_sets
    step.world = max(step.world or 0, (member.world or 1) * len(step.files.model_ranks())) or None
    return member.parts[member.part].tensors if member.part is not None else {}


def _bare(step: Step) -> dict[str, Tensor]:
    """Tensors of layer and expert files, under the files' names."""
    found: dict[str, Tensor] = {}
    for file in [*step.files.of(FileKind.LAYER), *step.files.of(FileKind.EXPERT)]:
        opened = step.reading.open(file.entry)
        if opened is None:
            continue
        try:
            values = read_state_dict(opened.root, opened).tensors
            head = file.name.removesuffix("_model_states.pt").removesuffix("-model_states.pt")
            found |= {f"{head}/{n}": opened.tensor(f"{head}/{n}", v) for n, v in values.items()}
        except DamagedError as error:
            step.reading.refuse(error, file.name)
    return found


def _report_missing(step: Step, models: dict[int, ModelFile]) -> None:
    """Members of the set that are not in the folder."""
    wanted = max([m.settings.model_ranks or 1 for m in models.values()] + [tensor_parallel(step, models)], default=1)
    there = step.files.model_ranks()
    missing = [r for r in range(wanted) if r not in there]
    if not missing:
        return
    names = [f"mp_rank_{r:02d}_model_states.pt" for r in missing]
    if len(there) == 1:
        step.reading.add(
            Finding(
                "piece",
                Severity.ERROR,
                f"This is piece {there[0] + 1} of {wanted} of a tensor-parallel model: a part of every weight, not a whole one.",
                "Bring the files of all tensor-parallel ranks together.",
                paths=tuple([f.name for kind in step.files.by_kind.values() for f in kind][:20]),
                blocks=Blocks.MERGE,
            )
        )
    else:
        message = f"The files of tensor-parallel {numbered('rank', missing)} of {wanted} are not here: {listed(names)}."
        step.reading.missing("missing-rank", message, names, Blocks.MERGE)
