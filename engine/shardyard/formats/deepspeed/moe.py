"""Mixture of experts: expert files with global numbers, and masters whose shapes know only local ones.

`param_shapes` is rank 0's view, with local expert numbers; an expert's global number is local + (data rank mod ep size) · experts
a rank.  Expert groups are partitioned over the ranks that hold the same experts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from shardyard.checkpoint import Role, Tensor
from shardyard.errors import DamagedError
from shardyard.formats.deepspeed.flat import layout_error
from shardyard.formats.deepspeed.model_file import ModelFile, Shapes
from shardyard.formats.deepspeed.names import FileKind, StepFile
from shardyard.formats.deepspeed.reading import Reading, are, counted, listed
from shardyard.formats.deepspeed.state_dicts import read_state_dict
from shardyard.formats.deepspeed.step import Step
from shardyard.formats.deepspeed.weights import Stored
from shardyard.formats.deepspeed.zero import Rename
from shardyard.text import printable

_EXPERT = re.compile(r"(?P<before>.*\.deepspeed_moe\.experts\.deepspeed_experts\.)(?P<number>\d+)(?P<after>\..*)")


def renamer(model: ModelFile, shapes: Sequence[Shapes]) -> Rename:
    """How local expert names become global ones.

    Raises:
        DamagedError: the local numbers of a layer are not 0, 1, 2, … up to its share of the model's experts.
    """
    numbers: dict[str, set[int]] = {}
    for group in shapes:
        for name in group:
            match = _EXPERT.fullmatch(name)
            if match:
                numbers.setdefault(match["before"], set()).add(int(match["number"]))
    totals = model.settings.experts

    def rename(name: str, expert_rank: int, spread: int) -> str:
        match = _EXPERT.fullmatch(name)
        if match is None:
            raise layout_error(
                f"{printable(model.name)}: {printable(name, 80)} is in a group of experts, and its name has no expert number.",
                model.file.path,
            )
        local = numbers[match["before"]]
        if local != set(range(len(local))) or (totals and len(local) * spread not in totals):
            raise layout_error(
                f"{printable(model.name)}: {printable(match['before'], 80)} has {len(local)} experts on each of {spread} ranks "
                f"where the model has {listed(totals)}.",
                model.file.path,
            )
        return f"{match['before']}{int(match['number']) + expert_rank * len(local)}{match['after']}"

    return rename


def read_experts(reading: Reading, files: Sequence[StepFile]) -> dict[str, Tensor]:
    """The 16-bit weights and buffers of all expert files, by their global names."""
    found: dict[str, Tensor] = {}
    for file in files:
        opened = reading.open(file.entry)
        if opened is None:
            continue
        try:
            for name, value in read_state_dict(opened.root, opened).tensors.items():
                match = _EXPERT.fullmatch(name)
                if match is None or int(match["number"]) != file.expert:
                    raise layout_error(
                        f"{printable(file.name)} holds {printable(name, 80)}, which is not of expert {file.expert}: "
                        "another file lies under its name.",
                        opened.path,
                        "Copy the step again.",
                    )
                if name in found:
                    raise layout_error(
                        f"{printable(file.name)} has {printable(name, 80)}, as another file has.",
                        opened.path,
                        "Copy the step again.",
                    )
                found[name] = opened.tensor(name, value)
        except DamagedError as error:
            reading.refuse(error, file.name)
    return found


def add_experts(step: Step, model: ModelFile, stored: Stored) -> None:
    """Put the expert files' weights among what is stored, and say which files are missing."""
    files = step.files.of(FileKind.EXPERT)
    experts = read_experts(step.reading, files)
    local_buffers = {m["before"] + m["after"] for b in stored.buffers or () if (m := _EXPERT.fullmatch(b))}
    buffers = set()
    for name, tensor in experts.items():
        match = _EXPERT.fullmatch(name)
        if match and match["before"] + match["after"] in local_buffers:
            buffers.add(name)
            experts[name] = replace(tensor, role=Role.BUFFER)
    if stored.buffers is not None:
        stored.buffers = frozenset(b for b in stored.buffers if not _EXPERT.fullmatch(b)) | buffers
    # Recorded frozen experts are rank 0's only, by local numbers; the expert files have them all.
    stored.frozen = {n: t for n, t in stored.frozen.items() if not _EXPERT.fullmatch(n)}
    stored.shared = {a: o for a, o in stored.shared.items() if not _EXPERT.fullmatch(a)}
    stored.names = {**stored.names, **experts}
    _report_missing(step.reading, files, model)


def _report_missing(reading: Reading, files: Sequence[StepFile], model: ModelFile) -> None:
    """Expert files that should be there: layer by layer the global numbers from 0 to the layer's count."""
    there = {(f.layer, f.expert) for f in files}
    totals = model.settings.experts
    layers = sorted({layer for layer, _ in there} | (set(range(len(totals))) if len(totals) > 1 else set()))
    missing = []
    for layer in layers:
        known = totals[layer] if 0 <= layer < len(totals) else totals[0] if len(totals) == 1 else 0
        count = known or max((e for la, e in there if la == layer), default=-1) + 1
        missing += [_name(layer, e, files) for e in range(count) if (layer, e) not in there]
    if missing:
        reading.missing(
            "missing-shard", f"{counted(len(missing), 'expert file')} {are(missing)} not here: {listed(missing, 4)}.", missing
        )


def _name(layer: int, expert: int, files: Sequence[StepFile]) -> str:
    head = f"layer_{layer}_" if layer >= 0 else ""
    return f"{head}expert_{expert}_mp_rank_{max((f.model_rank for f in files), default=0):02d}_model_states.pt"
