"""Stored precision against config.json, and quantised weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardyard.checkpoint import Checkpoint
from shardyard.dtypes import BY_NAME, Kind
from shardyard.findings import Finding, Severity
from shardyard.formats import model_config
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS
from shardyard.health.words import listing, plural, share, size

_QUANTISED = re.compile(r"\.(?:qweight|qzeros|g_idx|weight_packed|weight_scale_inv|absmax|SCB|weight\.(?:quant_state|absmax).*)$")


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Wider than config.json says, by share of bytes; quantised."""
    if not facts.is_model(checkpoint):
        return
    quantised = _quantised(checkpoint)
    if quantised is not None:
        yield quantised
        return
    yield from _wider(checkpoint)


def _wider(checkpoint: Checkpoint) -> Iterator[Finding]:
    wanted = BY_NAME.get(model_config.dtype(checkpoint.config) or "")
    if wanted is None or not wanted.castable:
        return
    by_dtype = {name: nbytes for name, nbytes in facts.floating_bytes(checkpoint).items() if BY_NAME[name].castable}
    total = sum(by_dtype.values())
    wide = {name: nbytes for name, nbytes in by_dtype.items() if BY_NAME[name].bits > wanted.bits}
    wide_bytes = sum(wide.values())
    if not wide or 2 * wide_bytes < total:
        return
    saved = sum(nbytes - nbytes * wanted.bits // BY_NAME[name].bits for name, nbytes in wide.items())
    text = (
        f"{share(wide_bytes, total)} of the weights' bytes are {listing(sorted(wide))}, but config.json says {wanted.name}: "
        f"casting would save {size(saved)}."
    )
    remedy = f"`shardyard merge --dtype {wanted.name}` writes it so, or keep the masters if training goes on."
    severity = Severity.WARNING if checkpoint.kind in HUB_KINDS else Severity.INFO
    yield Finding("wider-than-config", severity, text, remedy, nbytes=saved)


def _quantised(checkpoint: Checkpoint) -> Finding | None:
    method = model_config.quantised(checkpoint.config)
    tensors = facts.model_tensors(checkpoint)
    named = [n for n in tensors if _QUANTISED.search(n)]
    kinds = sorted({t.dtype.name for t in tensors.values() if t.dtype.kind is Kind.QUANTISED})
    if not (method or named or kinds):
        return None
    how = f"by {listing([method])} (config.json)" if method else f"as {listing(kinds, 5)}" if kinds else ""
    text = f"The weights are quantised{' ' + how if how else ''}"
    text += f": {plural(len(named), 'tensor')} such as {listing(named[:1])}." if named else "."
    remedy = "They are copied as they are and never cast."
    return Finding("quantised", Severity.INFO, text, remedy, tensors=tuple(named[:20]))
