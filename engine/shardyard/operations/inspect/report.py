"""The report of what is in a path: every checkpoint with its verdict, findings, files and, on request, its tensors."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypedDict

from shardyard import discover, health
from shardyard.checkpoint import Checkpoint, CheckpointKind, Tensor
from shardyard.discover import Look, Visit
from shardyard.errors import ShardyardError, UsageError
from shardyard.files import FileHandles
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.health import facts
from shardyard.operations.context import Context
from shardyard.text import printable

SCHEMA = 1
CHECKS = ("headers", "ranks", "shapes", "ties", "crc", "values")
Json = dict[str, object]


class Report(TypedDict):
    """See CONTRACT section 3."""

    schema: int
    path: str
    checkpoints: list[Json]
    other: dict[str, int]
    problems: list[str]
    """Sentences about places that could not be looked at."""


def report(
    paths: str | Path | Sequence[str | Path],
    *,
    tensors: bool = False,
    hashes: bool = False,
    deep: bool = False,
    tag: str | None = None,
    context: Context | None = None,
) -> Report:
    """Look at a file, a folder with all below it, or the folders of one checkpoint.

    Raises:
        UsageError: there is no such path.
    """
    given = [Path(os.path.abspath(p)) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
    context = context or Context()
    asked = _Asked(given, tensors or hashes, hashes, deep, tag, context)
    problems: list[str] = []
    candidates, others = _candidates(given, context, problems)
    found = []
    for candidate in candidates:
        context.check()
        found.append(asked.describe(candidate))
    if tag is not None and all(c["tag"] != tag for c in found):
        _refuse_tag(tag, found, given[0])
    root = given[0] if given else Path(".")
    if not found and len(given) == 1:
        bare = discover.config_only(Folder(root))
        if bare is not None:
            found, others = [asked.json(bare)], []
    return Report(
        schema=SCHEMA,
        path=str(root),
        checkpoints=found,
        other={"files": len(others), "bytes": sum(others)},
        problems=problems,
    )


def _refuse_tag(tag: str, found: Sequence[Json], root: Path) -> NoReturn:
    """A step that was asked for and is nowhere: an answer about another one would not be what was asked."""
    listed = (c["tags"] for c in found)
    steps = sorted({printable(str(t)) for tags in listed if isinstance(tags, list) for t in tags})
    known = f"steps here: {', '.join(steps)}" if steps else "nothing here has steps to choose from"
    raise UsageError(f"There is no step {printable(tag, 80)} in {printable(str(root))}; {known}.", path=str(root))


def _candidates(given: Sequence[Path], context: Context, problems: list[str]) -> tuple[list[Candidate], list[int]]:
    """The checkpoints asked for, and the sizes of the files that belong to none."""
    if len(given) != 1 or not given[0].is_dir():
        return [discover.find(given)], []
    folder = Folder(given[0])
    whole = discover.enclosing(folder, discover.look(folder))
    if whole is not None:
        return [whole], []
    found: list[Candidate] = []
    others: list[int] = []
    for visit in discover.walk(folder, cancelled=context.cancelled):
        found.extend(visit.look.candidates)
        problems.extend((*visit.look.problems, *visit.problems))
        others.extend(_other_sizes(visit))
    return found, others


def _other_sizes(visit: Visit) -> list[int]:
    seen: Look = visit.look
    beside = facts.side_names(seen.folder) if seen.meant else frozenset()
    entries = (seen.folder.entries[n] for n in seen.unclaimed if n not in beside)
    return [e.nbytes for e in entries if e.is_file]


class _Asked:
    """What a report is to contain."""

    def __init__(self, given: Sequence[Path], tensors: bool, hashes: bool, deep: bool, tag: str | None, context: Context) -> None:
        self.root = given[0] if given else Path(".")
        self.tensors = tensors
        self.hashes = hashes
        self.deep = deep
        self.tag = tag
        self.context = context
        self.handles = FileHandles()

    def describe(self, candidate: Candidate) -> Json:
        """One checkpoint as JSON; what cannot be opened is described by its error."""
        checkpoint = self._open(candidate, self.tag)
        if self.deep:
            from shardyard.operations.inspect import deep

            checkpoint.findings.extend(deep.examine(checkpoint, self.handles, self.context))
            checkpoint.findings[:] = health.ordered(checkpoint.findings)
        return self.json(checkpoint)

    def _open(self, candidate: Candidate, tag: str | None) -> Checkpoint:
        options = OpenOptions(tag=tag, cancelled=self.context.cancelled, handles=self.handles)
        try:
            return discover.open_candidate(candidate, options)
        except ShardyardError as error:
            # Of several checkpoints in a tree, some have the step that was asked for.
            if tag is not None and isinstance(error, UsageError):
                return self._open(candidate, None)
            return discover.unreadable(candidate, error)

    def json(self, checkpoint: Checkpoint) -> Json:
        model = facts.model_tensors(checkpoint)
        found: Json = {
            "path": _relative(checkpoint.path, self.root),
            "kind": checkpoint.kind.value,
            "title": health.title(checkpoint),
            "verdict": health.verdict(checkpoint),
            "complete": checkpoint.complete,
            "mergeable": checkpoint.mergeable,
            "world_size": checkpoint.world_size,
            "step": checkpoint.step,
            "tags": list(checkpoint.tags) or None,
            "tag": checkpoint.tag,
            "tensors": len(model),
            "parameters": facts.parameters(checkpoint),
            "bytes": facts.bytes_by_use(checkpoint),
            "dtypes": dict(Counter(t.dtype.name for t in model.values() if facts.known(t)).most_common()),
            "tied": [list(group) for group in facts.tied_groups(checkpoint)],
            "files": [{"path": f.path, "bytes": f.nbytes, "role": f.role} for f in checkpoint.files],
            "findings": [f.to_json() for f in checkpoint.findings],
            "checked": [c for c in CHECKS if c in checkpoint.checked],
            "not_checked": [c for c in CHECKS if c not in checkpoint.checked],
        }
        if self.tensors:
            found["tensor_list"] = list(self._tensor_list(checkpoint))
        return found

    def _tensor_list(self, checkpoint: Checkpoint) -> Iterable[Json]:
        owner = {name: group[0] for group in facts.tied_groups(checkpoint) for name in group[1:]}
        base = checkpoint.path if checkpoint.kind is not CheckpointKind.UNREADABLE else self.root
        for name, tensor in facts.all_tensors(checkpoint).items():
            row: Json = {
                "name": name,
                "dtype": tensor.dtype.name,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
                "role": tensor.role.value,
                "files": [_relative(Path(f), base) for f in tensor.files],
                "tied_to": owner.get(name),
            }
            if self.hashes:
                row["sha256"] = self._hash(tensor)
            yield row

    def _hash(self, tensor: Tensor) -> str | None:
        from shardyard.operations import gather
        from shardyard.operations.bounds import refuse_endless

        self.context.check()
        if tensor.layout is None:
            return None
        digest = hashlib.sha256()
        try:
            refuse_endless([tensor])
            for _, block in gather.blocks(tensor, self.handles):
                digest.update(block)
        except ShardyardError:
            return None
        return digest.hexdigest()


def checkpoint_json(checkpoint: Checkpoint, root: Path | None = None) -> Json:
    """One opened checkpoint as it stands in a report, without its tensors: what a program that has opened it shows."""
    return _Asked([root or checkpoint.path], False, False, False, None, Context()).json(checkpoint)


def _relative(path: Path, root: Path) -> str:
    """A path as seen from another; `.` for the same, a bare name for a file beside itself."""
    if path == root:
        return "."
    base = root if not root.is_file() else root.parent
    return os.path.relpath(path, base)
