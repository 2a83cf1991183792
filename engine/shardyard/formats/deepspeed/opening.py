"""Opening a DeepSpeed folder: which step is meant, which layout it has, and the checkpoint that comes of it."""

from __future__ import annotations

from dataclasses import replace

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, StoredObject, Usage
from shardyard.errors import DamagedError, UnsupportedError, UsageError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import pipeline, split, universal, unsharded, zero_step
from shardyard.formats.deepspeed.model_file import ModelFile
from shardyard.formats.deepspeed.names import FileKind, step_files
from shardyard.formats.deepspeed.reading import Reading, are, listed
from shardyard.formats.deepspeed.step import Step, catalogue, read_models
from shardyard.formats.folder import Folder
from shardyard.formats.same_files import same_content
from shardyard.formats.torch.text import describe
from shardyard.text import printable


def open_step(folder: Folder, options: OpenOptions, prefix: str = "") -> Step:
    """Read a step folder.

    Args:
        folder: the step's own folder.
        options: how to open.
        prefix: the folder's path relative to the checkpoint, ending in `/`, or empty.

    Raises:
        UnsupportedError: the folder holds no DeepSpeed files.
    """
    files = step_files(folder)
    if files is None:
        raise UnsupportedError(
            f"{printable(folder.name)} holds no files of DeepSpeed.", code="unsupported", path=str(folder.path)
        )
    reading = Reading(options, prefix, to_read=len(files.of(FileKind.OPTIMIZER)) + len(files.of(FileKind.LAYER)) + 1)
    step = Step(files, reading)
    _report_copies(step, folder)
    try:
        if files.universal:
            universal.fill(step)
        else:
            _fill(step)
    except DamagedError as error:
        reading.refuse(error)
    return step


def steps_taken(folder: Folder, options: OpenOptions) -> int:
    """`global_steps` by the first model file that can be read; -1 if none can."""
    files = step_files(folder)
    models = _primary_models(Step(files, Reading(options, ""))) if files is not None else {}
    return max((m.settings.step or 0 for m in models.values()), default=-1)


def _fill(step: Step) -> None:
    models = _primary_models(step)
    step.model = models[min(models)] if models else None
    note = split.reason(step, models)
    if note:
        split.fill(step, models, note)
    elif _is_pipeline(step, models):
        pipeline.fill(step, models)
    elif step.model is not None and _is_stage_0(step, step.model):
        unsharded.fill(step, step.model)
    else:
        zero_step.fill(step, step.model)
    if not note and step.kind is not CheckpointKind.PIPELINE:
        _report_other_ranks(step)


def _is_pipeline(step: Step, models: dict[int, ModelFile]) -> bool:
    """By its layer files, or where these are lost, by model files without weights from several stages."""
    stages = (max(m.settings.pipeline_stages or 1, m.settings.model_ranks or 1) for m in models.values() if not m.module_stored)
    return bool(step.files.of(FileKind.LAYER)) or max(stages, default=1) > 1


def _is_stage_0(step: Step, model: ModelFile) -> bool:
    zero = (*step.files.of(FileKind.OPTIMIZER), *step.files.of(FileKind.ZERO_MODEL))
    return not zero and model.shapes is None and not model.settings.stage


def _primary_models(step: Step) -> dict[int, ModelFile]:
    """One model file for each model rank: that of the lowest data rank that can be read, since stage 3 has one a data rank."""
    found: dict[int, ModelFile] = {}
    for file in [*step.files.of(FileKind.ZERO_MODEL), *step.files.of(FileKind.MODEL)]:
        if file.model_rank not in found:
            for model in read_models(step, [file]).values():
                found[file.model_rank] = model
    return found


def _report_other_ranks(step: Step) -> None:
    """Files of further model ranks, in a run that had one."""
    ranks = step.files.model_ranks()
    others = [f.name for files in step.files.by_kind.values() for f in files if f.model_rank > ranks[0]] if len(ranks) > 1 else []
    if others:
        step.reading.left_over(f"{listed(others)} {are(others)} of other model ranks, and this run had one.", others)


def _report_copies(step: Step, folder: Folder) -> None:
    """Files that two of the given folders hold under one name."""
    for kept, other in folder.conflicts:
        if not (kept.is_file and other.is_file):
            continue
        try:
            same = same_content(step.reading.options.handles, kept, other)
        except DamagedError:
            same = False
        step.reading.add(
            Finding(
                "duplicate-copy" if same else "competing-weights",
                Severity.INFO if same else Severity.ERROR,
                f"{printable(kept.name)} is in two of the folders; the first one is read."
                if same
                else f"{printable(kept.name)} is in two of the folders with different contents: they are not of one step or run.",
                "" if same else "Give the folders of one step only.",
                paths=(kept.name,),
                nbytes=other.nbytes,
                blocks=Blocks.NOTHING if same else Blocks.MERGE,
            )
        )


def checkpoint(step: Step, folder: Folder, *, tag: str | None, tags: tuple[str, ...], root_files: list[FileEntry]) -> Checkpoint:
    """The finished checkpoint of an opened step, called after `folder`: the root, or the step folder itself."""
    options, model = step.reading.options, step.model
    found = Checkpoint(
        folder.path,
        step.kind,
        [*root_files, *catalogue(step)],
        step.parts,
        _part(step, options, folder),
        ties=step.ties,
        objects=_objects(model),
        findings=step.reading.findings,
        world_size=step.world,
        step=model.settings.step if model is not None else None,
        tags=tags,
        tag=tag,
        checked=step.checked,
        metadata={"ds_version": printable(model.settings.version)} if model is not None and model.settings.version else {},
        merge_note=step.merge_note,
        globals=dict(step.reading.globals),
    )
    if found.part != step.part:
        found.findings = [_without_masters(f) for f in found.findings]
    found.usage = _usage(step, found.files)
    return found


def _part(step: Step, options: OpenOptions, folder: Folder) -> str | None:
    if options.part is None or options.part == "model":
        return step.part
    if options.part not in step.parts:
        names = listed(list(step.parts))
        raise UsageError(f"There is no part {printable(options.part)} here; choose from {names}.", path=str(folder.path))
    return options.part


def _without_masters(finding: Finding) -> Finding:
    """For the 16-bit weights, what is wrong with optimizer files is worth knowing and stops nothing."""
    return replace(finding, blocks=Blocks.NOTHING) if zero_step.about_optimizer(finding) else finding


def _usage(step: Step, files: list[FileEntry]) -> Usage:
    """Bytes by purpose, from the sizes of files and of the tensors in them."""
    by_role: dict[str, int] = {}
    for file in files:
        by_role[file.role] = by_role.get(file.role, 0) + file.nbytes
    ranks = [r for ranks in step.rank_sets for r in ranks.ranks if r is not None]
    masters = sum(r.masters_nbytes for r in ranks)
    optimizer = sum(r.tensors_nbytes for r in ranks) - masters
    if step.kind is CheckpointKind.UNIVERSAL:
        masters, optimizer = by_role.get("masters+optimizer", 0), 0
    weights = by_role.get("weights", 0)
    return Usage(weights, masters, optimizer, sum(by_role.values()) - weights - masters - optimizer)


def _objects(model: ModelFile | None) -> list[StoredObject]:
    """The client state and DeepSpeed's own counters, as text."""
    if model is None:
        return []
    return [StoredObject(printable(name, 200), describe(value)) for name, value in model.extra.items()]
