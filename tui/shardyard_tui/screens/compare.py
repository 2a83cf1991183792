"""Two checkpoints, tensor by tensor."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence

from shardyard_tui import units
from shardyard_tui.facts import Document, JobRequest, JobView
from shardyard_tui.screens.row_job import RowJob
from shardyard_tui.views.relations import COLUMNS, in_full, rank
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import bar, wrap

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)\.")


class Compare(RowJob):
    """See the module."""

    NAME = "Compare"
    EXPLAINS = "Are these the same weights? In any two containers, with no merge first. Names on one side only come as rows too."
    COLUMNS = COLUMNS
    FIRST_SORT = "r"

    def __init__(self, a: str, b: str, job: JobView | None = None) -> None:
        super().__init__(JobRequest("compare", (a, b)), job)

    def where(self) -> Sequence[str]:
        a, b = (os.path.basename(path.rstrip("/")) for path in self.request.sources)
        return ("compare", f"A {a}", f"B {b}")

    def more_rows(self) -> list[Document]:
        result = self.result or {}
        tied = {(t.get("in"), t.get("name")): t.get("equals") for t in result.get("tied") or ()}
        return [
            {
                "name": name,
                "relation": "tied" if (side, name) in tied else f"only in {side.upper()}",
                "equals": tied.get((side, name)),
            }
            for side in ("a", "b")
            for name in result.get(f"only_in_{side}") or ()
        ]

    def sum_up(self, rows: Sequence[Document]) -> str:
        counted = Counter(str(r.get("relation")) for r in rows)
        order = sorted(counted, key=lambda relation: rank({"relation": relation}))
        return "  ".join(f"{units.count(counted[r])} {r}" for r in order)

    def in_full(self, row: Document, width: int) -> list[Line]:
        return in_full(row, width)

    def said(self, width: int) -> list[Line]:
        result = self.result or {}
        lines: list[Line] = [*wrap(str(result.get("verdict") or ""), width, "ok" if result.get("equal") else "warning"), ()]
        if result.get("prefix_hint"):
            lines += [*wrap(f"The names differ by a prefix: {result['prefix_hint']}", width), ()]
        return lines

    def below(self, width: int) -> list[Line]:
        """The largest difference of each layer, as bars."""
        worst: dict[int, float] = {}
        for row in self.rows_so_far:
            found = _LAYER.search(str(row.get("name", "")))
            value = row.get("max_abs")
            if found and isinstance(value, (int, float)):
                layer = int(found[1])
                worst[layer] = max(worst.get(layer, 0.0), float(value))
        top = max(worst.values(), default=0.0)
        if not top:
            return []
        room = max(6, min(40, width - 20))
        lines: list[Line] = [[("Largest difference by layer", "head")]]
        return lines + [
            [(f"{layer:>4}  ", "dim"), *bar(worst[layer] / top, room, "accent"), (f"  {worst[layer]:.3g}", "dim")]
            for layer in sorted(worst)[:200]
        ]

    def command(self) -> str:
        return shlex.join(["shardyard", "compare", *self.request.sources])
