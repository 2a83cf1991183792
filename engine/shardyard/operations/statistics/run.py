"""Statistics of the chosen tensors of a checkpoint: what `shardyard stats` and looking into a tensor run."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import IncompleteError, UsageError
from shardyard.files import FileHandles
from shardyard.limits import manners
from shardyard.operations.bounds import refuse_endless
from shardyard.operations.context import Context, Counter
from shardyard.operations.names import matching
from shardyard.operations.numeric import keep_freed_memory
from shardyard.operations.parallel import spread
from shardyard.operations.statistics import description as statistics
from shardyard.operations.statistics import slices
from shardyard.text import printable

ROWS = "tensors.jsonl"
"""In a job's folder: one row a line, in the order in which tensors are done."""


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """Which tensors, and what of them."""

    select: tuple[str, ...] = ()
    """Globs of names; none: all."""
    part: str | None = None
    """A component of the state; None: the model."""
    slice: str | None = None
    """Show these values too, such as `0:4, -1`."""
    workers: int = 0

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> StatsOptions:
        """From a job's options."""
        select = options.get("select") or ()
        return cls(
            select=(select,) if isinstance(select, str) else tuple(select),
            part=options.get("part"),
            slice=options.get("slice"),
            workers=int(options.get("workers") or 0),
        )


def stats(checkpoint: Checkpoint, options: StatsOptions | None = None, context: Context | None = None) -> dict[str, Any]:
    """`{"schema", "path", "part", "tensors": [...]}`; rows also go to the context's folder as they are done.

    Raises:
        UsageError: nothing is selected, or there is no such part.
        IncompleteError: a selected tensor's data is not here.
    """
    options, context = options or StatsOptions(), context or Context()
    part = options.part or checkpoint.part
    tensors = _selected(checkpoint, part, options.select)
    refuse_endless(tensors)
    keep_freed_memory()
    counter = Counter(context, sum(t.nbytes * statistics.passes(t) for t in tensors))
    rows: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()
    out = open(context.folder / ROWS, "w", encoding="ascii") if context.folder is not None else None  # noqa: SIM115
    try:
        with FileHandles() as handles:

            def do(tensor: Tensor) -> None:
                row = statistics.describe(tensor, handles, lambda n: counter.add(n, tensor.name))
                if options.slice is not None:
                    row["slice"] = slices.read(tensor, options.slice, handles)
                with lock:
                    rows[tensor.name] = row
                    if out is not None:
                        print(json.dumps(row), file=out, flush=True)

            spread(tensors, do, options.workers or manners.workers(), context.check)
    finally:
        if out is not None:
            out.close()
    return {"schema": 1, "path": str(checkpoint.path), "part": part, "tensors": [rows[t.name] for t in tensors]}


def stats_path(path: str | Path, options: StatsOptions | None = None, context: Context | None = None) -> dict[str, Any]:
    """Open a checkpoint and describe its tensors."""
    from shardyard.discover import open_checkpoint
    from shardyard.formats.candidate import OpenOptions

    options, context = options or StatsOptions(), context or Context()
    opened = open_checkpoint([Path(path)], OpenOptions(part=options.part, cancelled=context.cancelled))
    return stats(opened, options, context)


def _selected(checkpoint: Checkpoint, part: str | None, select: Sequence[str]) -> list[Tensor]:
    where = printable(checkpoint.path.name)
    if part is None or part not in checkpoint.parts:
        named = ", ".join(printable(name) for name in checkpoint.parts) or "none"
        raise UsageError(
            f"{where} has no part {printable(part or '')}; its parts: {named}." if part else f"{where} holds no weights."
        )
    tensors = checkpoint.parts[part].tensors
    names = matching(tensors, select) if select else set(tensors)
    if select and not names:
        raise UsageError(f"No tensor of {where} matches {' or '.join(printable(glob) for glob in select)}.")
    chosen = [tensor for name, tensor in tensors.items() if name in names]
    missing = [t.name for t in chosen if t.layout is None]
    if missing:
        raise IncompleteError(f"The data of {printable(missing[0])} is not here.", code="missing-tensor", tensors=missing)
    return chosen
