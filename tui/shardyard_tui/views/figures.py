"""A tensor's statistics in lines."""

from __future__ import annotations

from shardyard_tui import units
from shardyard_tui.facts import Document
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import fact


def figure(value: object, digits: int = 6) -> str:
    """A number in so many figures, or the word that stands for it."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value)
    if isinstance(value, int):
        return units.count(value)
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def figures(found: Document, width: int) -> list[Line]:
    """Everything that `shardyard stats` says of one tensor."""
    if found.get("note"):
        return fact("Statistics", str(found["note"]), width, "dim")
    lines = fact("Range", f"{figure(found.get('min'))} to {figure(found.get('max'))}", width)
    mean, spread, norm = (figure(found.get(key)) for key in ("mean", "std", "norm"))
    lines += fact("Mean", f"{mean}   std {spread}   norm {norm}", width)
    lines += _counts(found, width)
    quantiles = found.get("quantiles") or {}
    shown = [(q, quantiles[q]) for q in ("0.01", "0.25", "0.5", "0.75", "0.99") if q in quantiles]
    lines += fact("Quantiles", "   ".join(f"{float(q):.0%} {figure(v)}" for q, v in shown), width)
    first = found.get("first") or ()
    if first:
        lines += fact("First", "  ".join(figure(v) for v in first[:8]), width, "dim")
    if found.get("sha256"):
        lines += fact("SHA-256", str(found["sha256"]), width, "dim")
    return lines


def _counts(found: Document, width: int) -> list[Line]:
    bad = int(found.get("nan") or 0) + int(found.get("inf") or 0)
    share = int(found.get("zeros") or 0) / max(1, int(found.get("numel") or 1))
    zeros, denormals = (units.count(int(found.get(key) or 0)) for key in ("zeros", "denormals"))
    counts = f"zeros {zeros} ({share:.1%})   NaN {found.get('nan', 0)}   inf {found.get('inf', 0)}   denormals {denormals}"
    lines = fact("Counts", counts, width, "error" if bad else "text")
    if bad:
        advice = "A model with these gives NaN. Go back to a step before, and look at the loss there."
        lines += fact("", advice, width, "warning")
    return lines
