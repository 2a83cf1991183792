"""Whether the Hugging Face writer's shards are all here, as far as they tell: no shard says how many there were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.coverage import Block
from shardyard.text import printable

SHARD = re.compile(r"shard-(\d{1,9})-.+-(\d{1,9})-of-(\d{1,9})\.safetensors")
"""The rank that wrote it (from 1), and which of the output files its tensors belong to."""
_MOST_NAMED = 20


@dataclass(slots=True)
class Shards:
    """Which blocks each file holds."""

    blocks: dict[str, dict[str, Block]] = field(default_factory=dict)
    """By file and tensor."""

    def findings(self) -> Iterator[Finding]:
        """What does not fit together, and that the end cannot be seen."""
        yield from self._strangers()
        yield from self._doubled()
        yield from self._cut_short()
        yield Finding(
            "unknown-extent",
            Severity.INFO,
            "No shard says how many there were: if the last ranks' files are not here, tensors come out too short.",
            "Compare the shapes with config.json, or export with --like.",
            sure=False,
        )

    def _strangers(self) -> Iterator[Finding]:
        """A tensor belongs to one output file; a file under another's name brings it into a second."""
        first: dict[str, str] = {}
        for name, held in self.blocks.items():
            odd = next((t for t in held if _number(first.setdefault(t, name)) != _number(name)), None)
            if odd is not None:
                yield Finding(
                    "renamed-file",
                    Severity.ERROR,
                    f"{name} and {first[odd]} both hold {printable(odd, 120)}, which belongs to one of their numbers: "
                    "one of them lies under another file's name.",
                    "Copy both again from where they were written.",
                    (name, first[odd]),
                    blocks=Blocks.MERGE,
                )

    def _doubled(self) -> Iterator[Finding]:
        """The writer stores nothing twice: a file that adds nothing is a copy, and what should lie there is missing."""
        seen: dict[tuple[str, Block], str] = {}
        for name, held in self.blocks.items():
            earlier = {seen.get(item) for item in held.items()}
            if held and len(earlier) == 1 and (other := earlier.pop()) is not None:
                yield Finding(
                    "duplicate-copy",
                    Severity.ERROR,
                    f"{name} holds only parts that {other} holds: it may be a copy under its name, with its own parts missing.",
                    "Copy it again from where it was written.",
                    (name, other),
                    blocks=Blocks.UNLESS_ALLOWED,
                )
            seen.update((item, name) for item in held.items() if item not in seen)

    def _cut_short(self) -> Iterator[Finding]:
        """A rank that has some of its files: what the others would leave to it tells whether one is missing."""
        ranks: dict[int, set[int]] = {}
        for name in self.blocks:
            ranks.setdefault(_number(name), set()).add(_rank(name))
        known = set().union(*ranks.values())
        parts = self._parts()
        most = max((len(p) for p in parts.values()), default=0)
        for number, there in ranks.items():
            short = [t for t in self._tensors_of(number) if t in parts and _ends_early(parts[t], most)]
            lost = sorted(known - there)
            if short and lost:
                # Other tensors of that number may end there too without a trace, so that none of their shapes can be trusted.
                yield Finding(
                    "missing-shard",
                    Severity.ERROR,
                    f"Shard {lost[0]} has no file numbered {number}, and {printable(short[0], 120)} ends there.",
                    "Copy it from the node that wrote it, or give that node's folder as a further source.",
                    tensors=tuple(short[:_MOST_NAMED]),
                    blocks=Blocks.MERGE,
                )

    def _tensors_of(self, number: int) -> list[str]:
        return list(dict.fromkeys(t for name, held in self.blocks.items() if _number(name) == number for t in held))

    def _parts(self) -> dict[str, list[tuple[int, int]]]:
        """(start, length) of the parts of each tensor that is cut along one dimension."""
        found: dict[str, set[Block]] = {}
        for held in self.blocks.values():
            for tensor, block in held.items():
                found.setdefault(tensor, set()).add(block)
        return {tensor: cut for tensor, blocks in found.items() if (cut := _along_one(sorted(blocks)))}


def _along_one(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    dims = [d for d in range(len(blocks[0][0])) if len({offsets[d] for offsets, _ in blocks}) > 1]
    return [(offsets[dims[0]], sizes[dims[0]]) for offsets, sizes in blocks] if len(dims) == 1 else []


def _ends_early(parts: Sequence[tuple[int, int]], ranks: int) -> bool:
    """Whether as many ranks would have cut these rows otherwise, had there been no more of them."""
    rows = parts[-1][0] + parts[-1][1]
    return 1 < len(parts) < ranks and -(-rows // ranks) != parts[0][1]


def _rank(name: str) -> int:
    match = SHARD.fullmatch(name)
    return int(match[1]) if match else 0


def _number(name: str) -> int:
    match = SHARD.fullmatch(name)
    return int(match[2]) if match else 0
