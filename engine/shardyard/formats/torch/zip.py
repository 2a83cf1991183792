"""The zip container of torch 1.6 and later, with its two cousins: TorchScript archives and torch.package."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats import pickles
from shardyard.formats.pickles import Dict, Loaded, PickleError
from shardyard.formats.torch.container import Reading, TorchFile, ZipParts
from shardyard.formats.zip_directory import (
    DEFLATED,
    MOST_PICKLE_BYTES,
    Member,
    Window,
    deflated_record_of,
    overlapping,
    read_directory,
    read_member,
    record_of,
    twice,
)
from shardyard.pieces import Record
from shardyard.text import printable

_SMALL = 64


def open_zip(handles: FileHandles, window: Window, reading: Reading) -> TorchFile:
    """Open a torch zip.

    Raises:
        DamagedError: it is no torch file, or it is damaged.
    """
    return _Archive(handles, window, reading).open()


@dataclass(slots=True)
class _Archive:
    handles: FileHandles
    window: Window
    reading: Reading

    def open(self) -> TorchFile:
        notes: list[str] = []
        members = read_directory(self.handles, self.window, notes)
        file = TorchFile(self.window.path, "zip", None, {}, reading=self.reading)
        file.findings += [_finding(file, "corrupt", f"{note[:-1]}.") for note in notes]
        by_name: dict[str, Member] = {}
        for member in members:
            by_name.setdefault(member.name, member)
        root = _root(members)
        if root is None:
            self.open_package(file, members)
        else:
            self.open_saved(file, root, members, by_name)
            others = [m.name for m in members if m.name.endswith("/data.pkl") and m.name != root + "data.pkl"]
            if others:
                said = f"{file.name} has another data.pkl, {printable(others[0], 80)}; it was not read."
                file.findings.append(_finding(file, "corrupt", said))
        self.report_order(file, members)
        return file

    def open_saved(self, file: TorchFile, root: str, members: list[Member], by_name: dict[str, Member]) -> None:
        """A file of torch.save, or TorchScript: `data.pkl`, and `data/KEY` for each storage."""
        alignment = self.small_number(by_name.get(root + ".storage_alignment")) or 64
        byteorder = by_name.get(root + "byteorder")
        if byteorder is not None and byteorder.nbytes <= _SMALL:
            text = read_member(self.handles, byteorder, self.window, _SMALL).strip()
            file.big_endian = text == b"big"
            if text not in (b"big", b"little"):
                said = f"{file.name}: its byte order record says {printable(text.decode('latin-1'), 20)}; little is assumed."
                file.findings.append(_finding(file, "corrupt", said))
        if root + "constants.pkl" in by_name or any(m.name.startswith(root + "code/") for m in members):
            file.archive = "torchscript"
        main = self.load(file, by_name[root + "data.pkl"])
        file.root, file.protocol = main.root, main.protocol
        self.add_storages(file, members, root + "data/", "", alignment)
        if file.archive == "torchscript" and root + "constants.pkl" in by_name:
            file.more_roots["constants"] = self.load(file, by_name[root + "constants.pkl"], "constants/").root
            self.add_storages(file, members, root + "constants/", "constants/", alignment)
        others = tuple(m for m in members if m.name != root + "data.pkl" and not m.name.startswith(root + "data/"))
        file.zip = ZipParts(self.window, root, alignment, others)
        known = set(_BESIDES) | {f"data/{key}" for key in file.reading.declared} | set(file.reading.declared)
        for member in members:
            inner = member.name[len(root) :] if member.name.startswith(root) else member.name
            if member.nbytes and inner not in known and not (file.archive == "torchscript" and not inner.startswith("data/")):
                file.unread[member.name] = member.packed

    def open_package(self, file: TorchFile, members: list[Member]) -> None:
        """torch.package: pickles wherever the author put them, storages in `.data/KEY.storage`."""
        stored = [m for m in members if "/.data/" in m.name and m.name.endswith(".storage")]
        resources = [m for m in members if m.name.endswith(".pkl")]
        if not resources or not any(m.name.endswith("/.data/extern_modules") or m in stored for m in members):
            what = "an empty zip archive" if not members else "a zip archive without data.pkl, no torch file"
            raise DamagedError(f"{file.name} is {what}.", code="wrong-type", path=file.path)
        file.archive = "package"
        for member in resources:
            loaded = self.load(file, member)
            file.protocol = loaded.protocol
            file.more_roots[member.name.partition("/")[2]] = loaded.root
        if len(file.more_roots) == 1:
            file.root = next(iter(file.more_roots.values()))
        else:
            file.root = Dict((name.removesuffix(".pkl"), root) for name, root in file.more_roots.items())
        file.more_roots = {}
        prefix = stored[0].name.rpartition("/")[0] + "/" if stored else ""
        self.add_storages(file, stored, prefix, "", 64, suffix=".storage")

    def load(self, file: TorchFile, member: Member, prefix: str = "") -> Loaded:
        data = read_member(self.handles, member, self.window, MOST_PICKLE_BYTES)
        where = f"{file.name}, {printable(member.name.rpartition('/')[2], 40)}"
        if not data:
            raise DamagedError(f"{where} is empty.", path=file.path)
        try:
            loaded = pickles.load(data, collapse=self.reading.collapse, persistent=self.reading.persistent(prefix))
        except PickleError as error:
            raise type(error)(f"{where}: {error.message}", code=error.code, path=file.path) from error
        if loaded.end != len(data):
            said = f"{where} has {len(data) - loaded.end} bytes after its end; they were ignored."
            file.findings.append(_finding(file, "corrupt", said))
        counts = dict(file.globals)
        for key, n in loaded.globals.items():
            counts[key] = counts.get(key, 0) + n
        file.globals = counts
        return loaded

    def add_storages(
        self, file: TorchFile, members: Iterable[Member], prefix: str, key_prefix: str, alignment: int, suffix: str = ""
    ) -> None:
        folded: dict[str, str] = {}
        declared = file.reading.declared
        for member in members:
            # torch finds names without regard to case, and takes the first of two.
            if not member.name.startswith(prefix):
                if not member.name.lower().startswith(prefix.lower()):
                    continue
                folded.setdefault(member.name[len(prefix) :].lower(), member.name)
            key = key_prefix + member.name[len(prefix) :].removesuffix(suffix)
            if not key or key.endswith("/") or key in file.storages or key in file.unusable:
                continue
            if member.problem:
                file.unusable[key] = f"{file.name}: record {printable(member.name, 60)} {member.problem}."
            else:
                file.storages[key] = self.record(member, alignment)
        for key in declared.keys() - file.storages.keys():
            other = next((k for k in file.storages if k.lower() == key.lower()), None) if folded else None
            if other is not None:
                file.storages[key] = file.storages[other]

    def record(self, member: Member, alignment: int) -> Record:
        if member.method == DEFLATED:
            return deflated_record_of(member, self.window)
        return record_of(member, self.window, alignment)

    def small_number(self, member: Member | None) -> int | None:
        if member is None or member.nbytes > _SMALL:
            return None
        text = read_member(self.handles, member, self.window, _SMALL)
        return int(text) if text.isdigit() and 0 < int(text) <= 1 << 20 else None

    def report_order(self, file: TorchFile, members: list[Member]) -> None:
        """Records of one name, and records that share bytes: what torch reads and what other tools read may differ."""
        names = twice(members)
        if names:
            shown = ", ".join(printable(n, 60) for n in names[:3])
            said = f"{file.name} has two records named {shown}; which one counts differs between readers, so neither is trusted."
            file.findings.append(_finding(file, "corrupt", said, Severity.ERROR, Blocks.MERGE))
        shared = overlapping(members)
        if shared:
            first, second = shared[0]
            said = f"{file.name}: records {printable(first, 60)} and {printable(second, 60)} overlap in the file."
            file.findings.append(_finding(file, "corrupt", said, Severity.ERROR, Blocks.MERGE))


_BESIDES = (
    "data.pkl",
    "byteorder",
    "version",
    ".format_version",
    ".storage_alignment",
    ".data/serialization_id",
    "constants.pkl",
)


def _root(members: list[Member]) -> str | None:
    """The folder that all records sit under, as the first record names it; None where there is no data.pkl."""
    found = [m.name[: -len("data.pkl")] for m in members if m.name == "data.pkl" or m.name.endswith("/data.pkl")]
    if not found:
        return None
    first = members[0].name.partition("/")[0] + "/"
    return first if first in found else found[0]


def _finding(
    file: TorchFile, code: str, text: str, severity: Severity = Severity.WARNING, blocks: Blocks = Blocks.NOTHING
) -> Finding:
    return Finding(code, severity, text, paths=(os.path.basename(file.path),), blocks=blocks)
