"""What a plan says about itself: bytes, memory, disk, ties, casts, what is left out."""

from __future__ import annotations

from typing import Any

from shardyard.checkpoint import Tensor
from shardyard.layouts import OneRun
from shardyard.limits import disk, manners
from shardyard.operations import gather
from shardyard.operations.merge.casts import CAST_BLOCK
from shardyard.operations.merge.plan import Plan
from shardyard.operations.merge.written import Written
from shardyard.pieces import Ops

PROCESS_BYTES = 24 << 20
"""Resident memory of a worker before it holds a checkpoint."""
NUMPY_BYTES = 18 << 20
PER_TENSOR_BYTES = 1600
MOST_WORKERS = 4
MOST_LISTED = 50


def workers(asked: int | None, units: int) -> int:
    """Threads of a merge: more than four do not make one output file faster."""
    return max(1, min(units, asked if asked is not None else min(MOST_WORKERS, manners.workers())))


def needs_numpy(written: Written) -> bool:
    """Whether a tensor is not a straight copy."""
    if written.cast:
        return True
    layout = written.tensor.layout
    if isinstance(layout, OneRun):
        return bool(layout.ops & ~Ops.NONE)
    first = next(iter(written.tensor.pieces(0, min(1, written.tensor.nbytes))), None)
    return first is not None and not first.run


def block_bytes(tensor: Tensor) -> int:
    """The largest block that the transfer gathers of a tensor at a time."""
    return gather.block_size(tensor, 0, tensor.nbytes)


def memory(plan: Plan, threads: int) -> int:
    """Peak resident memory of the merge, in bytes; it does not grow with the tensors' sizes."""
    tensors = [w for f in plan.files for w in f.tensors]
    strided = [w for w in tensors if needs_numpy(w)]
    headers = sum(len(s.content) for f in plan.files for s in f.segments if isinstance(s.content, bytes))
    per_thread = gather.BLOCK
    if strided:
        per_thread += 4 * CAST_BLOCK
        largest = max((block_bytes(w.tensor) for w in strided[:: max(1, len(strided) // 64)]), default=0)
        if largest > gather.BLOCK:
            per_thread += largest + gather.SPAN
    base = PROCESS_BYTES + (NUMPY_BYTES if strided or _checked(plan) else 0)
    return base + PER_TENSOR_BYTES * len(tensors) + 2 * headers + threads * per_thread


def _checked(plan: Plan) -> bool:
    return plan.options.verify != "none" and any(w.tensor.copy16 is not None for f in plan.files for w in f.tensors)


def summary(plan: Plan, kind: str) -> dict[str, Any]:
    """The plan as it is shown."""
    written = [w for f in plan.files for w in f.tensors]
    threads = workers(plan.options.workers, plan.units)
    spooled = sum(r.nbytes for r in plan.spool)
    room = disk.of(plan.place.out.parent)
    dtypes: dict[str, int] = {}
    for w in written:
        dtypes[w.dtype.name] = dtypes.get(w.dtype.name, 0) + 1
    checkpoint, selection = plan.checkpoint, plan.selection
    return {
        "schema": 1,
        "sources": [str(checkpoint.path)],
        "kind": checkpoint.kind.value,
        "tag": checkpoint.tag,
        "part": selection.part,
        "out": str(plan.out),
        "format": kind,
        "files": [{"name": f.name, "bytes": f.nbytes, "tensors": len(f.tensors)} for f in plan.files],
        "tensors": len(written),
        "parameters": sum(w.tensor.numel for w in written),
        "dtypes": dtypes,
        "casts": [{"from": a, "to": b, "tensors": n} for (a, b), n in plan.casts.items()],
        "bytes_read": sum(w.tensor.nbytes + sum(c.nbytes for c in w.copies) for w in written),
        "bytes_written": plan.nbytes,
        "bytes_spooled": spooled,
        "memory": memory(plan, threads),
        "disk": {"needed": plan.nbytes + spooled, "free": room.room, "path": str(room.folder)},
        "workers": threads,
        "units": plan.units,
        "tied": plan.tied,
        "renamed": selection.renamed,
        "without_prefix": list(selection.without_prefix[:MOST_LISTED]),
        "complete": plan.complete,
        "missing": list(selection.missing),
        "folded": len(selection.folds),
        "adapters": {folder: len(taken) for folder, taken in selection.adapters.items()},
        "frozen_left_out": len(selection.frozen_left_out),
        "from_elsewhere": _notes(written),
        "findings": [f.brief() for f in plan.findings],
        "verify": plan.options.verify,
        "hash": plan.hash,
    }


def _notes(written: list[Written]) -> list[dict[str, str]]:
    """Tensors that come from another place than usual, such as a 16-bit copy."""
    return [{"name": w.name, "note": w.tensor.note} for w in written if w.tensor.note][:MOST_LISTED]
