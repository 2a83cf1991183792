"""Folders with one torch file a rank: verl's actor and critic, accelerate without torch.distributed.checkpoint.

Each file is an ordinary torch.save of a state dict whose values are shares of tensors.  A value says itself how it was cut, so
the files are put together without a process group and without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Role, Tensor
from shardyard.errors import COPY_AGAIN, Cancelled, DamagedError, ShardyardError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.dcp.values import step_in_name
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import find_config, read_json
from shardyard.formats.rank_files.rank_set import RankSet
from shardyard.formats.same_files import conflicts
from shardyard.formats.side_files import is_training_file
from shardyard.formats.torch.file import TorchFile, open_torch
from shardyard.text import printable

_VERL = re.compile(r"(?P<what>model|optim|extra_state)_world_size_(?P<world>\d{1,7})_rank_(?P<rank>\d{1,7})\.pt")
_ACCELERATE = re.compile(r"(?P<what>pytorch_model_fsdp|optimizer)(?:_(?P<index>\d{1,5}))?_rank(?P<rank>\d{1,7})\.bin")
_WHAT = {"pytorch_model_fsdp": "model", "optimizer": "optim"}
_FLAT = re.compile(r"(?:.*\.)?_?flat_param(?:_\d+)?")
_LORA = re.compile(r"(?:.*\.)?lora_(?:A|B|embedding_A|embedding_B)\..*")
_FSDP_CONFIG = "fsdp_config.json"
_MOST_NAMED = 20
_FLAT_NOTE = (
    "These are flat local shards of FSDP1: each rank's file holds a slice of all parameters in one row, without their names and "
    "shapes. Only the training script's model can take them apart: load them there, with as many ranks, and save a full or "
    "sharded state dict."
)


@dataclass(slots=True)
class _Group:
    """The files of one saved state."""

    world: int | None
    """From the files' names; None where names do not tell."""
    index: str = ""
    model: dict[int, str] = field(default_factory=dict)
    optim: dict[int, str] = field(default_factory=dict)
    extra: dict[int, str] = field(default_factory=dict)

    def names(self) -> Iterator[str]:
        for of_kind in (self.model, self.optim, self.extra):
            yield from of_kind.values()

    def missing(self, of_kind: dict[int, str], world: int) -> list[int]:
        return [rank for rank in range(world) if rank not in of_kind] if of_kind else []


class RankFiles:
    """One candidate for each saved state of a folder."""

    name = "rank files"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """By names alone."""
        names = [n for n in unclaimed if n in folder.files]
        verl, accelerate = _groups(names, _VERL), _groups(names, _ACCELERATE)
        if verl:
            beside = [n for n in names if n == _FSDP_CONFIG]
            yield _candidate(self, folder, verl, beside)
        beside = [n for n in names if is_training_file(n) and not _ACCELERATE.fullmatch(n)] if not verl else []
        for group in accelerate:
            if group.model or not any(g.model for g in accelerate):
                yield _candidate(self, folder, [group], beside)
                beside = []

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read each rank's directory and pickle."""
        groups = candidate.details.get("groups")
        found = [g for g in groups if isinstance(g, _Group)] if isinstance(groups, list) else []
        return _Opening(candidate, options, found).open()


FORMAT = RankFiles()


def _candidate(format_: RankFiles, folder: Folder, groups: list[_Group], beside: list[str]) -> Candidate:
    names = [name for group in groups for name in group.names()]
    return Candidate(format_, folder, folder.path, CheckpointKind.FSDP_RANKS, (*names, *beside), details={"groups": groups})


def _place(name: str) -> dict[str, str | None] | None:
    """What a rank file's name says of its place: of what, of which world or model, and whose."""
    match = _VERL.fullmatch(name) or _ACCELERATE.fullmatch(name)
    return match.groupdict() if match is not None else None


def _groups(names: Iterable[str], pattern: re.Pattern[str]) -> list[_Group]:
    """The files by the save that they belong to: world size (verl) or model number (accelerate)."""
    found: dict[str, _Group] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        fields = match.groupdict()
        what = _WHAT.get(fields["what"], fields["what"])
        world, index = fields.get("world"), fields.get("index") or "0"
        key = world or index
        group = found.setdefault(key, _Group(int(world) if world else None, index))
        of_kind = {"model": group.model, "optim": group.optim}.get(what, group.extra)
        of_kind.setdefault(int(fields["rank"]), name)
    return [found[key] for key in sorted(found, key=int)]


class _Opening:
    """One opening of one candidate."""

    def __init__(self, candidate: Candidate, options: OpenOptions, groups: list[_Group]) -> None:
        self.candidate = candidate
        self.folder = candidate.folder
        self.options = options
        self.groups = groups
        self.checkpoint = Checkpoint(
            candidate.path,
            CheckpointKind.FSDP_RANKS,
            [],
            {},
            None,
            step=step_in_name(self.folder),
            checked={"headers", "ranks", "shapes", "ties"},
        )

    def open(self) -> Checkpoint:
        checkpoint = self.checkpoint
        checkpoint.config, checkpoint.config_folder = find_config(self.folder, above=True)
        checkpoint.findings += conflicts(self.folder, self.options.handles, set(self.candidate.files).__contains__)
        group = self.choose()
        model = RankSet(Role.WEIGHT)
        if group.model:
            self.read(model, group.model)
            self.add_model(model, group)
        world = self.world(group, model)
        checkpoint.world_size = world
        self.check_ranks(group, model, world)
        self.check_config(world)
        if group.optim:
            self.add_optimizer(group)
        if group.extra:
            self.add_extra(group.extra)
        self.list_files(group)
        return checkpoint

    # Which files

    def choose(self) -> _Group:
        """The save that is meant, where files of several world sizes lie in one folder."""
        whole = [g for g in self.groups if g.world and g.model and not g.missing(g.model, g.world)]
        if len(self.groups) == 1:
            return self.groups[0]
        said = self.said_world()
        chosen = next((g for g in whole if g.world == said), None) or (whole[0] if len(whole) == 1 else None)
        worlds = ", ".join(str(g.world) for g in self.groups)
        if chosen is None:
            self.add(
                Finding(
                    "missing-rank" if not whole else "competing-weights",
                    Severity.ERROR,
                    f"Files of several world sizes ({worlds}) are here, and "
                    + ("none of the sets is whole." if not whole else "more than one of the sets is whole."),
                    "Move the files of the other saves elsewhere.",
                    blocks=Blocks.MERGE,
                )
            )
            return max(self.groups, key=lambda g: len(g.model))
        stale = [name for g in self.groups if g is not chosen for name in g.names()]
        self.add(
            Finding(
                "stale-file",
                Severity.WARNING,
                f"Files of several world sizes ({worlds}) are here; the whole set of {chosen.world} is read.",
                "The others are left over from another save; delete them once you are sure.",
                paths=tuple(stale[:_MOST_NAMED]),
                nbytes=sum(self.folder.files[n].nbytes for n in stale),
            )
        )
        self.checkpoint.usage.wasted += sum(self.folder.files[n].nbytes for n in stale)
        return chosen

    def said_world(self) -> int | None:
        config = read_json(self.folder, _FSDP_CONFIG)
        world = config.get("world_size") if isinstance(config, dict) else None
        return world if type(world) is int else None

    def world(self, group: _Group, model: RankSet) -> int:
        """How many ranks there were: by the names, else by what the tensors say, at least as many as there are files."""
        if group.world is not None:
            return group.world
        return max([model.ranks, *(rank + 1 for of in (group.model, group.optim) for rank in of)])

    def check_ranks(self, group: _Group, model: RankSet, world: int) -> None:
        for of_kind, what in ((group.model, "model"), (group.optim, "optimizer")):
            missing = group.missing(of_kind, world)
            beyond = [rank for rank in of_kind if rank >= world]
            if beyond:
                name = of_kind[beyond[0]]
                self.add(
                    Finding(
                        "index-mismatch",
                        Severity.ERROR,
                        f"{name} says rank {beyond[0]} of a world of {world}.",
                        "Give the files their own names back.",
                        paths=(name,),
                        blocks=Blocks.MERGE,
                    )
                )
            if missing:
                # Where replicas (HSDP) hold everything, a missing rank takes nothing away.
                copied = model.alike and all(t.layout is not None for t in self.checkpoint.tensors.values())
                self.missing_ranks(of_kind, missing, world, what, whole=what == "model" and copied)

    def missing_ranks(self, of_kind: dict[int, str], missing: list[int], world: int, what: str, *, whole: bool) -> None:
        example = next(iter(of_kind.values()))
        names = tuple(re.sub(r"(rank_?)\d+(\.\w+)$", rf"\g<1>{rank}\g<2>", example) for rank in missing[:_MOST_NAMED])
        serious = what == "model" and not whole
        self.add(
            Finding(
                "missing-rank",
                Severity.ERROR if serious else Severity.WARNING,
                f"{len(missing)} of {world} ranks' {what} files are missing, such as {names[0]}"
                + (": the others hold copies of everything it held." if whole else "."),
                "Copy them from the nodes that wrote them, or give those nodes' folders as further sources.",
                paths=names,
                blocks=Blocks.UNLESS_ALLOWED if serious else Blocks.NOTHING,
            )
        )

    def check_config(self, world: int) -> None:
        said = self.said_world()
        if said is not None and said != world:
            self.add(
                Finding(
                    "index-mismatch",
                    Severity.WARNING,
                    f"{_FSDP_CONFIG} says {said} ranks, the files' names say {world}; the names are followed.",
                    paths=(_FSDP_CONFIG,),
                )
            )

    # Reading

    def read(self, into: RankSet, files: dict[int, str]) -> None:
        for number, (rank, name) in enumerate(sorted(files.items())):
            if self.options.cancelled():
                raise Cancelled()
            if self.options.progress is not None:
                self.options.progress(name, number, len(files))
            try:
                file = open_torch(self.options.handles, self.folder.files[name].path)
                self.check_name(file, name)
                into.add(file, rank)
            except DamagedError as error:
                severity = Severity.ERROR if into.role is Role.WEIGHT else Severity.WARNING
                into.findings.append(
                    Finding(
                        error.code,
                        severity,
                        error.problem,
                        error.remedy or COPY_AGAIN,
                        paths=(name,),
                        blocks=Blocks.UNLESS_ALLOWED if into.role is Role.WEIGHT else Blocks.NOTHING,
                    )
                )

    def check_name(self, file: TorchFile, name: str) -> None:
        """The archive inside is called after the file that was saved: a share does not say which rank's it is."""
        first = _place(f"{file.saved_as}{name[name.rindex('.') :]}") if file.saved_as is not None else None
        if first is not None and first != _place(name):
            self.add(
                Finding(
                    "renamed-file",
                    Severity.ERROR,
                    f"{name} was saved as {printable(str(file.saved_as))}: files were exchanged, or one was copied over another.",
                    "Give the files the names they were saved under, or copy the folder again.",
                    paths=(name,),
                    blocks=Blocks.MERGE,
                )
            )

    def add_model(self, model: RankSet, group: _Group) -> None:
        checkpoint = self.checkpoint
        tensors = model.tensors()
        checkpoint.parts["model"] = Part("model", tensors, model=True)
        checkpoint.part = "model"
        checkpoint.objects += model.objects.values()
        checkpoint.globals = dict(model.globals)
        checkpoint.findings += model.findings
        checkpoint.ties = model.ties()
        aliases = {name for tie in checkpoint.ties for name in tie.names[1:]}
        checkpoint.usage.weights = sum(t.nbytes for n, t in tensors.items() if t.layout is not None and n not in aliases)
        checkpoint.usage.wasted += max(0, model.bytes_once(checkpoint.ties) - checkpoint.usage.weights)
        flat = [name for name in tensors if _FLAT.fullmatch(name)]
        if flat:
            checkpoint.kind = CheckpointKind.FSDP_LOCAL
            checkpoint.merge_note = _FLAT_NOTE
            self.add(Finding("unknown-layout", Severity.WARNING, _FLAT_NOTE, tensors=tuple(flat[:_MOST_NAMED])))
        lora = [name for name in tensors if _LORA.fullmatch(name)]
        if lora:
            self.add(
                Finding(
                    "lora-unmerged",
                    Severity.WARNING,
                    f"{len(lora)} tensors are a LoRA adapter that is not merged into the weights, such as "
                    f"{printable(lora[0], 120)}.",
                    "Export with --lora split or --lora fold; merge keeps them under their own names.",
                    tensors=tuple(lora[:_MOST_NAMED]),
                )
            )

    def add_optimizer(self, group: _Group) -> None:
        """Read only when it is looked at: optimizers are twice the size of the model, and rarely wanted."""
        checkpoint = self.checkpoint

        def tensors() -> dict[str, Tensor]:
            optimizer = RankSet(Role.OPTIMIZER)
            try:
                self.read(optimizer, group.optim)
                found = optimizer.tensors(flat_state=len(group.optim) > 1)
            except ShardyardError as error:
                optimizer.findings.append(Finding("corrupt", Severity.WARNING, error.message))
                found = {}
            for finding in optimizer.findings:
                text = f"Optimizer: {finding.message}"
                checkpoint.findings.append(Finding(finding.code, Severity.WARNING, text, paths=finding.paths))
            return found

        checkpoint.parts["optimizer"] = Part("optimizer", tensors, model=False)
        checkpoint.usage.optimizer = sum(self.folder.files[n].nbytes for n in group.optim.values())

    def add_extra(self, files: dict[int, str]) -> None:
        """The lowest rank's schedulers and random states, as values."""
        extra = RankSet(Role.OTHER)
        rank = min(files)
        try:
            extra.add(open_torch(self.options.handles, self.folder.files[files[rank]].path), rank)
        except DamagedError as error:
            self.add(Finding(error.code, Severity.WARNING, error.message, paths=(files[rank],)))
        self.checkpoint.objects += extra.objects.values()

    def list_files(self, group: _Group) -> None:
        checkpoint = self.checkpoint
        roles = dict.fromkeys(group.model.values(), "weights") | dict.fromkeys(group.optim.values(), "masters+optimizer")
        for name in self.candidate.files:
            role = roles.get(name, "masters+optimizer" if name.startswith("optim") else "other")
            checkpoint.files.append(FileEntry(name, self.folder.files[name].nbytes, role))
        usage = checkpoint.usage
        usage.other = max(0, sum(f.nbytes for f in checkpoint.files) - usage.weights - usage.optimizer - usage.wasted)

    def add(self, finding: Finding) -> None:
        self.checkpoint.findings.append(finding)
