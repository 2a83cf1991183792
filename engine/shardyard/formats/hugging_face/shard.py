"""One file of a sharded model, its header read; a fault becomes a finding, and the set around it stays readable."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from shardyard.checkpoint import CheckpointKind, Composite, Tensor, Tie
from shardyard.errors import COPY_AGAIN, ShardyardError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.declared_ties import owner_first
from shardyard.formats.hugging_face.index_file import link_leaves
from shardyard.formats.safetensors.file import open_safetensors
from shardyard.formats.sniff import Content, sniff_file
from shardyard.formats.torch import sharing
from shardyard.formats.torch.weights import open_weights
from shardyard.text import printable


@dataclass(slots=True)
class Shard:
    """One file of a set."""

    name: str
    nbytes: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    globals: Counter[str] = field(default_factory=Counter)
    weights: int = 0
    """Bytes that tensors use, shared ones once."""
    wasted: int = 0
    readable: bool = True
    ties: list[Tie] = field(default_factory=list)
    composites: list[Composite] = field(default_factory=list)


def read_shard(handles: FileHandles, path: str, kind: CheckpointKind) -> Shard:
    """Read one file's header; a fault becomes a finding and the shard is not `readable`."""
    name = os.path.basename(path)
    leads = link_leaves(path)
    if leads:
        text = f"{printable(name)} is a link to {printable(leads, 200)}, outside the folder; it was not followed."
        finding = Finding(
            "index-mismatch", Severity.ERROR, text, "Put the file itself there.", (name,), blocks=Blocks.UNLESS_ALLOWED
        )
        return Shard(name, 0, findings=[finding], readable=False)
    shard = Shard(name, 0)
    try:
        shard.nbytes = handles.size(path)
        content = sniff_file(handles, path).content
        if kind is CheckpointKind.SAFETENSORS_SHARDED and content in (Content.ZIP, Content.PICKLE):
            _wrong_kind(shard, "a torch file, not safetensors; it was not run")
        elif kind is CheckpointKind.TORCH_SHARDED and content is not Content.SAFETENSORS:
            _take_torch(shard, handles, path)
        else:
            file = open_safetensors(handles, path)
            shard.tensors, shard.metadata, shard.findings = file.tensors, file.metadata, list(file.findings)
            shard.weights = sum(t.nbytes for t in shard.tensors.values())
    except ShardyardError as error:
        code = str(getattr(error, "code", "corrupt"))
        remedy = error.remedy or COPY_AGAIN
        finding = Finding(code, Severity.ERROR, error.problem, remedy, (name,), blocks=Blocks.UNLESS_ALLOWED)
        shard.findings.append(finding)
        shard.readable = False
    return shard


def _wrong_kind(shard: Shard, what: str) -> None:
    text = f"{printable(shard.name)} is {what}."
    shard.findings.append(
        Finding("wrong-type", Severity.ERROR, text, "Fetch the right file.", (shard.name,), blocks=Blocks.UNLESS_ALLOWED)
    )
    shard.readable = False


def _take_torch(shard: Shard, handles: FileHandles, path: str) -> None:
    found = open_weights(handles, path)
    shard.tensors, shard.findings, shard.globals = found.tensors, found.findings, Counter(found.globals)
    shard.composites = found.composites
    uses = sharing.analyse(found.tensors.values())
    shard.weights = sum(u.touched for u in uses)
    shard.wasted = found.stored - shard.weights
    shard.ties = [owner_first(tuple(group)) for use in uses for group in use.ties]
