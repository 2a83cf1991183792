"""Tensor lists folded: layer numbers become `#`, so that 32 equal layers take the rows of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardyard.text import printable

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(slots=True)
class Pattern:
    """Tensors whose names differ only in numbers, of one dtype and shape."""

    name: str
    """With `#` for each number that varies."""
    type: str
    count: int
    nbytes: int


def fold(rows: Iterable[Mapping[str, object]]) -> list[Pattern]:
    """The patterns of a tensor list (`name`, `dtype`, `shape`, `bytes`), in order of first appearance."""
    found: dict[tuple[str, str], Pattern] = {}
    names: dict[tuple[str, str], str] = {}
    for row in rows:
        name, nbytes = str(row["name"]), row["bytes"]
        kind = f"{printable(str(row['dtype']))} {row['shape']}"
        key = (_NUMBER.sub("#", name), kind)
        pattern = found.get(key)
        if pattern is None:
            pattern = found[key] = Pattern(key[0], kind, 0, 0)
            names[key] = name
        pattern.count += 1
        pattern.nbytes += nbytes if isinstance(nbytes, int) else 0
    for key, pattern in found.items():
        if pattern.count == 1:
            pattern.name = names[key]
    return list(found.values())
