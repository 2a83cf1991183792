"""What `inspect` says of a folder that a test made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from shardyard.operations.inspect.report import report


def looked_at(path: Path, **options: Any) -> list[dict[str, Any]]:
    """The checkpoints of a path, as the report has them."""
    return cast("list[dict[str, Any]]", report(path, **options)["checkpoints"])


def only(path: Path, **options: Any) -> dict[str, Any]:
    """The one checkpoint of a path."""
    found = looked_at(path, **options)
    assert len(found) == 1, [c["path"] for c in found]
    return found[0]


def finding(checkpoint: dict[str, Any], code: str) -> dict[str, Any]:
    """The one finding with a code."""
    found = [f for f in checkpoint["findings"] if f["code"] == code]
    assert len(found) == 1, [f["code"] for f in checkpoint["findings"]]
    return cast("dict[str, Any]", found[0])


def codes(checkpoint: dict[str, Any], *, serious: bool = False) -> set[str]:
    """The codes of the findings; only errors and warnings if `serious`."""
    return {f["code"] for f in checkpoint["findings"] if not serious or f["severity"] != "info"}
