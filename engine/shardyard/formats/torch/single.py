"""A single torch file as a checkpoint: its parts, ties, composites and objects, and what is odd about it."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardyard.checkpoint import (
    Checkpoint,
    CheckpointKind,
    Composite,
    FileEntry,
    Part,
    Role,
    StoredObject,
    Tensor,
    Tie,
    Usage,
)
from shardyard.dtypes import unknown
from shardyard.errors import COPY_AGAIN, CheckpointError, DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.declared_ties import owner_first
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import no_collection
from shardyard.formats.pickles.globals import unsafe_findings
from shardyard.formats.side_files import is_training_file
from shardyard.formats.sniff import HEAD, Content, sniff
from shardyard.formats.torch import sharing
from shardyard.formats.torch.container import TorchFile
from shardyard.formats.torch.file import BarePickle, open_torch
from shardyard.formats.torch.names import Leaf, Names, names_of
from shardyard.formats.torch.parts import OTHER, Group, groups_of
from shardyard.formats.torch.tensors import Broken
from shardyard.formats.zip_directory import ZipRecord
from shardyard.text import printable

_TORCH_NAME = re.compile(r".*\.(?:pt|pth|ckpt|bin|t7|pt\.tar|pth\.tar|safetensors)", re.IGNORECASE)
_MODEL_BIN = re.compile(r".*(?:model|adapter|consolidated|checkpoint|weights|diffusion|ckpt|embeds).*\.bin", re.IGNORECASE)
_MOST_SNIFFED = 64
MOST_LOCATED = 256
"""Local headers that are checked at open; where there are more, each is checked with its first data."""
MOST_CHECKED_BYTES = 1 << 20
"""Files up to this size have their checksums checked at open: it costs less than saying that they were not."""


class TorchSingle:
    """Every torch file that belongs to no larger checkpoint."""

    name = "torch"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """Files with a torch file's name; files of other names if their first bytes say so."""
        sniffed = 0
        for name in unclaimed:
            entry = folder.files.get(name)
            if entry is None or (is_training_file(name) and len(unclaimed) > 1):
                continue
            likely = _TORCH_NAME.fullmatch(name) is not None
            if name.lower().endswith((".bin", ".safetensors")) and not _MODEL_BIN.fullmatch(name) and len(unclaimed) > 1:
                likely = False
            if not likely and (sniffed >= _MOST_SNIFFED or _KNOWN_OTHERWISE.fullmatch(name) or entry.nbytes < HEAD):
                continue
            if not likely:
                sniffed += 1
                if not _is_torch(entry.path, entry.nbytes):
                    continue
            yield Candidate(self, folder, Path(entry.path), CheckpointKind.TORCH, (name,))

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the file's directory and pickle.

        Raises:
            DamagedError: it is no torch file, or nothing of it can be read.
        """
        name = candidate.files[0]
        path = candidate.folder.entries[name].path
        with no_collection():
            try:
                file = open_torch(options.handles, path, lenient=True)
            except BarePickle as error:
                return _bare_pickle(candidate, error)
            return _Opening(candidate, options, file).run()


FORMAT = TorchSingle()

_KNOWN_OTHERWISE = re.compile(
    r".*\.(?:json|jsonl|txt|md|py|pyc|sh|yaml|yml|toml|cfg|ini|csv|tsv|log|html|css|js|png|jpe?g|gif|svg|pdf|model|out|err|lock|"
    r"distcp|metadata|gguf|npz|npy|parquet|arrow|h5|hdf5|msgpack|onnx|tflite|pb|whl|zip|gz|xz|bz2|zst|tar|egg|jar|docx|xlsx)",
    re.IGNORECASE,
)


def _is_torch(path: str, nbytes: int) -> bool:
    """Whether the first bytes are those of a torch file; a plain zip is told apart by its first record's name."""
    try:
        with FileHandles(1) as handles:
            head = handles.read(path, 0, min(HEAD, nbytes))
    except CheckpointError:
        return False
    content = sniff(head, nbytes).content
    if content is Content.ZIP:
        return b"/data.pkl" in head[:300]
    return content is Content.PICKLE and head[2:6] == b"\x8a\x0a\x6c\xfc"


def _bare_pickle(candidate: Candidate, error: BarePickle) -> Checkpoint:
    name = candidate.files[0]
    entry = candidate.folder.entries[name]
    findings = [Finding("wrong-type", Severity.ERROR, error.message, "Fetch the right file.", (name,), blocks=Blocks.MERGE)]
    findings += unsafe_findings(error.globals, name)
    files = [FileEntry(name, entry.nbytes, "weights")]
    names = {f"{module}.{attribute}": n for (module, attribute), n in error.globals.items()}
    return Checkpoint(candidate.path, CheckpointKind.UNREADABLE, files, {}, None, findings=findings, globals=names)


@dataclass(slots=True)
class _Opening:
    """One opening of one file."""

    candidate: Candidate
    options: OpenOptions
    file: TorchFile
    findings: list[Finding] = field(default_factory=list)
    checked: set[str] = field(default_factory=lambda: {"headers", "shapes", "ties"})
    bad_records: dict[str, str] = field(default_factory=dict)
    """Storage keys that cannot be read after all, and why."""

    @property
    def name(self) -> str:
        return self.candidate.files[0]

    def run(self) -> Checkpoint:
        self.findings += self.file.findings
        self.check_records()
        root = self.file.root
        if self.file.more_roots:
            names = names_of(root)
            for label, more in self.file.more_roots.items():
                _add(names, names_of(more), label)
        else:
            names = names_of(root)
        self.findings += [
            Finding("unsupported", Severity.INFO, f"{self.file.name}: {n}", paths=(self.name,)) for n in names.notes
        ]
        groups, default = groups_of(names)
        if is_training_file(self.name):
            # A run's random or scheduler state may hold tensors, but never a model.
            groups, default = [replace(g, role=_aside(g.role), model=False) for g in groups], None
        if self.options.part is not None and any(g.name == self.options.part for g in groups):
            chosen: str | None = self.options.part
        else:
            chosen = default
        parts = {group.name: self.part(group) for group in groups}
        self.findings += unsafe_findings(self.file.globals, self.name)
        return self.checkpoint(names, groups, parts, chosen)

    def checkpoint(self, names: Names, groups: list[Group], parts: dict[str, Part], chosen: str | None) -> Checkpoint:
        nbytes = self.candidate.folder.entries[self.name].nbytes
        weights = parts[chosen].tensors if chosen is not None else {}
        names_count = {f"{module}.{attribute}": n for (module, attribute), n in self.file.globals.items()}
        metadata = {"container": self.file.container, "archive": self.file.archive, "pickle protocol": str(self.file.protocol)}
        objects = [StoredObject(printable(name, 300), text) for name, text in names.objects]
        role = "weights" if any(g.role in (Role.WEIGHT, Role.MASTER) for g in groups) else "other"
        if groups and all(g.role is Role.OPTIMIZER for g in groups if g.name != OTHER):
            role = "masters+optimizer"
        return Checkpoint(
            self.candidate.path,
            CheckpointKind.TORCH,
            [FileEntry(self.name, nbytes, role)],
            parts,
            chosen,
            ties=_ties(weights.values()),
            composites=self.composites(names, groups, chosen),
            objects=objects,
            findings=self.findings,
            usage=self.usage(groups, parts),
            step=_step(names),
            checked=self.checked,
            metadata=metadata,
            globals=names_count,
            merge_note=self.merge_note(groups),
        )

    def merge_note(self, groups: list[Group]) -> str:
        if not any(g.model for g in groups):
            return "It holds no model's weights."
        return ""

    # Records

    def check_records(self) -> None:
        """Local headers, and checksums where they are cheap: what a central directory alone cannot tell."""
        used = [(k, r) for k, r in self.file.storages.items() if k in self.file.reading.declared and isinstance(r, ZipRecord)]
        if len(used) > MOST_LOCATED:
            return
        handles = self.options.handles
        cheap = self.candidate.folder.entries[self.name].nbytes <= MOST_CHECKED_BYTES
        for key, record in used:
            try:
                record.locate(handles)
            except DamagedError as error:
                self.bad_records[key] = error.message
                continue
            if cheap:
                self.check_bytes(record)
        if cheap:
            self.checked.add("crc")

    def check_bytes(self, record: ZipRecord) -> None:
        data = self.options.handles.read(record.path, record.locate(self.options.handles), record.nbytes)
        if record.crc32 is None or zlib.crc32(data) == record.crc32:
            return
        where = f"{self.file.name}: record {printable(record.name, 80)}"
        if data.count(0) == len(data):
            said = f"{where} is all zeros and fails its checksum: its place was reserved and its values were never written."
            self.findings.append(Finding("placeholder", Severity.WARNING, said, "", (self.name,), nbytes=len(data)))
        else:
            said, remedy = (
                f"{where} fails its checksum; its values may be damaged.",
                COPY_AGAIN,
            )
            self.findings.append(Finding("corrupt", Severity.ERROR, said, remedy, (self.name,), blocks=Blocks.MERGE))

    # Tensors

    def part(self, group: Group) -> Part:
        tensors: dict[str, Tensor] = {}
        for leaf in group.leaves:
            local = name = group.local(leaf)
            n = 2
            while name in tensors:
                name, n = f"{local}#{n}", n + 1
            if name != local:
                shown = printable(local, 120)
                said = f"{self.file.name}: two tensors are called {shown}; the second is shown with a number."
                self.fault("duplicate-name", said, (local,), Blocks.MERGE)
            tensors[name] = self.tensor(name, leaf, group.role)
        return Part(group.name, tensors, model=group.model)

    def tensor(self, name: str, leaf: Leaf, role: Role) -> Tensor:
        value = leaf.value
        if isinstance(value, Broken):
            said = f"{self.file.name}: {printable(name, 120)} cannot be read: {value.reason}"
            self.fault("corrupt", said, (name,))
            return Tensor(name, unknown("unknown"), (), None, role, note=value.reason, nbytes_stored=0)
        if role is Role.WEIGHT and leaf.buffer:
            role = Role.BUFFER
        try:
            bad = self.bad_records.get(value.storage.key) if value.storage is not None else None
            if bad:
                raise DamagedError(bad, path=self.file.path)
            tensor = self.file.tensor(name, value, role)
        except CheckpointError as error:
            said = f"{error.message[:-1]} (tensor {printable(name, 120)})."
            self.fault(error.code, said, (name,))
            tensor = Tensor(name, value.dtype, value.shape, None, role, note=error.message)
        if tensor.layout is None and value.storage is None:
            self.fault(
                "placeholder", f"{self.file.name}: {printable(name, 120)} was saved without data (a meta tensor).", (name,)
            )
        if value.parameter or leaf.buffer is False:
            tensor.trainable = value.requires_grad
        return tensor

    def fault(self, code: str, said: str, tensors: tuple[str, ...], blocks: Blocks = Blocks.UNLESS_ALLOWED) -> None:
        """Report a tensor's fault: several of one kind are one finding, which names the first and lists the rest."""
        for i, known in enumerate(self.findings):
            if known.code == code and known.tensors and known.blocks is blocks:
                self.findings[i] = replace(known, tensors=known.tensors + tensors)
                return
        self.findings.append(Finding(code, Severity.ERROR, said, paths=(self.name,), tensors=tensors, blocks=blocks))

    def composites(self, names: Names, groups: list[Group], chosen: str | None) -> list[Composite]:
        """The composites of the default part by their names in it; without one, all by their full names."""
        prefix = next((".".join(g.path) + "." for g in groups if g.name == chosen and g.path), "")
        found = []
        for leaf in names.composites:
            if not leaf.name.startswith(prefix):
                continue
            parts = tuple(p[len(prefix) :] for p in leaf.parts)
            parameters = {k: v for k, v in leaf.parameters.items() if isinstance(v, (str, int, float, tuple))}
            found.append(Composite(leaf.name[len(prefix) :], leaf.kind, parts, parameters))
        return found

    def usage(self, groups: list[Group], parts: Mapping[str, Part]) -> Usage:
        """Each storage's touched bytes go to the first of weights, masters, optimizer and other that uses it."""
        usage = Usage(wasted=sum(self.file.unread.values()))
        roles: dict[tuple[str, str], Role] = {}
        tensors: list[Tensor] = []
        order = (Role.WEIGHT, Role.MASTER, Role.OPTIMIZER, Role.OTHER)
        for role in order:
            for group in groups:
                if group.role is role:
                    for tensor in parts[group.name].tensors.values():
                        tensors.append(tensor)
                        if tensor.storage is not None:
                            roles.setdefault(tensor.storage.key, role)
        for use in sharing.analyse(tensors):
            role = roles[use.key]
            if role is Role.WEIGHT:
                usage.weights += use.touched
            elif role is Role.MASTER:
                usage.masters += use.touched
            elif role is Role.OPTIMIZER:
                usage.optimizer += use.touched
            else:
                usage.other += use.touched
            usage.wasted += use.wasted
        return usage


def _aside(role: Role) -> Role:
    return role if role is Role.OPTIMIZER else Role.OTHER


def _ties(tensors: Collection[Tensor]) -> list[Tie]:
    counts = Counter(t.storage.key for t in tensors if t.storage is not None)
    uses = sharing.analyse(t for t in tensors if t.storage is not None and counts[t.storage.key] > 1)
    views = (view for use in uses for view in use.views)
    return [owner_first(view.holders) for view in views if len(view.holders) > 1 and 0 not in view.shape]


def _add(names: Names, more: Names, label: str) -> None:
    for leaf in more.leaves:
        leaf.path = (label, *leaf.path)
        leaf.listed = False
    names.leaves += more.leaves
    names.objects += [(f"{label}.{name}", text) for name, text in more.objects]
    names.notes += more.notes


def _step(names: Names) -> int | None:
    """The training step that the file itself names."""
    for key in ("global_step", "global_steps", "iteration", "step", "iter"):
        for name, text in names.objects:
            if name == key and text.isdigit():
                return int(text)
    return None
