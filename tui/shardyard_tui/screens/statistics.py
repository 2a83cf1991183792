"""Exact statistics of every tensor of a checkpoint, what is not finite first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shardyard_tui import units
from shardyard_tui.facts import Document, JobRequest, JobView
from shardyard_tui.screens.row_job import RowJob
from shardyard_tui.views.figures import figure, figures
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column
from shardyard_tui.widgets.sheet import wrap


def bad(row: Document) -> int:
    """Values that are not finite."""
    return int(row.get("nan") or 0) + int(row.get("inf") or 0)


def _number(row: Document, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) else float("-inf")


def _zeros(row: Document) -> float:
    return int(row.get("zeros") or 0) / max(1, int(row.get("numel") or 1))


def _column(title: str, key: str, letter: str, least: int) -> Column[Document]:
    return Column(
        title,
        lambda r: figure(r.get(key), 4),
        10,
        right=True,
        least=least,
        style="dim",
        sort=letter,
        key=lambda r: _number(r, key),
        falling=True,
    )


class Statistics(RowJob):
    """See the module."""

    NAME = "Statistics"
    EXPLAINS = "Exact: every value is read, by a job. Tensors with NaN or inf come first."
    COLUMNS: Sequence[Column[Document]] = (
        Column("Tensor", lambda r: str(r.get("name", "")), cut="left", sort="n"),
        Column("Not finite", lambda r: units.count(bad(r)) if bad(r) else "", 12, right=True, style="error", sort="b", key=bad,
               falling=True),
        _column("Mean", "mean", "m", 60),
        _column("Std", "std", "s", 60),
        _column("Min", "min", "i", 84),
        _column("Max", "max", "a", 84),
        _column("Norm", "norm", "o", 96),
        Column("Zeros", lambda r: "-" if "note" in r else f"{_zeros(r):.1%}", 7, right=True, least=108, style="dim", sort="z",
               key=_zeros, falling=True),
    )  # fmt: skip
    FIRST_SORT = "b"

    def __init__(self, path: str, options: Mapping[str, Any], job: JobView | None = None) -> None:
        super().__init__(JobRequest("stats", (path,), None, options), job)

    def where(self) -> Sequence[str]:
        return (os.path.basename(self.request.sources[0].rstrip("/")), "statistics")

    def sum_up(self, rows: Sequence[Document]) -> str:
        wrong = sum(bool(bad(r)) for r in rows)
        return units.plural(len(rows), "tensor") + (f", {units.count(wrong)} with NaN or inf" if wrong else "")

    def in_full(self, row: Document, width: int) -> list[Line]:
        return [*wrap(str(row.get("name", "")), width, "strong"), *figures(row, width)]

    def said(self, width: int) -> list[Line]:
        wrong = [r for r in self.rows_so_far if bad(r)]
        if not wrong:
            unknown = sum("note" in r for r in self.rows_so_far)
            known = len(self.rows_so_far) - unknown
            lines = wrap(f"All values of {units.plural(known, 'tensor')} are finite.", width, "ok") if known else []
            if unknown:
                text = f"Of {units.plural(unknown, 'tensor')} no values are known; each says why."
                lines += wrap(text, width, "warning")
            return lines
        hold = units.plural(len(wrong), "tensor holds", "tensors hold")
        text = f"{hold} NaN or inf: a model with these gives NaN. Go back to a step before."
        return wrap(text, width, "error")

    def command(self) -> str:
        select = [word for name in self.request.options.get("select") or () for word in ("--select", str(name))]
        return shlex.join(["shardyard", "stats", *self.request.sources, *select])
