"""Names of one tensor: what the file recorded against what config.json says, and copies that only one of them explains.

Three sources speak: a shared storage or alias map in the files, config.json, and equal bytes (which only reading the data tells).
Where they disagree it is said, and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint, Role
from shardyard.findings import Finding, Severity
from shardyard.formats import model_config
from shardyard.formats.declared_ties import declared_ties, embedding_rank, ends_with
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS
from shardyard.health.words import listing, size

HEADS = ("lm_head.weight", "embed_out.weight", "output.weight", "output_projection.weight", "proj_out.weight")
_WITH_HEAD = ("CausalLM", "LMHead", "ForConditionalGeneration", "Seq2SeqLM")


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Every disagreement about ties that names and headers show."""
    if checkpoint.config is None or not facts.is_model(checkpoint):
        return
    tensors = facts.model_tensors(checkpoint)
    shapes = {n: t.shape for n, t in tensors.items() if facts.known(t) and t.role in (Role.WEIGHT, Role.MASTER)}
    recorded = facts.tied_groups(checkpoint)
    tied = model_config.ties_embeddings(checkpoint.config)
    if tied is not None:
        checkpoint.checked.add("ties")
    if tied:
        yield from _copies(checkpoint, shapes, recorded)
    if checkpoint.complete:
        yield from _head(checkpoint, shapes, tied)
    if tied is False and model_config.says_ties(checkpoint.config):
        yield from _unexpected(recorded)


def _copies(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], recorded: list[tuple[str, ...]]) -> Iterator[Finding]:
    """Tied by config.json, stored more than once."""
    if checkpoint.kind not in HUB_KINDS:
        return
    for group in declared_ties(checkpoint.config, shapes):
        separate = _separate(group, recorded)
        if len(separate) < 2:
            continue
        nbytes = sum(facts.model_tensors(checkpoint)[n].nbytes for n in separate[1:])
        text = (
            f"{listing(separate)} are stored separately although config.json ties them: "
            f"{size(nbytes)} twice, if they are equal (not compared yet)."
        )
        remedy = "`shardyard inspect --deep` compares them; `shardyard shrink --dedupe-tied` drops an equal copy."
        yield Finding("duplicate-copy", Severity.WARNING, text, remedy, tensors=tuple(separate), nbytes=nbytes, sure=False)


def _separate(group: tuple[str, ...], recorded: list[tuple[str, ...]]) -> list[str]:
    """One name for each stored copy of a declared group."""
    copies: dict[object, str] = {}
    for name in group:
        key: object = next((i for i, names in enumerate(recorded) if name in names), name)
        copies.setdefault(key, name)
    return list(copies.values())


def _head(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], tied: bool | None) -> Iterator[Finding]:
    """The output head is absent, and nothing says that the embedding takes its place."""
    config = checkpoint.config
    architectures = config.get("architectures") if config else None
    named = [a for a in architectures if isinstance(a, str)] if isinstance(architectures, list) else []
    if tied is None or not any(kind in a for a in named for kind in _WITH_HEAD):
        return
    heads = [n for n in shapes if any(ends_with(n, head) for head in HEADS)]
    embeddings = [n for n in shapes if embedding_rank(n) is not None]
    if not tied and embeddings and not heads and checkpoint.kind in HUB_KINDS:
        text = (
            f"The output head (such as lm_head.weight) is missing, and config.json does not tie it to {listing(embeddings[:1])}: "
            "loaders would leave it random."
        )
        remedy = "Set tie_word_embeddings in config.json if the model is tied, or fetch the head's weights."
        yield Finding("tie-missing", Severity.WARNING, text, remedy, tensors=tuple(embeddings[:1]), sure=False)
    if tied and heads and not embeddings and checkpoint.kind in HUB_KINDS:
        text = f"Only {listing(heads[:1])} is stored of a tied pair; loaders look for the input embedding."
        yield Finding("tie-missing", Severity.WARNING, text, "Merge it again with --tied both.", tensors=tuple(heads), sure=False)
    mismatched = [h for h in heads if tied and embeddings and all(shapes[h] != shapes[e] for e in embeddings)]
    if mismatched and not any(ends_with(h, "output.weight") or ends_with(h, "proj_out.weight") for h in mismatched):
        text = f"config.json ties {listing(mismatched[:1])} to {listing(embeddings[:1])}, but their shapes differ."
        remedy = "Both are kept; correct tie_word_embeddings in config.json if they are separate weights."
        yield Finding("tie-disagrees", Severity.WARNING, text, remedy, tensors=(*mismatched[:1], *embeddings[:1]))


def _unexpected(recorded: list[tuple[str, ...]]) -> Iterator[Finding]:
    """Tied in the files although config.json says that the embeddings are not."""
    for group in recorded:
        heads = [n for n in group if any(ends_with(n, head) for head in HEADS)]
        embeddings = [n for n in group if embedding_rank(n) is not None]
        if heads and embeddings:
            text = f"{listing(group)} are one tensor in the files, but config.json says tie_word_embeddings is false."
            remedy = "Both names are kept; set tie_word_embeddings to true if the model is meant to be tied."
            yield Finding("tie-disagrees", Severity.WARNING, text, remedy, tensors=group)
