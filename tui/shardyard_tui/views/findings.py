"""Findings in rows, and one in full: what was seen, why it matters, what to do, how it is known."""

from __future__ import annotations

from collections.abc import Sequence

from shardyard_tui import units
from shardyard_tui.facts import Document
from shardyard_tui.summary import SEVERITIES
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column, RowList
from shardyard_tui.widgets.sheet import fact, wrap
from shardyard_tui.words import WHY

ORDER = {"error": 0, "warning": 1, "info": 2}
LEVELS = {"error": "ERROR", "warning": "warning", "info": "note"}


def level_style(finding: Document) -> str:
    return SEVERITIES.get(str(finding.get("severity")), SEVERITIES["info"])[1]


def _where(finding: Document) -> str:
    names = [*(finding.get("paths") or ()), *(finding.get("tensors") or ())]
    total = max(len(names), int(finding.get("named") or 0))
    return str(names[0]) + (f" and {units.count(total - 1)} more" if total > 1 else "") if names else ""


COLUMNS: Sequence[Column[Document]] = (
    Column("Level", lambda f: LEVELS.get(str(f.get("severity")), "note"), 8, style=level_style, sort="l",
           key=lambda f: ORDER.get(str(f.get("severity")), 3)),
    Column("Code", lambda f: str(f.get("code", "")), 16, least=84, style="dim", sort="c"),
    Column("What", lambda f: str(f.get("message", ""))),
    Column("Where", _where, 30, least=150, style="dim", cut="left"),
    Column("Sure", lambda f: "certain" if f.get("certainty") == "sure" else "likely", 8, least=100, style="dim"),
    Column("Bytes", lambda f: units.size(f["bytes"]) if f.get("bytes") else "", 9, right=True, least=70, style="dim", sort="s",
           key=lambda f: int(f.get("bytes") or 0), falling=True),
)  # fmt: skip


class FindingRows(RowList[Document]):
    """The findings of one checkpoint, the worst first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            COLUMNS,
            lambda f: f"{f.get('severity')} {f.get('code')} {f.get('message')} {_where(f)}",
            "Findings",
            empty="Nothing wrong was found in what was checked.",
            marks=False,
            id=id,
        )

    def show(self, findings: Sequence[Document], *, keep: bool = False) -> None:
        """Show these findings."""
        self.set_rows(sorted(findings, key=lambda f: ORDER.get(str(f.get("severity")), 3)), keep=keep)


def in_full(finding: Document, width: int) -> list[Line]:
    """One finding, answered to the end."""
    code = str(finding.get("code", ""))
    lines: list[Line] = [*wrap(str(finding.get("message", "")), width, "strong"), ()]
    if WHY.get(code):
        lines += [*fact("Why it matters", WHY[code], width, indent=16), ()]
    remedy = str(finding.get("remedy") or "") or ("" if finding.get("severity") != "info" else "Nothing needs doing.")
    if remedy:
        lines += [*fact("What to do", remedy, width, indent=16), ()]
    certain = finding.get("certainty") == "sure"
    sure = "Certain: read from the files." if certain else "Likely: what was seen has no other usual cause."
    lines += fact("How we know", sure, width, indent=16)
    if finding.get("bytes"):
        lines += fact("Bytes", f"{units.size(finding['bytes'])} ({units.count(int(finding['bytes']))})", width, indent=16)
    for label, key in (("Files", "paths"), ("Tensors", "tensors")):
        names = [str(n) for n in finding.get(key) or ()]
        for n, name in enumerate(names[:12]):
            lines += fact(label if n == 0 else "", name, width, indent=16)
        more = max(len(names), int(finding.get("named") or 0) if len(names) > 100 else 0) - 12
        if more > 0:
            lines += fact("", f"and {units.count(more)} more", width, "dim", indent=16)
    return lines
