"""Which names a model's config.json declares to be one tensor: the loader makes them one again, so they need storing once.

The endings are those of transformers' model classes (5.24): output heads that follow the input embedding, the embeddings of
encoders and decoders that follow `shared`, and the biases of masked-language heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from shardyard.checkpoint import Tie
from shardyard.formats.model_config import ties_embeddings

EMBEDDINGS = (
    "shared.weight",
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "tokens_embed.weight",
    "word_embedding.weight",
    "backbone.embeddings.weight",
    "rwkv.embeddings.weight",
)
"""Endings of input embeddings, the likeliest owner of a tie first."""

_HEADS = (
    "lm_head.weight",
    "embed_out.weight",
    "proj_out.weight",
    "output_projection.weight",
    "lm_head.decoder.weight",
    "lm_head.out_proj.weight",
    "predictions.decoder.weight",
    "generator_lm_head.weight",
    "vocab_projector.weight",
    "pred_layer.proj.weight",
    "mlm_score.decoder.weight",
    "lm_loss.weight",
)
_FOLLOW_SHARED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_BIASES = {"predictions.decoder.bias": "predictions.bias", "lm_head.decoder.bias": "lm_head.bias"}


def embedding_rank(name: str) -> int | None:
    """How likely a name is the input embedding that owns a tie, 0 first; None if it is no embedding."""
    return next((rank for rank, ending in enumerate(EMBEDDINGS) if ends_with(name, ending)), None)


def owner_first(names: Sequence[str]) -> Tie:
    """A tie by storage: the input embedding owns it, else the first in the file's order."""
    owner = min(names, key=lambda n: (embedding_rank(n) is None, embedding_rank(n) or 0, names.index(n)))
    return Tie((owner, *(n for n in names if n != owner)), "storage")


def ends_with(name: str, ending: str) -> bool:
    """Whether the name's last parts are `ending`."""
    return name == ending or name.endswith("." + ending)


def declared_ties(config: Mapping[str, object] | None, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Groups of names that config.json declares to be one tensor, the owner first; only names with equal shapes.

    Whether their bytes are equal is not known here.
    """
    if ties_embeddings(config) is not True:
        return []
    embeddings = sorted((name for name in shapes if embedding_rank(name) is not None), key=lambda n: embedding_rank(n) or 0)
    owners: dict[str, list[str]] = {}
    for alias in _aliases(shapes, embeddings):
        owner = _owner(alias, embeddings, shapes)
        if owner is not None:
            owners.setdefault(owner, []).append(alias)
    groups = [(owner, *(a for a in aliases if a not in owners)) for owner, aliases in owners.items()]
    for alias, owner in _bias_pairs(shapes):
        groups.append((owner, alias))
    return groups


def _aliases(shapes: Iterable[str], embeddings: list[str]) -> list[str]:
    shared = any(ends_with(name, "shared.weight") for name in embeddings)
    endings = (*_HEADS, *_FOLLOW_SHARED) if shared else _HEADS
    return [name for name in shapes if any(ends_with(name, ending) for ending in endings)]


def _owner(alias: str, embeddings: list[str], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    same = [name for name in embeddings if name != alias and shapes[name] == shapes[alias]]
    if not same:
        return None
    best = embedding_rank(same[0])
    # Of several embeddings of one kind, a head follows the decoder's, or the one that is nearest to it.
    nearest = [name for name in same if embedding_rank(name) == best]
    return max(nearest, key=lambda name: ("decoder." in name, _shared_start(name, alias)))


def _shared_start(a: str, b: str) -> int:
    """How many characters two names have in common from the left."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _bias_pairs(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    pairs = []
    for name in shapes:
        for ending, owner_ending in _BIASES.items():
            if ends_with(name, ending):
                owner = name[: len(name) - len(ending)] + owner_ending
                if shapes.get(owner) == shapes[name]:
                    pairs.append((name, owner))
    return pairs
