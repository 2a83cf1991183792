"""How far the tensors of Hugging Face shards must reach, by config.json and by each other.

No shard says how large a tensor is or how many ranks wrote: without the last ranks' files, all tensors are whole and too short.
The number of words tells it (config.json), and so do the model's own widths: what adds to the stream of hidden states has as many
rows as the embedding has columns, and a projection is as long as the one that takes its values is wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.declared_ties import embedding_rank, ends_with
from shardyard.formats.model_config import text_part
from shardyard.text import printable

Shapes = Mapping[str, tuple[int, ...]]
_MOST_NAMED = 20
_EMBEDDING = "embed_tokens.weight"
_STREAM = re.compile(
    r"(?:layers\.\d{1,5}\.(?:(?:input|post_attention)_layernorm|self_attn\.o_proj|mlp\.down_proj)|norm)\.weight", re.ASCII
)
"""What has a row for each hidden state, by its name from the embedding's module on."""
_TAKEN_BY = {
    "mlp.gate_proj.weight": "mlp.down_proj.weight",
    "mlp.up_proj.weight": "mlp.down_proj.weight",
    "self_attn.q_proj.weight": "self_attn.o_proj.weight",
}


@dataclass(frozen=True, slots=True)
class Short:
    """A tensor with fewer rows than it must have."""

    name: str
    rows: int
    wanted: int
    said_by: str


def vocabulary(config: Mapping[str, object] | None) -> int | None:
    """How many words config.json says there are."""
    size = text_part(config).get("vocab_size") if config is not None else None
    return size if type(size) is int and size > 0 else None


def largest_embedding(shapes: Shapes) -> str | None:
    """The name of the input embedding with the most rows: others may be of positions, codes or parts of a vocabulary."""
    matrices = (name for name, shape in shapes.items() if len(shape) == 2 and embedding_rank(name) is not None)
    return max(matrices, key=lambda name: shapes[name][0], default=None)


def short(shapes: Shapes, config: Mapping[str, object] | None) -> list[Short]:
    """Every tensor that must have more rows than its parts reach."""
    return [s for s in (*_by_config(shapes, vocabulary(config)), *_by_each_other(shapes)) if s.rows < s.wanted]


def finding(found: list[Short], ranks: int) -> Finding:
    """One for all of them; the other tensors' shapes cannot be trusted either."""
    first = found[0]
    more = f" (and {len(found) - 1} more tensors end too early)" if len(found) > 1 else ""
    return Finding(
        "missing-shard",
        Severity.ERROR,
        f"{printable(first.name, 120)} has {first.rows:,} rows of {first.wanted:,} that {printable(first.said_by, 120)} tells of"
        f"{more}: more ranks than {ranks} wrote shards, and theirs are missing.",
        "Copy them from the nodes that wrote them, or give those nodes' folders as further sources.",
        tensors=tuple(dict.fromkeys(s.name for s in found[:_MOST_NAMED])),
        blocks=Blocks.MERGE,
    )


def _by_config(shapes: Shapes, words: int | None) -> Iterator[Short]:
    # Not the output head: some models leave rows that are only padding out of it.
    name = largest_embedding(shapes)
    if name is not None and words is not None:
        yield Short(name, shapes[name][0], words, "config.json")


def _by_each_other(shapes: Shapes) -> Iterator[Short]:
    stacks = {n.removesuffix(_EMBEDDING): n for n, s in shapes.items() if len(s) == 2 and ends_with(n, _EMBEDDING)}
    for name, shape in shapes.items():
        head = max((h for h in stacks if name.startswith(h)), key=len, default=None)
        if head is not None and shape and _STREAM.fullmatch(name, len(head)):
            yield Short(name, shape[0], shapes[stacks[head]][1], stacks[head])
        ending = next((e for e in _TAKEN_BY if ends_with(name, e)), None)
        taker = name.removesuffix(ending) + _TAKEN_BY[ending] if ending is not None else name
        if taker != name and len(shape) == len(shapes.get(taker, ())) == 2:
            yield Short(name, shape[0], shapes[taker][1], taker)
