"""Recognising DeepSpeed folders: a root with step folders, or a step folder given by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry
from shardyard.errors import UsageError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.deepspeed.names import FileKind, StepFiles, step_files
from shardyard.formats.deepspeed.opening import checkpoint, open_step, steps_taken
from shardyard.formats.deepspeed.step import Step
from shardyard.formats.deepspeed.tags import MARKS, Pointer, by_number, pointer, steps_of
from shardyard.formats.folder import Folder
from shardyard.text import printable


class DeepSpeed:
    """The reader of DeepSpeed folders."""

    name = "deepspeed"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """One candidate for a root with all its steps, or for a step folder."""
        files = step_files(folder)
        if files is not None:
            yield Candidate(self, folder, folder.path, _kind(files), tuple(_claimed(files)), tuple(_own_folders(files)))
            return
        steps = steps_of(folder)
        if not steps:
            return
        tag = _chosen(steps, pointer(folder))
        of_steps = {name: found for name, step in steps.items() if (found := step_files(step)) is not None}
        names = [m for m in MARKS if m in folder.files]
        names += [f"{step}/{name}" for step, found in of_steps.items() for name in _claimed(found)]
        yield Candidate(self, folder, folder.path, _kind(of_steps[tag]), tuple(names), tuple(of_steps))

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the step that is meant; see `Candidate.open`."""
        folder = candidate.folder
        if step_files(folder) is not None:
            _same_tag(folder, options)
            return checkpoint(open_step(folder, options), folder, tag=folder.name, tags=(folder.name,), root_files=[])
        steps = steps_of(folder)
        if not steps:
            raise UsageError(f"{printable(folder.name)} has no step of DeepSpeed.", path=str(folder.path))
        mark = pointer(folder)
        tag = options.tag if options.tag is not None else mark.tag if mark is not None and mark.tag in steps else None
        if tag is not None and tag not in steps:
            known = ", ".join(printable(t) for t in by_number(steps))
            raise UsageError(f"There is no step {printable(tag)}; steps here: {known}.", path=str(folder.path))
        step = open_step(steps[tag], options, f"{tag}/") if tag is not None else None
        if step is None:
            tag, step = _newest(steps, options)
        found = checkpoint(step, folder, tag=tag, tags=tuple(by_number(steps)), root_files=_root_files(folder))
        _report_pointer(found, steps, mark, tag, asked=options.tag is not None)
        return found


def _same_tag(folder: Folder, options: OpenOptions) -> None:
    if options.tag is not None and options.tag != folder.name:
        raise UsageError(
            f"{printable(folder.name)} is one step; give the folder above it to choose {printable(options.tag)}.",
            path=str(folder.path),
        )


def _kind(files: StepFiles) -> CheckpointKind:
    """The kind as far as names tell."""
    if files.universal:
        return CheckpointKind.UNIVERSAL
    if files.of(FileKind.LAYER):
        return CheckpointKind.PIPELINE
    if len(files.model_ranks()) > 1:
        return CheckpointKind.TENSOR_PARALLEL
    if files.of(FileKind.EXPERT):
        return CheckpointKind.MOE
    if files.of(FileKind.ZERO_MODEL):
        return CheckpointKind.ZERO3
    return CheckpointKind.ZERO2 if files.of(FileKind.OPTIMIZER) else CheckpointKind.ZERO0


def _claimed(files: StepFiles) -> Iterator[str]:
    for found in files.by_kind.values():
        for file in found:
            yield file.name
    if files.universal:
        zero = files.folder.sub("zero")
        yield from (f"zero/{name}" for name in zero.files)


def _own_folders(files: StepFiles) -> Iterator[str]:
    if files.universal:
        yield "zero"
    if "offloaded_tensors" in files.folder.folders:
        yield "offloaded_tensors"


def _chosen(steps: Mapping[str, Folder], mark: Pointer | None) -> str:
    return mark.tag if mark is not None and mark.tag in steps else by_number(steps)[-1]


def _root_files(folder: Folder) -> list[FileEntry]:
    return [FileEntry(m, folder.files[m].nbytes, "metadata" if "." not in m else "other") for m in MARKS if m in folder.files]


def _newest(steps: Mapping[str, Folder], options: OpenOptions) -> tuple[str, Step]:
    """The newest step that is whole, by `global_steps` and then by time; the newest at all if none is."""
    tags = list(steps)
    if len(tags) > 1:
        tags.sort(key=lambda t: (steps_taken(steps[t], options), max((e.mtime for e in steps[t].files.values()), default=0.0)))
    newest: tuple[str, Step] | None = None
    for tag in reversed(tags):
        step = open_step(steps[tag], options, f"{tag}/")
        newest = newest or (tag, step)
        if all(f.blocks is Blocks.NOTHING for f in step.reading.findings):
            return tag, step
    assert newest is not None
    return newest


def _report_pointer(
    found: Checkpoint, steps: Mapping[str, Folder], mark: Pointer | None, tag: str | None, *, asked: bool
) -> None:
    """Say which step was taken when `latest` does not tell."""
    if asked or (mark is not None and mark.tag in steps):
        return
    shown, known = printable(tag or ""), ", ".join(printable(t) for t in by_number(steps))
    if mark is None:
        finding = Finding(
            "dangling-latest",
            Severity.INFO,
            f"There is no file `latest`; {shown} is the newest {'complete ' if found.complete else ''}step and is taken.",
        )
    else:
        finding = Finding(
            "dangling-latest",
            Severity.ERROR,
            f"`{mark.file}` names the step {printable(mark.tag, 80)}, which is not here; steps here: {known}."
            if mark.tag
            else f"`{mark.file}` is empty: the save may not have finished; steps here: {known}.",
            f"Choose a step: --tag {shown}.",
            (mark.file,),
            blocks=Blocks.MERGE,
        )
    found.findings.insert(0, finding)


FORMAT = DeepSpeed()
