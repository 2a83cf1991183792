"""Names that no loader looks for: wrappers that were left on, and LoRA weights that were never merged."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Finding, Severity
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS
from shardyard.health.words import listing, plural

_ANYWHERE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_AT_THE_HEAD = ("module.", "_forward_module.")
_LORA = re.compile(r"(?:^|\.)(?:lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|base_layer)(?:\.|$)")
MOST_NAMED = 20


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Wrapper prefixes and unmerged LoRA weights; a warning where a loader would meet them, else a note."""
    said = {f.code for f in checkpoint.findings}
    names = list(facts.model_tensors(checkpoint)) if facts.is_model(checkpoint) else []
    if "wrapper-prefix" not in said:
        yield from _wrappers(checkpoint, names)
    if "lora-unmerged" not in said and checkpoint.kind is not CheckpointKind.LORA:
        yield from _lora(checkpoint, names)


def _severity(checkpoint: Checkpoint) -> Severity:
    loadable = checkpoint.kind in HUB_KINDS and checkpoint.config is not None
    return Severity.WARNING if loadable else Severity.INFO


def _wrappers(checkpoint: Checkpoint, names: list[str]) -> Iterator[Finding]:
    found = [w for w in _ANYWHERE if any(w in n.split(".") for n in names)]
    found += [w.rstrip(".") for w in _AT_THE_HEAD if names and all(n.startswith(w) for n in names)]
    if not found:
        return
    wrapped = [n for n in names if any(w in n.split(".") for w in found)]
    clean = len({_clean(n, found) for n in names})
    has, them = ("has", "it") if len(wrapped) == 1 else ("have", "them")
    text = f"{plural(len(wrapped), 'name')} such as {listing(wrapped[:1])} still {has} the wrapper "
    text += f"{listing([w + '.' for w in found])} in {them}; loaders do not find such names."
    remedy = "Merging strips it (--strip-prefix auto)."
    if clean != len(names):
        text += f" Without it {len(names) - clean} names would be the same as others."
        remedy = "Say which prefix to strip; names that would collide are refused."
    yield Finding("wrapper-prefix", _severity(checkpoint), text, remedy, tensors=tuple(wrapped[:MOST_NAMED]))


def _clean(name: str, wrappers: list[str]) -> str:
    return ".".join(part for part in name.split(".") if part not in wrappers)


def _lora(checkpoint: Checkpoint, names: list[str]) -> Iterator[Finding]:
    found = [n for n in names if _LORA.search(n)]
    if not found:
        return
    text = (
        f"It holds LoRA weights that are not merged into the base ({plural(len(found), 'name')} such as {listing(found[:1])}): "
    )
    text += "a loader would ignore them, or not find the base's names."
    remedy = "Merge with --lora split to get base and adapter apart, or --lora fold where rank and alpha are known."
    tensors = tuple(found[:MOST_NAMED])
    nbytes = sum(facts.model_tensors(checkpoint)[n].nbytes for n in found if "base_layer" not in n)
    yield Finding("lora-unmerged", _severity(checkpoint), text, remedy, tensors=tensors, nbytes=nbytes)
