"""How two tensors relate, in rows and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardyard_tui import units
from shardyard_tui.facts import Document
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column
from shardyard_tui.widgets.sheet import fact, wrap

SAME = ("identical", "equal", "tied")
ORDER = (
    "identical", "tied", "equal", "rounded-bfloat16", "rounded-float16", "close", "rounded-float8", "both-rounded", "different",
    "dtype-differs", "shape-differs",
)  # fmt: skip
MEANS: Mapping[str, str] = {
    "identical": "The same bits.",
    "equal": "The same values, in another form: a wider dtype, signed zeros or other NaN bits.",
    "rounded-bfloat16": "One is exactly the other rounded to bfloat16, to nearest even: what a cast gives.",
    "rounded-float16": "One is exactly the other rounded to float16, to nearest even: what a cast gives.",
    "rounded-float8": "One is exactly the other rounded to float8.",
    "both-rounded": "Two 16-bit kinds that can be roundings of one parent, which is not here.",
    "close": "Within the tolerances that were asked for.",
    "different": "Other values: another step of training, another model, or damage.",
    "shape-differs": "Other shapes, so there is nothing to compare.",
    "dtype-differs": "Kinds that cannot be compared.",
    "tied": "One side alone has the name; the tensor itself is on both, under another.",
    "only in A": "Only the first has it.",
    "only in B": "Only the second has it.",
}


def rank(row: Document) -> int:
    """Worse is larger."""
    relation = str(row.get("relation", ""))
    return next((n for n, name in enumerate(ORDER) if relation.startswith(name)), len(ORDER))


def relation_style(row: Document) -> str:
    """Green, plain or red."""
    relation = str(row.get("relation", ""))
    return "ok" if relation in SAME else "text" if relation.startswith(("rounded", "close", "both")) else "error"


def number(value: object) -> str:
    """A difference in three figures."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


COLUMNS: Sequence[Column[Document]] = (
    Column("Tensor", lambda r: str(r.get("name", "")), cut="left", sort="n"),
    Column("Relation", lambda r: str(r.get("relation", "")), 17, style=relation_style, sort="r", key=rank, falling=True),
    Column("max abs", lambda r: number(r.get("max_abs")), 9, right=True, least=70, style="dim", sort="a",
           key=lambda r: _magnitude(r.get("max_abs")), falling=True),
    Column("mean abs", lambda r: number(r.get("mean_abs")), 9, right=True, least=96, style="dim", sort="m",
           key=lambda r: _magnitude(r.get("mean_abs")), falling=True),
    Column("differing", lambda r: units.count(int(r["differing"])) if r.get("differing") else "", 13, right=True,
           least=84, style="dim", sort="d", key=lambda r: int(r.get("differing") or 0), falling=True),
    Column("A", lambda r: str(r.get("dtype_a") or ""), 9, least=110, style="dim"),
    Column("B", lambda r: str(r.get("dtype_b") or ""), 9, least=110, style="dim"),
)  # fmt: skip


def _magnitude(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return -1.0


def in_full(row: Document, width: int) -> list[Line]:
    """One pair of tensors, in words."""
    relation = str(row.get("relation", ""))
    meaning = next((text for name, text in MEANS.items() if relation.startswith(name)), "")
    lines = wrap(str(row.get("name", "")), width, "strong")
    lines += [*wrap(f"{relation}. {meaning}", width, relation_style(row)), ()]
    if row.get("equals"):
        lines += fact("The same as", str(row["equals"]), width)
    for side in ("a", "b"):
        dims = row.get(f"shape_{side}")
        if row.get(f"dtype_{side}"):
            text = f"{row[f'dtype_{side}']}  {units.shape(list(dims)) if dims is not None else ''}"
            nan = row.get(f"nan_{side}")
            lines += fact(side.upper(), text + (f"   NaN {nan}" if nan else ""), width)
    if row.get("differing") is not None:
        lines += fact("Differing", f"{units.count(int(row['differing']))} values", width)
    for label, key in (("max abs", "max_abs"), ("mean abs", "mean_abs"), ("max rel", "max_rel")):
        if row.get(key) is not None:
            lines += fact(label, number(row[key]), width)
    return lines
