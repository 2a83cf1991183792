"""The file names of a DeepSpeed step folder, and what each says about its place in the run.

Numbers in names are compared as numbers: from eleven ranks on a sort as text would put rank 10 before rank 2 and build wrong
weights in silence.  The `bf16_` prefix says that bf16 was enabled and nothing else; it is never used to tell stages apart.
Names as DeepSpeed 0.3.1 to 0.19.8 writes them; `optim_states` without an underscore before it is 0.3.1's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum

from shardyard.formats.folder import Entry, Folder


class FileKind(Enum):
    """What a file of a step folder is."""

    MODEL = "model"
    """`mp_rank_MM_model_states.pt`: stages 0 to 2; MM counts tensor-parallel ranks and pipeline stages together."""
    ZERO_MODEL = "zero model"
    """`zero_pp_rank_D_mp_rank_MM_model_states.pt`: stage 3, one a data rank."""
    OPTIMIZER = "optimizer"
    """`[bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt`: stages 1 to 3, one a data rank."""
    LAYER = "layer"
    """`layer_LL[-model_TT]-model_states.pt`: one layer of a pipeline module."""
    EXPERT = "expert"
    """`layer_L_expert_E_mp_rank_MM_model_states.pt`: one expert, by its global number."""
    EXPERT_OPTIMIZER = "expert optimizer"
    """`expp_rank_R_mp_rank_MM_optim_states.pt`: mixture of experts without ZeRO."""


@dataclass(frozen=True, slots=True)
class StepFile:
    """A file of a step folder, with the numbers in its name; -1 where the name has none."""

    kind: FileKind
    entry: Entry
    model_rank: int = -1
    data_rank: int = -1
    layer: int = -1
    expert: int = -1
    prefix: str = ""

    @property
    def name(self) -> str:
        return self.entry.name


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


_PATTERNS = (
    (FileKind.MODEL, _pattern(r"mp_rank_(?P<model_rank>\d{1,5})_model_states\.pt")),
    (
        FileKind.ZERO_MODEL,
        re.compile(
            r"(?P<prefix>|bf16_|fp16_)zero_pp_rank_(?P<data_rank>\d{1,5})_mp_rank_(?P<model_rank>\d{1,5})_model_states\.pt"
        ),
    ),
    (
        FileKind.OPTIMIZER,
        re.compile(
            r"(?P<prefix>|bf16_|fp16_)zero_pp_rank_(?P<data_rank>\d{1,5})_mp_rank_(?P<model_rank>\d{1,5})_?optim_states\.pt"
        ),
    ),
    (FileKind.LAYER, _pattern(r"layer_(?P<layer>\d{1,5})(?:-model_(?P<model_rank>\d{1,5}))?-model_states\.pt")),
    (
        FileKind.EXPERT,
        _pattern(r"(?:layer_(?P<layer>\d{1,5})_)?expert_(?P<expert>\d{1,5})_mp_rank_(?P<model_rank>\d{1,5})_model_states\.pt"),
    ),
    (FileKind.EXPERT_OPTIMIZER, _pattern(r"expp_rank_(?P<data_rank>\d{1,5})_mp_rank_(?P<model_rank>\d{1,5})_optim_states\.pt")),
)


def parse(entry: Entry) -> StepFile | None:
    """The file as its name describes it; None for a name that is not DeepSpeed's."""
    if not entry.name.endswith("_states.pt") or len(entry.name) > 200:
        return None
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(entry.name)
        if match:
            fields = match.groupdict()
            prefix = fields.pop("prefix", None) or ""
            return StepFile(kind, entry, prefix=prefix, **{k: int(v) for k, v in fields.items() if v is not None})
    return None


def other_place(entry: Entry, saved_as: str | None) -> str | None:
    """The name that a file was saved under, if that is one of DeepSpeed's with other numbers than it has now.

    torch.save names the archive's folder after the file.  Files of equal ranks are alike in all else: two that were exchanged, or
    one copied over another, would build wrong weights in silence.
    """
    if saved_as is None:
        return None
    first = parse(replace(entry, name=saved_as + ".pt"))
    now = parse(entry)
    if first is None or now is None or replace(first, entry=entry, prefix="") == replace(now, prefix=""):
        return None
    return first.name


@dataclass(slots=True)
class StepFiles:
    """The files of one step folder by kind, each list in numeric order."""

    folder: Folder
    by_kind: dict[FileKind, list[StepFile]]
    others: list[Entry] = field(default_factory=list)
    universal: bool = False
    """Whether `ds_to_universal` wrote it: a `zero/` folder with one sub folder a parameter."""

    def of(self, kind: FileKind) -> list[StepFile]:
        return self.by_kind.get(kind, [])

    def model_ranks(self) -> list[int]:
        """The tensor-parallel or pipeline ranks that any file of the folder belongs to."""
        kinds = (FileKind.MODEL, FileKind.ZERO_MODEL, FileKind.OPTIMIZER)
        return sorted({f.model_rank for kind in kinds for f in self.of(kind)})


def step_files(folder: Folder) -> StepFiles | None:
    """The files of a step folder; None if the folder is not one."""
    found = StepFiles(folder, {})
    for entry in folder.files.values():
        file = parse(entry)
        if file is None:
            found.others.append(entry)
        else:
            found.by_kind.setdefault(file.kind, []).append(file)
    for files in found.by_kind.values():
        files.sort(key=lambda f: (f.model_rank, f.layer, f.expert, f.data_rank, f.prefix))
    found.universal = "zero" in folder.folders and _is_universal(folder.sub("zero"))
    return found if found.by_kind or found.universal else None


def _is_universal(zero: Folder) -> bool:
    if "optimizer_state.pt" in zero.files:
        return True
    first = next(iter(zero.folders), None)
    return first is not None and "fp32.pt" in zero.sub(first).files


def is_step(folder: Folder) -> bool:
    """Whether the folder holds a DeepSpeed step, by names alone."""
    return any(parse(entry) is not None for entry in folder.files.values()) or (
        "zero" in folder.folders and _is_universal(folder.sub("zero"))
    )
