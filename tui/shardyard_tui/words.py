"""What kinds, roles and states are called, and what a finding's code means to somebody who never read the manual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS: Mapping[str, tuple[str, str]] = {
    "safetensors": ("safetensors", "safet."),
    "safetensors-sharded": ("safetensors, sharded", "safet."),
    "torch": ("torch file", "torch"),
    "torch-sharded": ("torch, sharded", "torch"),
    "deepspeed-zero0": ("DeepSpeed, no ZeRO", "zero0"),
    "deepspeed-zero1": ("DeepSpeed ZeRO-1", "zero1"),
    "deepspeed-zero2": ("DeepSpeed ZeRO-2", "zero2"),
    "deepspeed-zero3": ("DeepSpeed ZeRO-3", "zero3"),
    "deepspeed-pipeline": ("DeepSpeed pipeline", "pipe"),
    "deepspeed-moe": ("DeepSpeed MoE", "moe"),
    "deepspeed-universal": ("DeepSpeed universal", "univ."),
    "dcp": ("torch DCP", "dcp"),
    "hf-dcp": ("DCP in safetensors", "hf-dcp"),
    "fsdp-ranks": ("FSDP rank files", "fsdp"),
    "fsdp-local": ("FSDP local shards", "fsdp"),
    "tensor-parallel": ("tensor parallel", "tp"),
    "lora-adapter": ("LoRA adapter", "lora"),
    "gguf": ("GGUF", "gguf"),
    "npz": ("NumPy archive", "npz"),
    "unreadable": ("cannot be read", "?"),
}
"""Kind to its name, and to one that fits seven cells."""

ROLES: Mapping[str, str] = {
    "weights": "weights",
    "masters": "fp32 masters",
    "optimizer": "optimizer",
    "other": "other",
    "wasted": "wasted",
}

WHY: Mapping[str, str] = {
    "bloat": "The file stores whole buffers of which its tensors use a part: usual when a slice was saved without a copy.",
    "overlap": "Two tensors share some bytes but not all: whoever loads both and changes one changes the other.",
    "tie-missing": "config.json says two weights are one, but only one is stored: a loader makes the other again.",
    "tie-disagrees": "Two weights that should be one hold different values: which one is right cannot be known from the files.",
    "duplicate-copy": "The same values are stored more than once; loading works, the disk holds them twice.",
    "placeholder": "A tensor of no elements stands for a weight: ZeRO-3 and FSDP leave these when saving goes around them.",
    "empty-file": "A file of no bytes: the save was cut off, or the disk was full.",
    "missing-shard": "The index names a file that is not here: part of the weights would be missing.",
    "masters-unnamed": "Without ZeRO the optimizer files do not say which tensor a master is of: the 16-bit weights are read.",
    "missing-rank": "Each rank saved a part of every tensor; without one of them no tensor is whole.",
    "missing-metadata": "The file that says what is where is not here; a DCP save writes it last, so this one did not finish.",
    "missing-tensor": "A weight is named, but its data is nowhere.",
    "renamed-file": "A file lies under another one's name: it would be read as if it held another rank's part.",
    "unknown-extent": "The files tell where parts go, not how far they should reach: the end can only be compared with a config.",
    "stale-file": "A file of another save lies among these: a merge that took it in would mix two moments of training.",
    "truncated": "The file ends before its data does: a copy or a save was cut off.",
    "corrupt": "What the file says of itself does not add up: nothing in it can be trusted.",
    "index-mismatch": "Index and shards disagree about what is where.",
    "competing-weights": "Two sets of weights lie in one folder, and loaders do not agree on which to take.",
    "dangling-latest": "`latest` names a step that is not here; another complete one is used and said.",
    "unsafe-pickle": "Loading this file the usual way would run code that it carries. Here it was read as data; nothing was run.",
    "lfs-pointer": "A few lines of text stand in for the real file, which Git LFS never fetched.",
    "wrong-type": "The file is not what its name says.",
    "wrapper-prefix": "Names carry the mark of a wrapper (compile, DDP, FSDP) that loaders do not know. A merge takes it off.",
    "lora-unmerged": "These are a base model and an adapter side by side, not one model.",
    "wider-than-config": "Weights are stored wider than config.json says the model is: often twice the disk for nothing.",
    "quantised": "The weights are quantised: they are moved as they are, never cast.",
    "partial": "Some weights were left out on purpose, by the trainer's own record.",
    "piece": "This is one piece of a checkpoint that was split over ranks; the others are needed too.",
    "unknown-layout": "The layout is not one that is known here; guessing could be silently wrong.",
    "unsupported": "The layout is known but cannot be merged.",
    "optimizer-state": "It is most of what training saves, and only training needs it.",
    "staging-sibling": "A merge into this place began and did not end; going on costs less than starting over.",
    "disk-tight": "It fits, but hardly anything is left for others, and a disk that fills up meanwhile stops the job.",
    "overflow": "Values too large for the narrower type would become infinite, and the model would give NaN.",
    "other-level": "The path given lies above or below the checkpoint itself.",
    "no-format-tag": "Some loaders refuse a safetensors file that does not say which framework wrote it.",
    "differs-from-base": "Names or shapes are not those of the base model, so a loader for it would not take them.",
    "copy-disagrees": "The 16-bit copy of the same step is not what the masters round to: one is damaged or of another step.",
    "nan": "A weight that is not a number makes every output that touches it not a number.",
    "inf": "A weight that is infinite makes outputs that touch it infinite or not a number.",
    "constant": "A trained matrix is never one value throughout: it was never written, or something overwrote it.",
    "all-zero": "A trained matrix is never all zeros: it was never written, was pruned, or starts as zeros by design (LoRA).",
    "config-only": "A configuration says what the model looks like; the weights themselves are elsewhere.",
}
"""Code to why it matters, where the finding itself does not say."""

CHECKS: Mapping[str, str] = {
    "headers": "headers",
    "ranks": "ranks",
    "shapes": "shapes",
    "ties": "ties",
    "crc": "checksums",
    "values": "values",
}


def kind_name(report: Mapping[str, Any]) -> str:
    """`DeepSpeed ZeRO-3, 8 ranks, step 300`."""
    kind = str(report.get("kind") or "")
    name = KINDS.get(kind, (kind, kind))[0]
    world, step = report.get("world_size"), report.get("step")
    return name + (f", {world} ranks" if world and world > 1 else "") + (f", step {step}" if step is not None else "")


def short_kind(kind: str) -> str:
    return KINDS.get(kind, (kind, kind[:9]))[1]
