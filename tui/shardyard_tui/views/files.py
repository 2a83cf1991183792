"""A checkpoint's files in rows."""

from __future__ import annotations

from collections.abc import Sequence

from shardyard_tui import units
from shardyard_tui.facts import Document
from shardyard_tui.widgets.row_list import Column, RowList

ROLE_STYLES = {"weights": "weights", "masters+optimizer": "optimizer"}

COLUMNS: Sequence[Column[Document]] = (
    Column("File", lambda f: str(f.get("path", "")), cut="middle", sort="n"),
    Column("Role", lambda f: str(f.get("role", "")), 17, least=48, sort="r",
           style=lambda f: ROLE_STYLES.get(str(f.get("role")), "dim")),
    Column("Size", lambda f: units.size(f.get("bytes") or 0), 9, right=True, style="dim", sort="s",
           key=lambda f: int(f.get("bytes") or 0), falling=True),
)  # fmt: skip


class FileRows(RowList[Document]):
    """The files that belong to one checkpoint."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            COLUMNS, lambda f: f"{f.get('path')} {f.get('role')}", "Files", empty="It has no files.", marks=False, id=id
        )

    def show(self, report: Document, *, keep: bool = False) -> None:
        """Show the files of a report."""
        self.set_rows(sorted(report.get("files") or (), key=lambda f: units.natural(str(f.get("path", "")))), keep=keep)
