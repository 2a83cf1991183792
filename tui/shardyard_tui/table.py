"""The tensors of one checkpoint, small enough to keep half a million of them in a few megabytes.

Names repeat: `model.layers.17.mlp.up_proj.weight` is the pattern `model.layers.#.mlp.up_proj.weight` and the number 17, so a row
is two numbers and a reference to facts that many rows share.  A filter without digits is answered for each pattern once.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardyard_tui.filters import Filter, holds

_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")


class Facts(NamedTuple):
    """What many tensors have in common."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    role: str
    files: tuple[str, ...]
    """Relative to the checkpoint."""
    flags: tuple[str, ...] = ()
    """`tied`, `frozen`, `missing`, `part of a storage`, …"""

    @property
    def parameters(self) -> int:
        """Elements."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total


@dataclass(slots=True)
class TensorTable:
    """Rows in natural order of names. Rows are added once, by whoever reads the checkpoint."""

    patterns: list[tuple[str, ...]] = field(default_factory=list)
    """The texts around the numbers."""
    facts: list[Facts] = field(default_factory=list)
    pattern: array[int] = field(default_factory=lambda: array("I"))
    fact: array[int] = field(default_factory=lambda: array("I"))
    start: array[int] = field(default_factory=lambda: array("I"))
    """Where in `numbers` a row's numbers begin."""
    numbers: array[int] = field(default_factory=lambda: array("I"))
    tied_to: dict[int, str] = field(default_factory=dict)
    """Row to the owner's name, for the names that are another tensor's."""

    def __len__(self) -> int:
        return len(self.pattern)

    def name(self, row: int) -> str:
        """The row's name."""
        texts = self.patterns[self.pattern[row]]
        if len(texts) == 1:
            return texts[0]
        at, numbers = self.start[row], self.numbers
        if len(texts) == 2:
            return f"{texts[0]}{numbers[at]}{texts[1]}"
        if len(texts) == 3:
            return f"{texts[0]}{numbers[at]}{texts[1]}{numbers[at + 1]}{texts[2]}"
        return texts[0] + "".join(f"{self.numbers[at + k]}{text}" for k, text in enumerate(texts[1:]))

    def of(self, row: int) -> Facts:
        """What is known of the row."""
        return self.facts[self.fact[row]]

    def pattern_name(self, index: int) -> str:
        """A pattern with `#` for its numbers."""
        return "#".join(self.patterns[index])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows but those that are another's."""
        return sum(self.facts[f].nbytes for i, f in enumerate(self.fact) if i not in self.tied_to)

    def matching(self, wanted: Filter, among: Iterable[int]) -> Sequence[int]:
        """The rows of `among` that the filter lets through."""
        if wanted.empty:
            return among if isinstance(among, range) else list(among)
        if wanted.words and not any(c.isdigit() for word, _ in wanted.words for c in word):
            # Without digits a word lies wholly inside one of a pattern's texts.
            passes = [all(_pattern_holds(texts, w, n) for w, n in wanted.words) for texts in self.patterns]
            pattern = self.pattern
            return [i for i in among if passes[pattern[i]]]
        name = self.name
        return [i for i in among if wanted.matches(name(i))]

    def groups(self, rows: Iterable[int]) -> list[Group]:
        """The rows folded: one group a pattern, in the order in which they first come."""
        found: dict[int, list[int]] = {}
        for row in rows:
            found.setdefault(self.pattern[row], []).append(row)
        return [Group(self, index, rows) for index, rows in found.items()]


def _pattern_holds(texts: tuple[str, ...], word: str, negated: bool) -> bool:
    return any(holds(text, word, False) for text in texts) is not negated


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors whose names differ only in their numbers."""

    table: TensorTable
    index: int
    rows: list[int]

    @property
    def name(self) -> str:
        return self.table.pattern_name(self.index)

    @property
    def nbytes(self) -> int:
        return sum(self.table.of(row).nbytes for row in self.rows)

    @property
    def parameters(self) -> int:
        return sum(self.table.of(row).parameters for row in self.rows)

    def common(self, what: str) -> str:
        """The value of a fact that all share, or how many different ones there are."""
        seen = {getattr(self.table.of(row), what) for row in self.rows}
        if len(seen) > 1:
            return f"{len(seen)} kinds"
        value = next(iter(seen))
        return "×".join(map(str, value)) or "scalar" if isinstance(value, tuple) else str(value)


def _parts(name: str) -> tuple[Any, ...]:
    """Texts and numbers in turn."""
    parts: list[Any] = _NUMBER.split(name)
    parts[1::2] = map(int, parts[1::2])
    return tuple(parts)


class TableBuilder:
    """Fills a table; rows may come in any order."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, Facts, str]] = []
        self._interned: dict[Facts, Facts] = {}

    def add(self, name: str, facts: Facts, tied_to: str = "") -> None:
        """One tensor; names must already be safe to show."""
        self._rows.append((name, self._interned.setdefault(facts, facts), tied_to))

    def build(self) -> TensorTable:
        """The table, in natural order."""
        table = TensorTable()
        patterns: dict[tuple[str, ...], int] = {}
        facts: dict[Facts, int] = {}
        rows = [(_parts(name), fact, tied_to) for name, fact, tied_to in self._rows]
        self._rows = []
        # Texts stand at even places and numbers at odd ones, so that parts compare in natural order.
        rows.sort(key=lambda row: row[0])
        for parts, fact, tied_to in rows:
            pattern = patterns.setdefault(parts[::2], len(patterns))
            if tied_to:
                table.tied_to[len(table)] = tied_to
            table.pattern.append(pattern)
            table.fact.append(facts.setdefault(fact, len(facts)))
            table.start.append(len(table.numbers))
            table.numbers.extend(parts[1::2])
        table.patterns, table.facts = list(patterns), list(facts)
        return table
