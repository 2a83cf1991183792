"""A step folder while it is opened: what all layouts fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import CheckpointKind, FileEntry, Part, Tensor, Tie
from shardyard.errors import DamagedError
from shardyard.formats.deepspeed.model_file import ModelFile, Shapes, read_model_file
from shardyard.formats.deepspeed.names import FileKind, StepFile, StepFiles
from shardyard.formats.deepspeed.ranks import RankSet
from shardyard.formats.deepspeed.reading import Reading


@dataclass(slots=True)
class Step:
    """What opening a step has found so far."""

    files: StepFiles
    reading: Reading
    kind: CheckpointKind = CheckpointKind.ZERO0
    parts: dict[str, Part] = field(default_factory=dict)
    part: str | None = None
    ties: list[Tie] = field(default_factory=list)
    world: int | None = None
    model: ModelFile | None = None
    """The model file that names and shapes are taken from: that of the lowest rank."""
    rank_sets: list[RankSet] = field(default_factory=list)
    shapes: list[list[Shapes]] = field(default_factory=list)
    """Of pipelines: for each rank set the shapes of its masters."""
    checked: set[str] = field(default_factory=lambda: {"headers"})
    merge_note: str = ""
    extra_files: list[FileEntry] = field(default_factory=list)
    """Files further down than the step folder itself."""

    def add_part(self, name: str, tensors: Mapping[str, Tensor], *, model: bool) -> None:
        self.parts[name] = Part(name, dict(tensors), model=model)

    def add_lazy_part(self, name: str, tensors: Callable[[], dict[str, Tensor]]) -> None:
        self.parts[name] = Part(name, tensors, model=False)


def read_models(step: Step, files: list[StepFile]) -> dict[int, ModelFile]:
    """The model files that can be read, by data rank (stage 3) or model rank; damage becomes findings."""
    found: dict[int, ModelFile] = {}
    for file in files:
        opened = step.reading.open(file.entry)
        if opened is None:
            continue
        try:
            found[max(file.data_rank, 0) if file.kind is FileKind.ZERO_MODEL else file.model_rank] = read_model_file(opened)
        except DamagedError as error:
            step.reading.refuse(error, file.name)
    return found


def catalogue(step: Step) -> list[FileEntry]:
    """All files of the step with their roles."""
    roles = {
        FileKind.MODEL: "weights",
        FileKind.ZERO_MODEL: "metadata",
        FileKind.OPTIMIZER: "masters+optimizer",
        FileKind.LAYER: "weights",
        FileKind.EXPERT: "weights",
        FileKind.EXPERT_OPTIMIZER: "masters+optimizer",
    }
    found = [step.reading.entry(f.entry, roles[kind]) for kind, files in step.files.by_kind.items() for f in files]
    found += [step.reading.entry(e, "other") for e in step.files.others]
    return sorted(found + step.extra_files, key=lambda f: f.path)
