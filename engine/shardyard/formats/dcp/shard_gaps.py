"""Whether the Hugging Face writer's shards are all here, as they and config.json tell: none says how many there were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.coverage import Block
from shardyard.formats.dcp import extents
from shardyard.text import printable

SHARD = re.compile(r"shard-(\d{1,9})-.+-(\d{1,9})-of-(\d{1,9})\.safetensors")
"""The rank that wrote it (from 1), and which of the output files its tensors belong to."""
_MOST_NAMED = 20


@dataclass(slots=True)
class Shards:
    """Which blocks each file holds."""

    blocks: dict[str, dict[str, Block]] = field(default_factory=dict)
    """By file and tensor."""

    def findings(self, shapes: extents.Shapes, config: Mapping[str, object] | None) -> Iterator[Finding]:
        """What does not fit together, and what is known of the end; the shapes are as far as parts reach."""
        yield from self._strangers()
        yield from self._doubled()
        yield from self._cut_short()
        yield from self._numbers()
        short = extents.short(shapes, config)
        if short:
            yield extents.finding(short, self._ranks())
        elif not self.proven(shapes, config):
            yield Finding(
                "unknown-extent",
                Severity.INFO,
                "No shard says how many there were: if the last ranks' files are not here, tensors come out too short.",
                "Compare the shapes with config.json, or export with --like.",
                sure=False,
            )

    def proven(self, shapes: extents.Shapes, config: Mapping[str, object] | None) -> bool:
        """Whether the files are those of all ranks: config.json's words are cut among so many, and each has all files."""
        name, words, ranks = extents.largest_embedding(shapes), extents.vocabulary(config), self._ranks()
        if name is None or shapes[name][0] != words or len(self.blocks) != ranks * _total(next(iter(self.blocks))):
            return False
        places = {held[name] for held in self.blocks.values() if name in held}
        starts = {offsets[0] for offsets, _ in places}
        most = max(sizes[0] for _, sizes in places)
        return len(starts) == len(places) == ranks and -(-words // (ranks + 1)) < most == -(-words // ranks)

    def _ranks(self) -> int:
        return max(map(_rank, self.blocks), default=0)

    def _numbers(self) -> Iterator[Finding]:
        """Each name says of how many output files it is one; no other rank's file tells of a number that none has."""
        totals = sorted({_total(name) for name in self.blocks})
        if len(totals) > 1:
            yield Finding(
                "stale-file",
                Severity.ERROR,
                f"Some shards are of {totals[0]} output files and some of {totals[-1]}: they come from different saves.",
                "Keep the shards of one save in the folder.",
                tuple(next(n for n in self.blocks if _total(n) == total) for total in (totals[0], totals[-1])),
                blocks=Blocks.MERGE,
            )
            return
        there = {_number(name) for name in self.blocks}
        lost = totals[0] - len(there) if totals else 0
        if lost > 0:
            first = next(n for n in range(1, totals[0] + 1) if n not in there)
            yield Finding(
                "missing-shard",
                Severity.ERROR,
                f"No rank's file numbered {first} of {totals[0]} is here{f' (and {lost - 1} more numbers)' if lost > 1 else ''}: "
                "the tensors in it are missing.",
                "Copy the files of that number from where they were written.",
                blocks=Blocks.UNLESS_ALLOWED,
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
    return _said(name, 1)


def _number(name: str) -> int:
    return _said(name, 2)


def _total(name: str) -> int:
    return _said(name, 3)


def _said(name: str, group: int) -> int:
    match = SHARD.fullmatch(name)
    return int(match[group]) if match else 0
