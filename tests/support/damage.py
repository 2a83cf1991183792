"""What was done to a damaged case, by the lists of files that it and the case it was made from record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Damage:
    """Files by their path in the case."""

    gone: list[str]
    added: list[str]
    changed: dict[str, tuple[int, int]]
    """Sizes before and after."""


def damage_of(case: Path) -> Damage:
    """The difference to the whole case; a change that keeps all sizes is none."""
    known = json.loads((case / "expected.json").read_text())
    origin = case.parent / (known.get("made_from") or known["copied_from"])
    before, after = json.loads((origin / "expected.json").read_text())["files"], known["files"]
    return Damage(
        [path for path in before if path not in after],
        [path for path in after if path not in before],
        {path: (before[path], after[path]) for path in before if before[path] != after.get(path, before[path])},
    )
