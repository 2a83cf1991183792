"""Sets of tensor-parallel files: each file has a part of every tensor, and the axes of the cuts are not stored.

Megatron: `mp_rank_TT[_PPP]/model_optim_rng.pt`, whose `args` say how many ranks there were.  Meta: `consolidated.0N.pth`, one a
rank; the output projection of attention is square in the whole model, so one file's shapes tell the number.  Both are shown piece
by piece; a set of one is a whole model and opens as one.  DeepSpeed's own tensor-parallel folders are read by `deepspeed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, StoredObject, Tensor, Usage
from shardyard.errors import COPY_AGAIN, ShardyardError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Entry, Folder
from shardyard.formats.pickles import attribute, lookup, pairs
from shardyard.formats.torch import single as torch_single
from shardyard.formats.torch.file import TorchFile, open_torch
from shardyard.formats.torch.tensors import TensorValue
from shardyard.formats.torch.text import describe
from shardyard.text import printable

_MEGATRON_FOLDER = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")
_MEGATRON_FILES = ("model_optim_rng.pt", "model_rng.pt", "model_weights.ckpt")
_META = re.compile(r"consolidated\.(\d{2,6})\.pth")
_MODEL_KEY = re.compile(r"model\d*|state_dict|module")
NOTE = "Each of its files holds a part of every weight, and the files do not say how each weight was cut."


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a set."""

    name: str
    """What to call its tensors by: `mp_rank_00` or `consolidated.00`."""
    path: str
    """Relative to the checkpoint."""
    entry: Entry
    number: int
    """Its place in the set, where the name gives one number."""


@dataclass(slots=True)
class Opened:
    """A member, read."""

    member: Member
    file: TorchFile
    tensors: dict[str, Tensor]
    total: int
    """Files that the whole set has, as far as this one tells; 1 if it is whole."""
    step: int | None = None
    objects: list[StoredObject] = field(default_factory=list)


class TensorParallel:
    """The reader of Megatron's and Meta's sets."""

    name = "tensor-parallel"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """A folder of `mp_rank_*` folders, one of these by itself, or a folder of `consolidated.*.pth`."""
        for members, folders in (_megatron(folder), _megatron_member(folder), _meta(folder)):
            if members and any(m.path.partition("/")[0] in unclaimed for m in members):
                kind = CheckpointKind.TENSOR_PARALLEL
                yield Candidate(self, folder, folder.path, kind, tuple(m.path for m in members), folders)
                return

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read all members; damage becomes findings."""
        folder = candidate.folder
        members = next(found for found, _ in (_megatron(folder), _megatron_member(folder), _meta(folder)) if found)
        findings: list[Finding] = []
        opened = [o for m in members if (o := _open(m, options, findings)) is not None]
        total = max((o.total for o in opened), default=len(members))
        if len(members) == total == 1 and opened:
            return _whole(candidate, members[0], options)
        found = Checkpoint(
            candidate.path,
            CheckpointKind.TENSOR_PARALLEL,
            [FileEntry(m.path, m.entry.nbytes, "weights") for m in members],
            {},
            None,
            findings=findings,
            usage=Usage(weights=sum(m.entry.nbytes for m in members)),
            world_size=max(total, len(members)),
            step=next((o.step for o in opened if o.step is not None), None),
            objects=opened[0].objects if opened else [],
            checked={"headers", "ranks"},
            globals=_globals(opened),
        )
        pieces = {f"{o.member.name}/{n}": replace(t, name=f"{o.member.name}/{n}") for o in opened for n, t in o.tensors.items()}
        found.parts["pieces"] = Part("pieces", pieces, model=True)
        found.part = "pieces"
        found.merge_note = NOTE
        findings.extend(_missing(members, total))
        return found


def _megatron(folder: Folder) -> tuple[list[Member], tuple[str, ...]]:
    members = [
        replace(member, path=f"{name}/{member.path}")
        for name in folder.folders
        if _MEGATRON_FOLDER.fullmatch(name)
        for member in _in_folder(folder.sub(name))
    ]
    members.sort(key=lambda m: [int(n) for n in re.findall(r"\d+", m.name)])
    return [replace(m, number=i) for i, m in enumerate(members)], tuple(dict.fromkeys(m.path.partition("/")[0] for m in members))


def _megatron_member(folder: Folder) -> tuple[list[Member], tuple[str, ...]]:
    return (list(_in_folder(folder)) if _MEGATRON_FOLDER.fullmatch(folder.name) else []), ()


def _in_folder(folder: Folder) -> Iterator[Member]:
    match = _MEGATRON_FOLDER.fullmatch(folder.name)
    for name in _MEGATRON_FILES:
        if match and name in folder.files:
            yield Member(folder.name, name, folder.files[name], int(match[1]))
            return


def _meta(folder: Folder) -> tuple[list[Member], tuple[str, ...]]:
    members = [
        Member(name.removesuffix(".pth"), name, entry, int(match[1]))
        for name, entry in folder.files.items()
        if (match := _META.fullmatch(name))
    ]
    return sorted(members, key=lambda m: m.number), ()


def _open(member: Member, options: OpenOptions, findings: list[Finding]) -> Opened | None:
    try:
        file = open_torch(options.handles, member.entry.path)
        findings.extend(file.findings)
        model = _model(file.root)
        tensors = {name: file.tensor(name, value) for name, value in _named(model).items()}
    except ShardyardError as error:
        code = getattr(error, "code", "corrupt")
        remedy = error.remedy or COPY_AGAIN
        findings.append(Finding(code, Severity.ERROR, error.problem, remedy, (member.path,), blocks=Blocks.MERGE))
        return None
    total = _ranks_by_args(file.root) or _ranks_by_shape(tensors)
    items = [(k, v) for k, v in pairs(file.root) or () if isinstance(k, str) and pairs(v) is None]
    objects = [StoredObject(printable(k, 200), describe(v)) for k, v in items[:50]]
    step = lookup(file.root, "iteration")
    return Opened(member, file, tensors, total, step if isinstance(step, int) else None, objects)


def _whole(candidate: Candidate, member: Member, options: OpenOptions) -> Checkpoint:
    """A set of one: a torch file like any other."""
    inner = Folder(Path(member.entry.path).parent)
    alone = replace(candidate, format=torch_single.FORMAT, folder=inner, kind=CheckpointKind.TORCH, files=(member.entry.name,))
    found = torch_single.FORMAT.open(alone, options)
    found.files = [replace(f, path=member.path) for f in found.files]
    return found


def _model(root: object) -> object:
    """The part of the file that holds the weights; with virtual pipeline stages there are several."""
    items = [(k, v) for k, v in pairs(root) or () if isinstance(k, str) and _MODEL_KEY.fullmatch(k) and pairs(v) is not None]
    if len(items) == 1:
        return items[0][1]
    return root if not items else dict(items)


def _named(model: object) -> dict[str, TensorValue]:
    """Nested names joined with dots."""
    found: dict[str, TensorValue] = {}
    stack: list[tuple[str, object]] = [("", model)]
    while stack:
        path, value = stack.pop()
        items = list(value.items()) if isinstance(value, dict) else pairs(value)
        for key, item in reversed(items or []):
            if isinstance(key, (str, int)) and len(path) < 4096:
                stack.append((f"{path}.{key}" if path else str(key), item))
        if isinstance(value, TensorValue):
            found.setdefault(path, value)
    return found


def _ranks_by_args(root: object) -> int:
    """Megatron's own numbers; 0 if the file has none."""
    args = lookup(root, "args")
    total = 0
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"):
        value = lookup(args, name, attribute(args, name))
        if isinstance(value, int) and 0 < value < 1 << 20:
            total = max(total, 1) * value
    return total


def _ranks_by_shape(tensors: Mapping[str, Tensor]) -> int:
    """In Meta's files the output projection is cut along its second axis: dim by dim / ranks."""
    for name, tensor in tensors.items():
        if name.endswith("attention.wo.weight") and len(tensor.shape) == 2 and tensor.shape[1]:
            return max(1, tensor.shape[0] // tensor.shape[1])
    return 1


def _globals(opened: Iterable[Opened]) -> dict[str, int]:
    names: dict[str, int] = {}
    for one in opened:
        for (module, attribute_name), count in one.file.globals.items():
            names[f"{module}.{attribute_name}"] = names.get(f"{module}.{attribute_name}", 0) + count
    return names


def _missing(members: list[Member], total: int) -> Iterator[Finding]:
    """A set that is not whole must not pass for one."""
    paths = tuple(m.path for m in members)
    if len(members) == 1 and total > 1:
        piece = f"piece {members[0].number + 1} of {total}"
        text = f"This is {piece} of a tensor-parallel model: a part of every weight, not a whole one."
        remedy = "Bring the files of all tensor-parallel ranks together."
        yield Finding("piece", Severity.ERROR, text, remedy, paths, blocks=Blocks.MERGE)
        return
    numbers = {m.number for m in members}
    lost = max(total, max(numbers) + 1) - len(numbers)
    if lost > 0:
        text = f"{lost} of the {lost + len(numbers)} files of this tensor-parallel model {'is' if lost == 1 else 'are'} not here."
        yield Finding(
            "missing-rank", Severity.ERROR, text, "Bring the files of all ranks together.", paths[:20], blocks=Blocks.MERGE
        )


FORMAT = TensorParallel()
