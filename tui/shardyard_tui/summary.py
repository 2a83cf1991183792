"""What a checkpoint is, in lines: the verdict, where the bytes are, and what can be done next with which key."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from shardyard_tui import units
from shardyard_tui.facts import Opened
from shardyard_tui.glyphs import ERROR, MIDDLE_DOT, OK
from shardyard_tui.glyphs import WARNING as CAUTION
from shardyard_tui.widgets.panel import Line, Span, fit
from shardyard_tui.widgets.sheet import NARROW, bar, fact, wrap
from shardyard_tui.words import CHECKS, ROLES, kind_name

SEVERITIES: Mapping[str, tuple[str, str]] = {
    "error": (ERROR, "error"),
    "warning": (CAUTION, "warning"),
    "info": (MIDDLE_DOT, "dim"),
}


def summary(opened: Opened, width: int, *, read_only: bool = False, now: float | None = None) -> list[Line]:
    """The first tab: everything that matters, most important first."""
    report = opened.report
    style = {"complete": "strong", "warning": "strong", "incomplete": "warning", "unreadable": "error"}[opened.state]
    lines: list[Line] = [*wrap(str(report.get("verdict") or opened.title), width, style), ()]
    lines += [*next_steps(opened, width, read_only=read_only), ()]
    lines += fact("Kind", kind_name(report), width)
    if opened.stamp:
        by = f" by {opened.owner}" if opened.owner else ""
        age = units.age((now or time.time()) - opened.stamp)
        lines += fact("Saved", f"{units.moment(opened.stamp)}{by} {MIDDLE_DOT} {age}", width)
    tags = report.get("tags") or ()
    if len(tags) > 1:
        lines += fact("Steps", f"{report.get('tag')} of {', '.join(map(str, tags))}", width)
    lines += fact("Weights", _weights(report), width)
    for group in list(report.get("tied") or ())[:3]:
        lines += fact("Tied", " = ".join(map(str, group)), width)
    lines += [(), *where_the_bytes_are(report.get("bytes") or {}, width)]
    return [*lines, (), *_health(opened, width)]


def _weights(report: Mapping[str, Any]) -> str:
    tensors, parameters = int(report.get("tensors") or 0), int(report.get("parameters") or 0)
    dtypes = report.get("dtypes") or {}
    kinds = ", ".join(name if len(dtypes) == 1 else f"{units.count(n)} {name}" for name, n in dtypes.items())
    return f"{units.plural(tensors, 'tensor')} {MIDDLE_DOT} {units.short_count(parameters)} parameters" + (
        f" {MIDDLE_DOT} {kinds}" if kinds else ""
    )


def where_the_bytes_are(usage: Mapping[str, Any], width: int) -> list[Line]:
    """One bar a role, of those that have bytes."""
    amounts = {role: int(usage.get(role) or 0) for role in ROLES}
    total = sum(amounts.values())
    if not total:
        return []
    name_room = 13 if width >= NARROW else 9
    room = max(4, min(30, width - name_room - 17))
    lines: list[Line] = []
    for role, name in ROLES.items():
        if amounts[role]:
            share = amounts[role] / total
            tail = f" {share:4.0%} {units.size(amounts[role]):>10}"
            shown = name if width >= NARROW else role
            lines.append([(f"{shown:<{name_room}} ", "dim"), *bar(share, room, role), (tail, "text")])
    return lines


def counts(findings: Sequence[Mapping[str, Any]]) -> str:
    """`1 error, 2 warnings`; `nothing wrong found`."""
    parts = []
    for severity, word in (("error", "error"), ("warning", "warning"), ("info", "note")):
        number = sum(f.get("severity") == severity for f in findings)
        if number:
            parts.append(units.plural(number, word))
    return ", ".join(parts) or "nothing wrong found"


def _health(opened: Opened, width: int) -> list[Line]:
    lines: list[Line] = fact("Health", f"{counts(opened.findings)}" + (" (h tells more)" if opened.findings else ""), width)
    order = {"error": 0, "warning": 1, "info": 2}
    for finding in sorted(opened.findings, key=lambda f: order.get(str(f.get("severity")), 3))[:4]:
        sign, style = SEVERITIES.get(str(finding.get("severity")), SEVERITIES["info"])
        lines += wrap(str(finding.get("message", "")), width, "text", indent=2, first=sign, first_style=style)
    report = opened.report
    checked = ", ".join(CHECKS.get(str(c), str(c)) for c in report.get("checked") or ())
    missing = ", ".join(CHECKS.get(str(c), str(c)) for c in report.get("not_checked") or ())
    lines += fact("Checked", checked or "nothing", width)
    if missing:
        lines += fact("Not read", f"{missing} (V reads them)", width)
    return lines


def next_steps(opened: Opened, width: int, *, read_only: bool) -> list[Line]:
    """What can be done, with its key."""
    usage = opened.report.get("bytes") or {}
    why = opened.why_not_merge
    lines: list[Line] = []
    if read_only:
        return wrap("Read-only: merge, export and shrink are off.", width, "dim")
    if why:
        broken = opened.state in ("incomplete", "unreadable")
        lines += wrap("Merge is off until this is mended." if broken else "Merge is off for this kind.", width, "dim")
    else:
        weights = int(usage.get("masters") or 0) or int(usage.get("weights") or 0)
        lines += _step("m", f"merge into one set of weights, about {units.size(weights)}", width)
        lines += _step("e", "export a folder that a model loader opens", width)
    wasted = int(usage.get("wasted") or 0)
    if wasted:
        lines += _step("x", f"shrink: gives back {units.size(wasted)}", width)
    return lines


def _step(key: str, text: str, width: int) -> list[Line]:
    return wrap(text, width, "text", indent=3, first=key, first_style="key")


def state_span(state: str, problem: str = "") -> Span:
    """The tree's one-word state."""
    return {
        "complete": (f"{OK} complete", "ok"),
        "warning": (f"{CAUTION} warnings", "warning"),
        "incomplete": (f"{ERROR} incomplete", "error"),
        "unreadable": (f"{ERROR} unreadable", "error"),
    }.get(state, ("", "dim"))


def unopened(name: str, problem: str, width: int) -> list[Line]:
    """What is said of something that could not be opened."""
    return [*wrap(problem, width, "error"), (), *wrap(f"{name} stays as it is; R reads it again.", width, "dim")]


def pad_lines(lines: Sequence[Line], width: int, rows: int) -> list[Line]:
    """Lines with blanks below, so that a block keeps its height."""
    return [*lines, *([(fit("", width), "text")] for _ in range(rows - len(lines)))]
