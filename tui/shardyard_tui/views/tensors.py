"""Tensors in rows: one by one, or folded into patterns such as `layers.#`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardyard_tui import units
from shardyard_tui.filters import Filter
from shardyard_tui.table import Group, TensorTable
from shardyard_tui.widgets.row_list import Column, RowList

Row = int | Group


class TensorRows(RowList[Row]):
    """Rows of a table. Unfolded, a row is a number and costs nothing until it is drawn."""

    def __init__(self, *, id: str | None = None) -> None:
        self.table = TensorTable()
        self.folded = False
        super().__init__(self._columns(), self._row_name, "Tensors", empty="It holds no tensors.", id=id)

    def _columns(self) -> Sequence[Column[Row]]:
        return (
            Column("Name", self._row_name, cut="left", sort="n"),
            Column("Dtype", lambda r: self._fact(r, "dtype"), 9, least=46, style="dim", sort="d"),
            Column("Shape", self._shape, 13, least=60, style="dim", cut="left"),
            Column("Params", lambda r: units.short_count(self._number(r, "parameters")), 8, right=True, least=104, style="dim"),
            Column(
                "Size",
                lambda r: units.size(self._number(r, "nbytes")),
                9,
                right=True,
                style="dim",
                sort="s",
                key=lambda r: self._number(r, "nbytes"),
                falling=True,
            ),
            *([Column("", self._flags, 16, least=104, style="dim")] if self._has_flags() else []),
        )

    def show(self, table: TensorTable, *, keep: bool = False) -> None:
        """Show the tensors of a table."""
        self.table = table
        self.columns = tuple(self._columns())
        self.folded = False
        self.sorted_by = self.sorted_by if keep else None
        self.falling = self.falling and keep
        self.set_rows(range(len(table)), keep=keep)

    def fold(self) -> None:
        """Fold what is shown into patterns, or unfold it again."""
        self.folded = not self.folded
        if self.folded:
            rows = range(len(self.table)) if self.filter.empty else [self.all[i] for i in self.shown]
            self.set_rows(self.table.groups(r for r in rows if isinstance(r, int)), keep=False)
        else:
            self.set_rows(range(len(self.table)))

    @property
    def name_at_hand(self) -> str:
        """The tensor under the cursor; of a group, its first."""
        row = self.current
        if row is None:
            return ""
        return self.table.name(row) if isinstance(row, int) else self.table.name(row.rows[0])

    def matching(self, wanted: Filter, among: Iterable[int]) -> Sequence[int]:
        return super().matching(wanted, among) if self.folded else self.table.matching(wanted, among)

    def _row_name(self, row: Row) -> str:
        if isinstance(row, int):
            return self.table.name(row)
        return row.name + (f"  ({units.count(len(row.rows))})" if len(row.rows) > 1 else "")

    def _fact(self, row: Row, what: str) -> str:
        return str(getattr(self.table.of(row), what)) if isinstance(row, int) else row.common(what)

    def _shape(self, row: Row) -> str:
        return units.shape(self.table.of(row).shape) if isinstance(row, int) else row.common("shape")

    def _number(self, row: Row, what: str) -> int:
        return int(getattr(self.table.of(row) if isinstance(row, int) else row, what))

    def _has_flags(self) -> bool:
        return bool(self.table.tied_to) or any(f.flags or f.role for f in self.table.facts)

    def _flags(self, row: Row) -> str:
        if not isinstance(row, int):
            return ""
        owner = self.table.tied_to.get(row)
        facts = self.table.of(row)
        parts = ["tied"] if owner else []
        parts += [facts.role] if facts.role not in ("weight", "") else []
        return ", ".join([*parts, *facts.flags])
