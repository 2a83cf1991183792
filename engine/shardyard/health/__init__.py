"""What is wrong with a checkpoint, or worth knowing, and the sentence that answers whether it is the whole model.

A check looks at what the reader laid out and at names and sizes beside it; none reads tensor data.  Each family of rules is one
module with `check(checkpoint)`.  A check stays silent where the reader already said the same, and raises nothing for bad input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Finding, Severity
from shardyard.health import bloat, layers, names, neighbours, pickled, placeholders, precision, state, ties
from shardyard.health.verdict import title, verdict

CHECKS: tuple[Callable[[Checkpoint], Iterable[Finding]], ...] = (
    placeholders.check,
    neighbours.check,
    ties.check,
    layers.check,
    names.check,
    precision.check,
    bloat.check,
    pickled.check,
    state.check,
)
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def findings(checkpoint: Checkpoint) -> list[Finding]:
    """Everything found: what the reader saw and what the checks add, the worst first. Asking twice gives the same."""
    found = dict.fromkeys(checkpoint.findings)
    if checkpoint.kind is not CheckpointKind.UNREADABLE:
        for check in CHECKS:
            found.update(dict.fromkeys(check(checkpoint)))
    return ordered(found)


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """The worst first, else in the order found."""
    return sorted(found, key=lambda f: _ORDER[f.severity])


__all__ = ["CHECKS", "findings", "ordered", "title", "verdict"]
