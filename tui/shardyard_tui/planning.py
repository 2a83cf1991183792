"""Plans for the app's dialog: made in the reader process, by what `--dry-run` calls, with the limits beside them."""

from __future__ import annotations

import os
from typing import Any

from shardyard_tui.facts import JobRequest


def plan(request: JobRequest) -> dict[str, Any]:
    """The plan of a job that was not started.

    Raises:
        ShardyardError: it is refused, and why.
    """
    from shardyard.jobs import verbs

    return {**verbs.plan(request.verb, request.sources, request.out, request.options), "limits": limits()}


def limits() -> dict[str, int | None]:
    """The memory that a job may take here, and how much of it is left."""
    from shardyard.limits import readings

    memory = readings.read().memory
    return {"memory": memory.limit, "available": memory.available}


def default_out(source: str, verb: str, started_in: str) -> str:
    """Beside the checkpoint where that place can be written, else in the folder that the app was started in."""
    ending = {"merge": "-merged", "export": "-exported", "shrink": "-small"}[verb]
    name = os.path.basename(source.rstrip("/"))
    stem = os.path.splitext(name)[0] if os.path.isfile(source) else name
    beside = os.path.dirname(source.rstrip("/"))
    folder = beside if os.access(beside, os.W_OK) else started_in
    out = os.path.join(folder, stem + ending)
    number = 2
    while os.path.lexists(out):
        out = os.path.join(folder, f"{stem}{ending}-{number}")
        number += 1
    return out
