"""A report as lines for people: one block a checkpoint, the verdict first, the worst finding next."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping

from shardyard.health.patterns import fold
from shardyard.health.words import plural, size
from shardyard.operations.inspect.report import Json, Report
from shardyard.text import printable

WIDTH = 100
_MARKS = {"error": "error", "warning": "warning", "info": "note"}


def describe(found: Report) -> list[str]:
    """The report in sentences, a line each; safe to print."""
    text: list[str] = []
    given = os.path.basename(found["path"]) or found["path"]
    for checkpoint in found["checkpoints"]:
        if text:
            text.append("")
        text.extend(_checkpoint(checkpoint, given))
    other = found["other"]
    for problem in found["problems"]:
        text.extend(_wrapped(f"note: {problem}", ""))
    if not found["checkpoints"]:
        text.append(f"There is no checkpoint in {printable(found['path'])}.")
    if other["files"]:
        if text:
            text.append("")
        text.append(f"Besides: {plural(other['files'], 'other file')}, {size(other['bytes'])}.")
    return text


def _checkpoint(found: Json, given: str) -> Iterator[str]:
    path = str(found["path"])
    yield f"{printable(given if path == '.' else path)}: {found['title']}"
    yield from _wrapped(str(found["verdict"]), "  ")
    usage = found["bytes"]
    assert isinstance(usage, Mapping)
    parts = [f"{name} {size(usage[name])}" for name in ("weights", "masters", "optimizer", "other", "wasted") if usage[name]]
    yield f"  {size(usage['files'])} in {plural(_length(found['files']), 'file')}" + (f": {', '.join(parts)}." if parts else ".")
    findings = found["findings"]
    for finding in findings if isinstance(findings, list) else ():
        if finding["message"] in str(found["verdict"]) and finding["remedy"] in str(found["verdict"]):
            continue
        mark = _MARKS[finding["severity"]] + ("" if finding["certainty"] == "sure" else " (likely)")
        remedy = f" {finding['remedy']}" if finding["remedy"] else ""
        yield from _wrapped(f"{mark}: {finding['message']}{remedy}", "  ")
    not_checked = found["not_checked"]
    if isinstance(not_checked, list) and not_checked:
        yield f"  Not checked: {', '.join(not_checked)}."
    rows = found.get("tensor_list")
    if isinstance(rows, list):
        yield from _tensors(rows)


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    )


def _tensors(rows: list[Json]) -> Iterator[str]:
    """Layers folded into one row for each pattern, unless every tensor has a hash to show."""
    if any("sha256" in row for row in rows):
        for row in rows:
            yield f"    {printable(str(row['name']))}  {_type(row)}  {row.get('sha256') or 'not here'}"
        return
    for pattern in fold(rows):
        count = f"  x{pattern.count}" if pattern.count > 1 else ""
        yield f"    {printable(pattern.name)}  {pattern.type}{count}"


def _type(row: Json) -> str:
    shape = row["shape"]
    return f"{printable(str(row['dtype']))} {shape}"
