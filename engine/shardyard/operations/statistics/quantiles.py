"""Exact quantiles of any number of elements in bounded memory: counting over the ordered bit patterns, 16 bits a pass.

A tensor of at most `MOST_KEPT` elements, and every 8- and 16-bit kind, needs one pass; 32-bit kinds need two, 64-bit kinds up to
four (fewer as soon as what is still in question fits into memory).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray as Array

MOST_KEPT = 1 << 20
"""Keys that are kept and sorted instead of counted; far fewer where one pass of counting tells all, but costs a table."""
_DIGIT = 16


@dataclass(slots=True)
class _Group:
    """Keys that share their leading digits and hold at least one of the wanted ranks."""

    prefix: int
    before: int
    """Keys that are smaller than all of these."""
    size: int
    ranks: list[int]


@dataclass(slots=True)
class Selection:
    """Finds the keys at given ranks; feed every key once a pass, in any order, until `done`."""

    bits: int
    """Of a key."""
    count: int
    """Keys in all."""
    ranks: Sequence[int] | None = None
    """Which are wanted; may be set after the first pass, whose digit does not depend on them."""
    found: dict[int, int] = field(default_factory=dict)
    _groups: list[_Group] = field(default_factory=list)
    _known: int = 0
    """Leading bits that the groups share."""
    _counts: Array | None = None
    _kept: list[Array] = field(default_factory=list)
    _table: Array | None = None
    """Group by leading digit: quicker than a search while there is one digit only."""

    def __post_init__(self) -> None:
        self._groups = [_Group(0, 0, self.count, [])]
        self._prepare()

    @property
    def done(self) -> bool:
        """Whether every wanted key is known."""
        return self.ranks is not None and not self._groups

    @property
    def _keeping(self) -> bool:
        left = sum(g.size for g in self._groups)
        return left <= (MOST_KEPT if self.bits > _DIGIT else MOST_KEPT >> _DIGIT)

    def _prepare(self) -> None:
        self._kept = []
        width = min(_DIGIT, self.bits - self._known)
        self._counts = None if self._keeping else np.zeros((len(self._groups), 1 << width), np.int64)

    def feed(self, keys: Array) -> None:
        """Look at some of the keys."""
        if self._known:
            place = self._place(keys >> keys.dtype.type(self.bits - self._known))
            inside = np.flatnonzero(place < len(self._groups))
            keys, place = keys[inside], place[inside].astype(np.int64)
        else:
            place = None
        if self._counts is None:
            self._kept.append(keys.copy())
            return
        width = self._counts.shape[1]
        shift = self.bits - self._known - (width.bit_length() - 1)
        digits = (keys >> keys.dtype.type(shift)).astype(np.int64)
        if place is not None:
            digits = (digits & (width - 1)) + place * width
        self._counts += np.bincount(digits, minlength=self._counts.size).reshape(self._counts.shape)

    def _place(self, lead: Array) -> Array:
        """For each lead, the index of its group; their number for those that are in none."""
        if self._known == _DIGIT:
            if self._table is None:
                self._table = np.full(1 << _DIGIT, len(self._groups), np.uint8)
                self._table[[g.prefix for g in self._groups]] = np.arange(len(self._groups))
            return self._table.take(lead)
        prefixes = np.array([g.prefix for g in self._groups], lead.dtype)
        place = np.searchsorted(prefixes, lead)
        clipped = np.minimum(place, len(prefixes) - 1)
        return np.where(prefixes[clipped] == lead, clipped, len(prefixes))

    def end_pass(self, ranks: Iterable[int] | None = None) -> None:
        """Every key was fed: narrow the groups down, or end."""
        if ranks is not None:
            self.ranks = sorted(set(ranks))
            self._groups[0].ranks = list(self.ranks)
        if self._counts is None:
            self._sort_kept()
        else:
            self._count_on()
        if self._groups:
            self._prepare()

    def _sort_kept(self) -> None:
        keys = np.sort(np.concatenate(self._kept)) if self._kept else np.zeros(0, np.uint64)
        start = 0
        for group in self._groups:
            for rank in group.ranks:
                self.found[rank] = int(keys[start + rank - group.before])
            start += group.size
        self._groups, self._kept = [], []

    def _count_on(self) -> None:
        assert self._counts is not None
        width = self._counts.shape[1].bit_length() - 1
        self._known += width
        groups: list[_Group] = []
        for group, counts in zip(self._groups, self._counts, strict=True):
            ends = np.cumsum(counts) + group.before
            for rank in group.ranks:
                digit = int(np.searchsorted(ends, rank, side="right"))
                prefix = (group.prefix << width) | digit
                if self._known == self.bits:
                    self.found[rank] = prefix
                elif groups and groups[-1].prefix == prefix:
                    groups[-1].ranks.append(rank)
                else:
                    groups.append(_Group(prefix, int(ends[digit] - counts[digit]), int(counts[digit]), [rank]))
        self._groups = groups

    @property
    def table(self) -> Array | None:
        """Counts of every key, where keys have at most 16 bits: after the first pass, the whole truth about the tensor."""
        return self._counts[0] if self._counts is not None and self.bits <= _DIGIT else None


def interpolation(count: int, quantile: float) -> tuple[int, int, float]:
    """(lower rank, upper rank, share of the upper) of a quantile, linear as numpy's default."""
    position = (count - 1) * quantile
    low = int(np.floor(position))
    return low, min(low + 1, count - 1), position - low
