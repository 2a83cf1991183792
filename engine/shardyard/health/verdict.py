"""The short name of a checkpoint, and the sentences that answer: is this the whole model, in which precision, and what now."""

from __future__ import annotations

from collections.abc import Mapping

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Blocks, Finding, Severity
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS, holds_masters, training_steps
from shardyard.health.words import amount, listing, plural, size
from shardyard.text import printable

K = CheckpointKind
_TITLES: Mapping[CheckpointKind, str] = {
    K.SAFETENSORS: "safetensors file",
    K.SAFETENSORS_SHARDED: "sharded safetensors model",
    K.TORCH: "torch file",
    K.TORCH_SHARDED: "sharded torch model",
    K.ZERO0: "DeepSpeed checkpoint without ZeRO",
    K.ZERO1: "DeepSpeed ZeRO-1 checkpoint",
    K.ZERO2: "DeepSpeed ZeRO-2 checkpoint",
    K.ZERO3: "DeepSpeed ZeRO-3 checkpoint",
    K.PIPELINE: "DeepSpeed pipeline checkpoint",
    K.MOE: "DeepSpeed expert-parallel checkpoint",
    K.UNIVERSAL: "DeepSpeed universal checkpoint",
    K.DCP: "distributed checkpoint (DCP)",
    K.HF_DCP: "distributed checkpoint in safetensors shards",
    K.FSDP_RANKS: "FSDP rank files",
    K.FSDP_LOCAL: "FSDP local flat shards",
    K.TENSOR_PARALLEL: "tensor-parallel set",
    K.LORA: "LoRA adapter",
    K.GGUF: "GGUF file",
    K.NPZ: "NumPy archive",
    K.UNREADABLE: "unreadable file",
}
TRAINERS_NAMES = ("model.safetensors", "pytorch_model")
"""How the names of weights begin that loaders look for and trainers write."""
_TRAINING = frozenset(
    {K.ZERO0, K.ZERO1, K.ZERO2, K.ZERO3, K.PIPELINE, K.MOE, K.UNIVERSAL, K.DCP, K.HF_DCP, K.FSDP_RANKS, K.FSDP_LOCAL}
)


def title(checkpoint: Checkpoint) -> str:
    """A short name: what it is, which step, how many ranks or shards."""
    text = _TITLES[checkpoint.kind]
    model = checkpoint.config.get("model_type") if checkpoint.config else None
    if isinstance(model, str) and checkpoint.kind in HUB_KINDS:
        text += f" ({printable(model, 40)})"
    if checkpoint.kind is K.UNREADABLE and len(checkpoint.files) != 1:
        text = "unreadable folder"
    shards = sum(f.role == "weights" for f in checkpoint.files)
    if checkpoint.kind in (K.SAFETENSORS_SHARDED, K.TORCH_SHARDED):
        text += f", {plural(shards, 'shard')}"
    if checkpoint.tag is not None:
        text += f", {printable(checkpoint.tag, 60)}"
    elif checkpoint.step is not None:
        text += f", step {checkpoint.step:,}"
    if checkpoint.world_size is not None:
        text += f", {plural(checkpoint.world_size, 'rank')}"
    return text


def verdict(checkpoint: Checkpoint) -> str:
    """One or two sentences: whole or not, in which precision, what else is here, what to do next."""
    blocking = [f for f in checkpoint.findings if f.blocks is not Blocks.NOTHING]
    if checkpoint.kind is K.UNREADABLE:
        return _unreadable(checkpoint)
    if not facts.is_model(checkpoint):
        return _no_model(checkpoint, blocking)
    first = _incomplete(checkpoint, blocking) if blocking else _whole(checkpoint)
    second = _next(checkpoint, blocking)
    return f"{first} {second}".strip()


def _unreadable(checkpoint: Checkpoint) -> str:
    worst = checkpoint.findings[0] if checkpoint.findings else None
    if worst is None:
        return "Nothing can be said about it."
    if worst.code == "config-only":
        return f"{worst.message} {worst.remedy}"
    return f"This cannot be read as a checkpoint: {worst.message} {worst.remedy}".strip()


def _no_model(checkpoint: Checkpoint, blocking: list[Finding]) -> str:
    if blocking:
        return f"{_sentence(blocking[0])} {blocking[0].remedy}".strip()
    tensors = facts.model_tensors(checkpoint)
    if checkpoint.usage.optimizer and tensors:
        return f"Optimizer state alone ({plural(len(tensors), 'tensor')}), no weights: give the model's own folder or file."
    if not tensors:
        return "It holds no tensors, only other values." if checkpoint.objects else "It holds no tensors."
    return f"It holds {plural(len(tensors), 'tensor')}, but no set of weights."


def _amounts(checkpoint: Checkpoint) -> str:
    tensors = facts.model_tensors(checkpoint)
    count = facts.parameters(checkpoint)
    return f"{plural(len(tensors), 'tensor')}, {amount(count)} {'parameter' if count == 1 else 'parameters'}"


def _precision(checkpoint: Checkpoint) -> str:
    """`bfloat16`, or the shares of a mix."""
    by_dtype = facts.floating_bytes(checkpoint)
    if not by_dtype:
        kinds = sorted({t.dtype.name for t in facts.model_tensors(checkpoint).values() if facts.known(t)})
        return listing(kinds, 3) if kinds else ""
    ordered = sorted(by_dtype, key=lambda n: -by_dtype[n])
    if len(ordered) == 1 or by_dtype[ordered[0]] > 0.98 * sum(by_dtype.values()):
        return ordered[0]
    return f"{ordered[0]} with some {listing(ordered[1:], 2)}"


def _whole(checkpoint: Checkpoint) -> str:
    tensors = facts.model_tensors(checkpoint)
    if not tensors:
        return "It holds no tensors."
    precision = _precision(checkpoint)
    what = f"{_amounts(checkpoint)}{f', {precision}' if precision else ''}"
    partial = next((f for f in checkpoint.findings if f.code == "partial"), None)
    if partial is not None:
        return f"A part of a model, left so on purpose: {what}. {_sentence(partial)}"
    if checkpoint.kind is K.LORA:
        rank, alpha = checkpoint.metadata.get("rank"), checkpoint.metadata.get("alpha")
        base = checkpoint.metadata.get("base model")
        detail = f" of rank {printable(rank, 20)} (alpha {printable(alpha, 20) if alpha else 'not recorded'})" if rank else ""
        return f"An adapter{detail}, not a model: {what}" + (f"; it belongs on {printable(base, 80)}." if base else ".")
    if checkpoint.kind is K.TENSOR_PARALLEL:
        return f"A set of {plural(checkpoint.world_size or 0, 'piece')}, none of them a model by itself: {what} in all."
    if checkpoint.kind is K.FSDP_LOCAL:
        return f"Slices of a model without the names and shapes of its weights: {what}."
    if checkpoint.kind in (K.GGUF, K.NPZ):
        return f"{what[0].upper()}{what[1:]}: all there."
    steps = _steps_beside(checkpoint)
    if steps:
        name = listing([_weights_name(checkpoint)])
        return f"{name} is the gathered copy of the model, whole, in {precision}: {_amounts(checkpoint)}."
    if checkpoint.kind in _TRAINING and checkpoint.usage.masters:
        return f"The whole model as float32 masters: {_amounts(checkpoint)}, {size(checkpoint.usage.masters)}."
    doubt = next((f for f in checkpoint.findings if f.code in ("tie-missing", "missing-tensor")), None)
    if doubt is not None:
        return f"Probably not the whole model: {what}. {_sentence(doubt)}"
    several = [p.name for p in checkpoint.parts.values() if p.model]
    if checkpoint.part is None and len(several) > 1:
        return f"It holds {len(several)} sets of weights ({listing(several, 6)}), each whole; the first has {what}."
    unsure = any(f.code == "unknown-extent" for f in checkpoint.findings)
    whole = "As far as its files tell, the whole model" if unsure else "The whole model"
    return f"{whole}{f' in {precision}' if precision else ''}: {_amounts(checkpoint)}."


def _weights_name(checkpoint: Checkpoint) -> str:
    names = [f.path for f in checkpoint.files if f.role == "weights"]
    return names[0] if len(names) == 1 else next((f.path for f in checkpoint.files if f.role == "index"), checkpoint.path.name)


def _steps_beside(checkpoint: Checkpoint) -> list[str]:
    """Training steps beside weights that a trainer gathered: they have the names that trainers give them."""
    gathered = checkpoint.kind in HUB_KINDS and _weights_name(checkpoint).startswith(TRAINERS_NAMES)
    return training_steps(checkpoint) if gathered else []


def _incomplete(checkpoint: Checkpoint, blocking: list[Finding]) -> str:
    missing = [f for f in blocking if f.blocks is Blocks.UNLESS_ALLOWED]
    worst = next((f for f in blocking if f.blocks is Blocks.MERGE), blocking[0])
    if worst.code == "placeholder":
        return f"Not a model yet: {_lower(_sentence(worst))}"
    if worst.code == "piece":
        return f"Only a piece of a model. {_sentence(worst)}"
    here = sum(t.layout is not None for t in facts.model_tensors(checkpoint).values())
    if missing and worst in missing:
        more = f" ({plural(len(blocking) - 1, 'more finding')})" if len(blocking) > 1 else ""
        return f"Not the whole model; {plural(here, 'tensor')} can be read. {_sentence(worst)}{more}"
    return f"Damaged or unclear, so it is not merged: {_lower(_sentence(worst))}"


def _next(checkpoint: Checkpoint, blocking: list[Finding]) -> str:
    if blocking:
        worst = next((f for f in blocking if f.blocks is Blocks.MERGE), blocking[0])
        return worst.remedy
    if checkpoint.merge_note:
        return checkpoint.merge_note
    steps = _steps_beside(checkpoint)
    if steps:
        masters = next((s for s in reversed(steps) if holds_masters(checkpoint, s)), None)
        if masters is None:
            return f"A training step lies beside it, in {printable(steps[-1], 80)}."
        return f"The float32 masters and the optimizer are in {printable(masters, 80)}; merge that for full precision."
    several = [p.name for p in checkpoint.parts.values() if p.model]
    if checkpoint.part is None and len(several) > 1:
        return "Choose one with --part."
    rivals = next((f for f in checkpoint.findings if f.code == "competing-weights"), None)
    if rivals is not None:
        return _sentence(rivals)
    if checkpoint.kind in _TRAINING:
        optimizer = f" It holds {size(checkpoint.usage.optimizer)} of optimizer state too." if checkpoint.usage.optimizer else ""
        return f"Merge or export it to get files that loaders open.{optimizer}"
    bloat = [f for f in checkpoint.findings if f.code == "bloat" and f.severity is not Severity.INFO]
    if len(bloat) > 1:
        total = sum(f.nbytes for f in bloat)
        stored = sum(f.nbytes for f in checkpoint.files if f.role == "weights")
        return (
            f"{size(total)} of {size(stored)} in its files are wasted, because whole storages were saved behind views: shrink it."
        )
    serious = next((f for f in checkpoint.findings if f.severity is not Severity.INFO and f.remedy), None)
    if serious is not None:
        return f"{_sentence(serious)} {serious.remedy}"
    if checkpoint.kind in HUB_KINDS and checkpoint.config is not None:
        return "config.json is beside it, so loaders open this folder as it is."
    if checkpoint.kind in HUB_KINDS and _weights_name(checkpoint).startswith(TRAINERS_NAMES):
        return "No config.json is beside it, so no loader can open the folder yet: export it with --like BASE."
    return ""


def _sentence(finding: Finding) -> str:
    return finding.message if finding.message.endswith((".", "!", "?")) else finding.message + "."


def _lower(text: str) -> str:
    """The sentence as the second half of another, unless it begins with a file's name."""
    head = text.partition(" ")[0]
    return text[0].lower() + text[1:] if head.isalpha() and head[1:].islower() else text
