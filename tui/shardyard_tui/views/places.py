"""How the rows of the browser's tree read: name, kind, state, size, age."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shardyard_tui import units
from shardyard_tui.places import PlaceNode
from shardyard_tui.summary import state_span
from shardyard_tui.widgets.row_list import Column
from shardyard_tui.words import KINDS, kind_name, short_kind


def _name(node: PlaceNode) -> str:
    place = node.value
    slash = "/" if place.kind == "folder" or (place.found is not None and place.found.is_folder) else ""
    return f"{node.indent}{place.name}{slash}"


def _kind(node: PlaceNode) -> str:
    place = node.value
    if place.opened is not None:
        return kind_name(place.opened.report)
    return KINDS.get(place.found.kind, ("", ""))[0] if place.found is not None else ""


def _short(node: PlaceNode) -> str:
    """The kind in a few letters; what cannot be used says so in its place."""
    place = node.value
    if place.state in ("incomplete", "unreadable"):
        if place.kind == "folder":
            return "unread"
        return "broken" if place.state == "unreadable" else "partial"
    if place.opened is not None:
        return short_kind(str(place.opened.report.get("kind") or ""))
    return short_kind(place.found.kind) if place.found is not None else ""


def _short_style(node: PlaceNode) -> str:
    return "error" if node.value.state in ("incomplete", "unreadable") else "dim"


def _style(node: PlaceNode) -> str:
    state = node.value.state
    if state in ("incomplete", "unreadable"):
        return "error"
    return "text" if node.value.kind in ("checkpoint", "folder") else "dim"


COLUMNS: Sequence[Column[PlaceNode]] = (
    Column("Name", _name, style=_style, cut="tree", sort="n", key=lambda n: units.natural(n.value.name)),
    Column("Kind", _short, 7, most=65, style=_short_style, sort="k"),
    Column("Kind", lambda n: _kind(n).split(",")[0], 19, least=66, most=85, style="dim"),
    Column("Kind", _kind, 26, least=86, style="dim"),
    Column("State", lambda n: state_span(n.value.state)[0], 12, least=55, style=lambda n: state_span(n.value.state)[1]),
    Column(
        "Size",
        lambda n: units.size(n.value.nbytes) if n.value.nbytes or n.value.kind not in ("folder", "note") else "",
        9,
        right=True,
        style="dim",
        sort="s",
        key=lambda n: n.value.nbytes,
        falling=True,
    ),
    Column(
        "Age",
        lambda n: units.age(max(0.0, time.time() - n.value.mtime)) if n.value.mtime else "",
        8,
        right=True,
        least=90,
        style="dim",
        sort="t",
        key=lambda n: n.value.mtime,
        falling=True,
    ),
)
