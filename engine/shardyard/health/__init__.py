"""What is wrong with a checkpoint, or worth knowing, and the sentence that answers whether it is the whole model."""

from __future__ import annotations

from shardyard.checkpoint import Checkpoint
from shardyard.findings import Finding, Severity

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def findings(checkpoint: Checkpoint) -> list[Finding]:
    """Everything found: what the reader saw and what the checks add, the worst first. Asking twice gives the same."""
    found = list(dict.fromkeys(checkpoint.findings))
    return sorted(found, key=lambda f: _ORDER[f.severity])


def verdict(checkpoint: Checkpoint) -> str:
    """One or two sentences: is this the whole model, in which precision, what else is here, what to do next."""
    return ""
