"""Are two checkpoints the same weights, whatever containers they lie in?  Streamed, in constant memory, neither merged first.

Every tensor ends with one relation of CONTRACT section 4.  What only a guess could tell (a renamed or reshaped tensor) is
suggested and never assumed.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import AmbiguousError, CheckpointError, IncompleteError, UsageError
from shardyard.files import FileHandles
from shardyard.findings import Blocks
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.folder import Folder
from shardyard.limits import manners
from shardyard.operations.bounds import refuse_endless
from shardyard.operations.compare import suggestions
from shardyard.operations.compare.names import Match, match
from shardyard.operations.compare.pairs import RELATIONS, Pair, Reader
from shardyard.operations.compare.tally import Tolerance
from shardyard.operations.compare.verdict import verdict
from shardyard.operations.context import Context, Progress
from shardyard.operations.numeric import keep_freed_memory
from shardyard.operations.parallel import spread
from shardyard.operations.rounding import SIXTEEN
from shardyard.text import printable

Row = dict[str, Any]
ROWS = "tensors.jsonl"
"""In a job's folder: one row a line, in the order in which tensors are done."""

ACCEPTED: Mapping[str, frozenset[str]] = {
    "identical": frozenset({"identical"}),
    "equal": frozenset({"identical", "equal"}),
    "rounded": frozenset({"identical", "equal", "rounded-bfloat16", "rounded-float16", "close"}),
}
"""What `--require` takes for equal."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What counts as equal, and how names are matched."""

    rtol: float = 0.0
    atol: float = 0.0
    require: str = "rounded"
    """A key of `ACCEPTED`."""
    strip_prefix: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    """A component of the state: one for both, or A's and B's; none: the model."""
    workers: int = 0
    """Threads; 0: as many as this process may use cores, at most four."""

    def __post_init__(self) -> None:
        if self.require not in ACCEPTED:
            raise UsageError(f"--require takes {', '.join(ACCEPTED)}, not {printable(self.require)}.")
        if not (self.rtol >= 0 and self.atol >= 0):
            raise UsageError("Tolerances are numbers from 0 on.")
        if len(self.part) > 2:
            raise UsageError("--part is given once for both, or twice: for A and for B.")

    @property
    def parts(self) -> tuple[str | None, str | None]:
        """A's and B's."""
        return (self.part[0], self.part[-1]) if self.part else (None, None)

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> CompareOptions:
        """From a job's options."""
        prefixes, part = options.get("strip_prefix") or (), options.get("part") or ()
        return cls(
            rtol=float(options.get("rtol") or 0),
            atol=float(options.get("atol") or 0),
            require=str(options.get("require") or "rounded"),
            strip_prefix=(prefixes,) if isinstance(prefixes, str) else tuple(prefixes),
            part=(part,) if isinstance(part, str) else tuple(part),
            workers=int(options.get("workers") or 0),
        )


def compare(
    a: Checkpoint,
    b: Checkpoint,
    options: CompareOptions | None = None,
    context: Context | None = None,
    each: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """The result of CONTRACT section 4; `each` is told of every tensor as soon as it is done.

    Raises:
        CheckpointError: one of them is incomplete or damaged: a difference would say nothing.
        AmbiguousError: one of them holds several models.
    """
    return _Comparison(a, b, options or CompareOptions(), context or Context(), each).run()


class _Comparison:
    """One run: its pairs, its progress and what it has found so far."""

    def __init__(
        self, a: Checkpoint, b: Checkpoint, options: CompareOptions, context: Context, each: Callable[[Row], None] | None
    ) -> None:
        self.a, self.b, self.options, self.context, self.each = a, b, options, context, each
        part_a, part_b = options.parts
        self.tensors_a, self.tensors_b = weights(a, "A", part_a), weights(b, "B", part_b)
        self.match: Match = match(list(self.tensors_a), list(self.tensors_b), a.ties, b.ties, options.strip_prefix)
        tolerance = Tolerance(options.rtol, options.atol)
        self.pairs = [
            Pair(name, self.tensors_a[in_a], self.tensors_b[in_b], tolerance) for name, (in_a, in_b) in self.match.pairs.items()
        ]
        self.total = sum(_cost(pair) for pair in self.pairs)
        self.rows: dict[str, Row] = {}
        self._lock = threading.Lock()

    def run(self) -> dict[str, Any]:
        missing = [p for pair in self.pairs for p in (pair.a, pair.b) if p.layout is None]
        if missing:
            raise IncompleteError(
                f"The data of {printable(missing[0].name)}{_more(missing)} is not here, so it cannot be compared.",
                code="missing-tensor",
                tensors=[t.name for t in missing],
            )
        refuse_endless(tensor for pair in self.pairs for tensor in (pair.a, pair.b))
        keep_freed_memory()
        with FileHandles() as handles:
            self._compare_all(handles)
            rows = settle([self.rows[pair.name] for pair in self.pairs])
            found = suggestions.look(self.tensors_a, self.tensors_b, self.match, rows, handles, self.context)
        return self._result(rows, found)

    def _compare_all(self, handles: FileHandles) -> None:
        readers: list[Reader] = []
        own = threading.local()

        def do(work: tuple[Pair, int]) -> None:
            pair, index = work
            if not hasattr(own, "reader"):
                own.reader = Reader(handles)
                readers.append(own.reader)
            if pair.compare_unit(index, own.reader):
                self._finish(pair, own.reader)
            done = sum(r.done for r in readers)
            self.context.progress(Progress(min(done, self.total), self.total, done, 0, pair.name))

        units = ((pair, index) for pair in self.pairs for index in range(pair.units))
        spread(units, do, self.options.workers or manners.workers(), self.context.check)

    def _finish(self, pair: Pair, reader: Reader) -> None:
        found = pair.finish(reader)
        names = self.match.pairs[pair.name]
        if names != (pair.name, pair.name):
            found["name_a"], found["name_b"] = names
        if pair.name in self.match.aliases:
            found["alias_in"] = self.match.aliases[pair.name]
        with self._lock:
            self.rows[pair.name] = found
            if self.each is not None:
                self.each(found)

    def _result(self, rows: list[Row], found: suggestions.Suggestions) -> dict[str, Any]:
        tied = {(entry["in"], entry["name"]) for entry in found.tied}
        alone = [n for n in self.match.only_a if ("a", n) not in tied] + [n for n in self.match.only_b if ("b", n) not in tied]
        accepted = ACCEPTED[self.options.require]
        result: dict[str, Any] = {
            "schema": 1,
            "equal": not alone and bool(rows) and all(row["relation"] in accepted for row in rows),
            "worst": max((row["relation"] for row in rows), key=RELATIONS.index, default=None),
            "verdict": "",
            "a": describe(self.a, self.tensors_a),
            "b": describe(self.b, self.tensors_b),
            "only_in_a": sorted(self.match.only_a),
            "only_in_b": sorted(self.match.only_b),
            "prefix_hint": self.match.hint,
            "require": self.options.require,
            "relations": dict(Counter(row["relation"] for row in rows)),
            "tied": found.tied,
            "candidates": found.candidates,
            "tensors": rows,
        }
        if not rows and not alone:
            result["equal"] = True
        result["verdict"] = verdict(result)
        return result


def compare_paths(
    a: str | Path, b: str | Path, options: CompareOptions | None = None, context: Context | None = None
) -> dict[str, Any]:
    """Open two checkpoints and compare them; where the context has a folder, rows go to its `tensors.jsonl` as they are done."""
    from shardyard.discover import open_checkpoint

    options, context = options or CompareOptions(), context or Context()
    given = zip((a, b), options.parts, strict=True)
    opened = [open_checkpoint([Path(p)], OpenOptions(part=part, cancelled=context.cancelled)) for p, part in given]
    if context.folder is None:
        return compare(opened[0], opened[1], options, context)
    with open(context.folder / ROWS, "w", encoding="ascii") as rows:

        def write(row: Row) -> None:
            rows.write(json.dumps(row) + "\n")
            rows.flush()

        return compare(opened[0], opened[1], options, context, write)


def _cost(pair: Pair) -> int:
    return sum(t.nbytes * pair.count // max(1, t.numel) if pair.count else 0 for t in (pair.a, pair.b))


def _more(names: list[Tensor]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def weights(checkpoint: Checkpoint, label: str, part: str | None = None) -> dict[str, Tensor]:
    """The tensors of a part (None: the model), all of them certain to be what they say.

    Raises:
        UsageError: there is no such part.
        CheckpointError: something stands in the way of trusting them.
    """
    where = printable(checkpoint.path.name)
    for finding in checkpoint.findings:
        if finding.blocks is not Blocks.NOTHING:
            raise CheckpointError(
                f"{label} ({where}) cannot be compared: {finding.message}",
                code=finding.code,
                path=str(checkpoint.path),
                tensors=finding.tensors,
            )
    if part is not None and part in checkpoint.parts:
        return checkpoint.parts[part].tensors
    if part is not None and part != "model":
        listed = ", ".join(map(printable, checkpoint.parts)) or "none"
        raise UsageError(f"{label} ({where}) has no part {printable(part, 60)}; its parts: {listed}.", path=str(checkpoint.path))
    if checkpoint.part is None:
        parts = [name for name, part in checkpoint.parts.items() if part.model]
        if len(parts) > 1:
            raise AmbiguousError(f"{label} ({where}) holds several models; choose one with --part.", parts)
        raise CheckpointError(f"{label} ({where}) holds no weights.", code="unsupported", path=str(checkpoint.path))
    return checkpoint.tensors


def describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """One side of the result."""
    adapter = _adapter_beside(checkpoint.path)
    return {
        "path": str(checkpoint.path),
        "kind": checkpoint.kind.value,
        "tensors": len(tensors),
        "parameters": sum(t.numel for t in tensors.values()),
        "bytes": sum(t.nbytes for t in tensors.values()),
        "dtypes": dict(Counter(t.dtype.name for t in tensors.values())),
        **({"adapter": adapter} if adapter else {}),
    }


def _adapter_beside(path: Path) -> str | None:
    """A folder with a LoRA adapter in the checkpoint's own folder: what a merge that forgot to fold it in leaves behind."""
    folder = Folder(path) if path.is_dir() else Folder(path.parent)
    return next((name for name in folder.folders if "adapter_config.json" in folder.sub(name).files), None)


def settle(rows: list[Row]) -> list[Row]:
    """Where a few elements fit both 16-bit kinds, let the rest of the checkpoint say which it was."""
    votes: Counter[str] = Counter()
    undecided = []
    for row in rows:
        if row["relation"] in (f"rounded-{kind}" for kind in SIXTEEN):
            kinds = set(row[f"{row['rounded']}_is_{_other(row)}_rounded_to"]) & set(SIXTEEN)
            if len(kinds) == 1:
                votes.update(kinds)
            elif not {row["dtype_a"], row["dtype_b"]} & kinds:
                undecided.append(row)
    for row in undecided:
        row["relation"] = f"rounded-{max(SIXTEEN, key=lambda kind: votes[kind])}"
    return rows


def _other(row: Row) -> str:
    return "a" if row["rounded"] == "b" else "b"
