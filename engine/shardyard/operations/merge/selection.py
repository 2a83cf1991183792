"""What of a checkpoint is merged: one part of it, the tensors asked for, under their output names, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, Part, Role, Tensor
from shardyard.discover import open_checkpoint
from shardyard.errors import AmbiguousError, CheckpointError, IncompleteError, UnsupportedError, UsageError
from shardyard.findings import Blocks, Finding
from shardyard.formats.candidate import OpenOptions
from shardyard.operations import names as naming
from shardyard.operations.merge import adapters
from shardyard.operations.merge.adapters import Fold
from shardyard.operations.merge.options import MergeOptions
from shardyard.text import printable

MOST_NAMED = 20
"""Findings name at most about this many tensors; one that names fewer names all."""
_PEFT = ("lora_", "modules_to_save.", "prompt_encoder.", "ia3_")


@dataclass(slots=True)
class Selection:
    """The tensors to merge, by stored name, in module order."""

    part: str
    tensors: dict[str, Tensor]
    """All of them have data."""
    names: dict[str, str]
    """Stored names to output names."""
    renamed: int
    without_prefix: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Output names of what `--allow-incomplete` leaves out."""
    frozen_left_out: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    """Those of the reader that concern what is merged."""
    folds: dict[str, Fold] = field(default_factory=dict)
    """Low-rank changes to add, by stored name."""
    adapters: dict[str, list[tuple[str, Tensor]]] = field(default_factory=dict)
    """Adapters that are split off, by folder: output names and tensors."""
    adapter_configs: dict[str, bytes] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.missing and all(f.blocks is Blocks.NOTHING for f in self.findings)


def select(checkpoint: Checkpoint, options: MergeOptions) -> Selection:
    """Choose by `--part`, `--select`, `--exclude`, `--trainable-only`, `--strip-prefix` and `--allow-incomplete`.

    Raises:
        CheckpointError: it is not mergeable, or incomplete.
        UsageError: an option means nothing here, or what it means is not clear.
    """
    if checkpoint.merge_note:
        raise UnsupportedError(checkpoint.merge_note, code=_code(checkpoint), path=str(checkpoint.path))
    part = choose_part(checkpoint, options.part)
    tensors = _with_aliases(checkpoint, part.tensors)
    if not tensors:
        _refuse(checkpoint.findings, str(checkpoint.path), allow=False)
        raise UnsupportedError(
            f"{printable(str(checkpoint.path))} holds no tensors in its part {printable(part.name)}.",
            code="missing-tensor",
            path=str(checkpoint.path),
        )
    named = naming.strip_prefixes(tensors, options.strip_prefix)
    kept = naming.selected(named.new, options.select, options.exclude)
    frozen: list[str] = []
    if options.trainable_only:
        kept, frozen = _trainable(checkpoint, tensors, kept)
    findings = [f for f in checkpoint.findings if _concerns(f, kept, tensors)]
    _refuse(findings, str(checkpoint.path), allow=options.allow_incomplete)
    absent = [name for name in kept if tensors[name].layout is None]
    if absent and not options.allow_incomplete:
        raise _absent(tensors[absent[0]], len(absent), str(checkpoint.path), absent)
    here = {name: tensors[name] for name in kept if tensors[name].layout is not None}
    if not here:
        raise IncompleteError(
            "Nothing can be rebuilt: no tensor has its data.", code="missing-tensor", path=str(checkpoint.path), tensors=absent
        )
    chosen = Selection(
        part.name,
        here,
        named.new,
        sum(1 for name in here if named.new[name] != name),
        named.without_prefix,
        tuple(named.new[name] for name in absent),
        tuple(named.new[name] for name in frozen),
        findings,
    )
    if options.lora in ("split", "fold"):
        _take_adapters(checkpoint, chosen, options)
    return chosen


def _take_adapters(checkpoint: Checkpoint, chosen: Selection, options: MergeOptions) -> None:
    """Split LoRA weights off, or fold them in; an adapter alone is folded into the base model that `--like` names."""
    tensors, names = dict(chosen.tensors), dict(chosen.names)
    if options.lora == "fold" and options.like is not None and checkpoint.kind is CheckpointKind.LORA:
        base = open_checkpoint([Path(options.like)], OpenOptions())
        tensors |= {name: t for name, t in base.tensors.items() if t.layout is not None}
        names |= {name: name for name in base.tensors}
    made = adapters.split(checkpoint, tensors, names, str(options.lora))
    if made is None:
        return
    chosen.tensors = {old: tensors[old] for old in tensors if old in made.base}
    chosen.names = names | made.base
    chosen.folds = made.folds
    chosen.renamed = sum(1 for old in chosen.tensors if chosen.names[old] != old)
    chosen.adapters = {f: [(new, tensors[old]) for old, new in taken.items()] for f, taken in made.files.items()}
    chosen.adapter_configs = made.configs
    naming.refuse_collisions({old: chosen.names[old] for old in chosen.tensors})


def choose_part(checkpoint: Checkpoint, asked: str | None) -> Part:
    """The part to merge.

    Raises:
        UsageError: there is no such part, or several qualify.
    """
    listed = list(checkpoint.parts)
    if asked == "model" and asked not in checkpoint.parts:
        asked = None  # the model by any name: ZeRO's masters, say
    if asked is not None:
        if asked not in checkpoint.parts:
            shown = ", ".join(printable(name, 60) for name in listed) or "none"
            raise UsageError(f"There is no part {printable(asked, 60)} here; its parts are: {shown}.", path=str(checkpoint.path))
        return checkpoint.parts[asked]
    if checkpoint.part is not None:
        return checkpoint.parts[checkpoint.part]
    models = [name for name in listed if checkpoint.parts[name].model]
    if models:
        raise AmbiguousError(
            f"{printable(str(checkpoint.path))} holds several models; choose one with --part.", models, path=str(checkpoint.path)
        )
    _refuse(checkpoint.findings, str(checkpoint.path), allow=False)
    raise UnsupportedError(
        f"{printable(str(checkpoint.path))} holds no model weights; its parts: {', '.join(map(printable, listed)) or 'none'}.",
        code=_code(checkpoint),
        path=str(checkpoint.path),
    )


def _code(checkpoint: Checkpoint) -> str:
    blocking = [f.code for f in checkpoint.findings if f.blocks is Blocks.MERGE]
    return blocking[0] if blocking else "unsupported"


def _with_aliases(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, and names that are recorded as aliases of one of them but have no data of their own."""
    found = dict(tensors)
    for tie in checkpoint.ties:
        if tie.source not in ("recorded", "storage"):
            continue
        owner = next((found[n] for n in tie.names if n in found and found[n].layout is not None), None)
        for name in tie.names if owner is not None else ():
            if owner is not None and (name not in found or found[name].layout is None):
                found[name] = replace(owner, name=name)
    return found


def _trainable(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], kept: list[str]) -> tuple[list[str], list[str]]:
    """(kept, left out): frozen weights go, buffers and aliases of kept weights stay."""
    if any(t.trainable is not None for t in tensors.values()):
        wanted = {n for n in kept if tensors[n].trainable is not False or tensors[n].role is Role.BUFFER}
    elif any(mark in name for name in tensors for mark in _PEFT):
        wanted = {n for n in kept if any(mark in n for mark in _PEFT)}
    else:
        raise UsageError("--trainable-only: this checkpoint does not record which weights were frozen.")
    for tie in checkpoint.ties:
        if any(n in wanted for n in tie.names):
            wanted.update(n for n in tie.names if n in kept)
    return [n for n in kept if n in wanted], [n for n in kept if n not in wanted]


def _concerns(finding: Finding, kept: Iterable[str], tensors: Mapping[str, Tensor]) -> bool:
    """Whether a finding is about what is merged; one that names all its tensors is not if none of them is kept."""
    named = finding.tensors
    if not named or len(named) >= MOST_NAMED or not any(n in tensors for n in named):
        return True
    keep = set(kept)
    return any(n in keep for n in named)


def _refuse(findings: Iterable[Finding], path: str, *, allow: bool) -> None:
    """Raise what blocks a merge: first what nothing allows, then what only `--allow-incomplete` does."""
    listed = list(findings)
    for finding in listed:
        if finding.blocks is Blocks.MERGE:
            raise CheckpointError(_sentence(finding), code=finding.code, path=path, tensors=finding.tensors)
    for finding in listed:
        if finding.blocks is Blocks.UNLESS_ALLOWED and not allow:
            said = _sentence(finding)
            raise IncompleteError(
                said if "--allow-incomplete" in said else f"{said} --allow-incomplete merges what can be rebuilt.",
                code=finding.code,
                path=path,
                tensors=finding.tensors,
            )


def _sentence(finding: Finding) -> str:
    return f"{finding.message} {finding.remedy}".strip()


def _absent(tensor: Tensor, count: int, path: str, names: list[str]) -> IncompleteError:
    more = f" and {count - 1} more" if count > 1 else ""
    why = f": {tensor.note}" if tensor.note else ""
    return IncompleteError(
        f"{printable(tensor.name, 120)}{more} cannot be rebuilt{why}. --allow-incomplete merges the rest.",
        code="missing-tensor",
        path=path,
        tensors=names,
    )
