"""Folders of torch.distributed.checkpoint: plain, accelerate's pair of folders, torchtitan, Lightning, Megatron-core."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Role, Tensor, Usage
from shardyard.findings import Blocks, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.dcp.files import is_dcp, is_dcp_name
from shardyard.formats.dcp.folder import DcpFolder, open_folder
from shardyard.formats.dcp.parts import Kind, sort_out
from shardyard.formats.dcp.values import SIDE_FILES, side_values, step_in_name, stored_values
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import find_config, read_json
from shardyard.formats.side_files import is_training_file
from shardyard.text import printable

_MODEL_FOLDER = re.compile(r"(?:pytorch_model_fsdp|model)(?:_\d+)?")
_OPTIMIZER_FOLDER = re.compile(r"(?:optimizer|optim)(?:_\d+)?")
_ROLES = {Kind.MODEL: Role.WEIGHT, Kind.OPTIMIZER: Role.OPTIMIZER, Kind.OTHER: Role.OTHER}
_BACKENDS = "metadata.json"


class Dcp:
    """One candidate for a folder with `.metadata` and its kin, or for a folder with a model's and an optimizer's."""

    name = "torch.distributed.checkpoint"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """By names alone."""
        own = [n for n in unclaimed if n in folder.files and is_dcp_name(n)]
        if own:
            beside = [n for n in (*SIDE_FILES, _BACKENDS) if n in unclaimed and n in folder.files]
            yield Candidate(self, folder, folder.path, CheckpointKind.DCP, (*own, *beside), details={"folders": ("",)})
        inner = tuple(_inner(folder, unclaimed))
        if inner:
            files = [f"{name}/{file}" for name in inner for file in folder.sub(name).files if is_dcp_name(file)]
            files += [n for n in unclaimed if n in folder.files and is_training_file(n)]
            details = {"folders": inner}
            yield Candidate(self, folder, folder.path, CheckpointKind.DCP, tuple(files), inner, details)

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read `.metadata` and the small pickled values; no tensor's slice is touched."""
        names = candidate.details.get("folders", ("",))
        folder = candidate.folder
        opened = [
            open_folder(folder.sub(name) if name else folder, f"{name}/" if name else "", options)
            for name in (names if isinstance(names, tuple) else ("",))
        ]
        return _assemble(candidate, opened, options)


FORMAT = Dcp()


def _inner(folder: Folder, unclaimed: Mapping[str, None]) -> Iterator[str]:
    """The sub folders of one saved training state; a lone folder called `model` is a checkpoint of its own."""
    models = [n for n in folder.folders if n in unclaimed and _MODEL_FOLDER.fullmatch(n) and is_dcp(folder.sub(n))]
    optimizers = [n for n in folder.folders if n in unclaimed and _OPTIMIZER_FOLDER.fullmatch(n) and is_dcp(folder.sub(n))]
    if models and (optimizers or any(n.startswith("pytorch_model_fsdp") for n in models)):
        yield from (*models, *optimizers)


def _assemble(candidate: Candidate, opened: list[DcpFolder], options: OpenOptions) -> Checkpoint:
    folder = candidate.folder
    config, config_folder = find_config(folder, above=True)
    if config is None and _MODEL_FOLDER.fullmatch(folder.name):
        config, config_folder = find_config(folder.parent(), above=True)
    checkpoint = Checkpoint(
        candidate.path,
        CheckpointKind.DCP,
        [],
        {},
        None,
        config=config,
        config_folder=config_folder,
        checked={"headers", "ranks", "shapes"},
        step=step_in_name(folder),
    )
    models = sum(1 for part in opened if _MODEL_FOLDER.fullmatch(part.folder.name))
    for part in opened:
        optimizer = bool(_OPTIMIZER_FOLDER.fullmatch(part.folder.name))
        own = f"{part.folder.name}." if models > 1 and not optimizer else ""
        _add_parts(checkpoint, part, own)
        _add_facts(checkpoint, part, options, optimizer=optimizer and len(opened) > 1)
    _add_side(checkpoint, candidate, options)
    whole = [p.name for p in checkpoint.parts.values() if p.model]
    checkpoint.part = whole[0] if len(whole) == 1 else None
    return checkpoint


def _add_parts(checkpoint: Checkpoint, opened: DcpFolder, own: str) -> None:
    homes = sort_out(opened.tensors, opened.state.paths)
    parts: dict[str, dict[str, Tensor]] = {}
    kinds: dict[str, Kind] = {}
    for full, tensor in opened.tensors.items():
        home = homes[full]
        part, name = own + home.part, home.name
        if name in parts.setdefault(part, {}) or kinds.setdefault(part, home.kind) is not home.kind:
            part, name = own + Kind.OTHER.value, full
            parts.setdefault(part, {})
        tensor.name, tensor.role = name, _ROLES[home.kind]
        parts[part][name] = tensor
        _count(checkpoint.usage, tensor)
    for name, tensors in parts.items():
        checkpoint.parts[name] = Part(name, tensors, model=kinds.get(name) is Kind.MODEL)


def _count(usage: Usage, tensor: Tensor) -> None:
    usage.wasted += tensor.nbytes * len(tensor.replicas)
    if tensor.role is Role.WEIGHT:
        usage.weights += tensor.nbytes
    elif tensor.role is Role.OPTIMIZER:
        usage.optimizer += tensor.nbytes
    else:
        usage.other += tensor.nbytes


def _add_facts(checkpoint: Checkpoint, opened: DcpFolder, options: OpenOptions, *, optimizer: bool) -> None:
    objects, step = stored_values(opened, options.handles)
    checkpoint.objects += objects
    checkpoint.step = step if checkpoint.step is None else checkpoint.step
    checkpoint.files += [
        replace(f, role="masters+optimizer") if optimizer and f.role == "weights" else f for f in opened.files.files
    ]
    checkpoint.usage.wasted += opened.files.stale_bytes
    for finding in opened.files.findings:
        # What is wrong with an optimizer beside the model keeps nobody from merging the model.
        checkpoint.findings.append(replace(finding, severity=Severity.WARNING, blocks=Blocks.NOTHING) if optimizer else finding)
    if opened.files.world_size is not None:
        checkpoint.world_size = max(checkpoint.world_size or 0, opened.files.world_size)
    if opened.state.version:
        checkpoint.metadata = {**checkpoint.metadata, "dcp_version": printable(opened.state.version, 40)}
    counts = dict(checkpoint.globals)
    for name, count in opened.state.globals.items():
        counts[name] = counts.get(name, 0) + count
    checkpoint.globals = counts


def _add_side(checkpoint: Checkpoint, candidate: Candidate, options: OpenOptions) -> None:
    folder = candidate.folder
    objects, findings, step = side_values(folder, options.handles)
    checkpoint.objects += objects
    checkpoint.findings += findings
    checkpoint.step = step if checkpoint.step is None else checkpoint.step
    backends = read_json(folder, _BACKENDS) if _BACKENDS in candidate.files else None
    if isinstance(backends, dict):
        text = {printable(str(k), 60): printable(str(v), 120) for k, v in backends.items()}
        checkpoint.metadata = {**checkpoint.metadata, **text}
    for name in candidate.files:
        if "/" not in name and not is_dcp_name(name):
            role = "masters+optimizer" if name.startswith("optimizer") else "other"
            checkpoint.files.append(FileEntry(name, folder.files[name].nbytes, role))
    stored = sum(f.nbytes for f in checkpoint.files)
    usage = checkpoint.usage
    usage.other += max(0, stored - usage.weights - usage.optimizer - usage.other - usage.wasted)
