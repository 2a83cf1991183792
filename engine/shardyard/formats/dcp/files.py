"""The files of a folder that torch.distributed.checkpoint wrote, against what its metadata says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from shardyard.checkpoint import FileEntry
from shardyard.errors import COPY_AGAIN
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.dcp.metadata import SavedState
from shardyard.formats.dcp.rows import Place
from shardyard.formats.folder import Folder
from shardyard.text import printable

METADATA = ".metadata"
RANK_METADATA = re.compile(r"__(\d{1,9})\.metadata")
DATA = re.compile(r"__(\d{1,9})_(\d{1,9})\.distcp")
UNFINISHED = re.compile(r"(?:__\d{1,9})?\.metadata\.tmp")
MOST_NAMED = 20
_MOST_PROBED = 4096
_LATER_S = 60.0
"""A data file is written before the metadata; clocks of file servers differ by less than this."""


def is_dcp_name(name: str) -> bool:
    """Whether a file of that name is part of such a folder."""
    return name == METADATA or any(p.fullmatch(name) for p in (RANK_METADATA, DATA, UNFINISHED))


def is_dcp(folder: Folder) -> bool:
    """Whether the folder holds anything that was written by torch.distributed.checkpoint."""
    return any(is_dcp_name(name) for name in folder.files)


def more(count: int) -> str:
    """How a list of one goes on."""
    return f" (and {count} more)" if count > 0 else ""


@dataclass(slots=True)
class DcpFiles:
    """What the listing and a few bytes of each file tell."""

    folder: Folder
    prefix: str
    """Put before file names: the folder's own path in the checkpoint, with its slash."""
    findings: list[Finding] = field(default_factory=list)
    files: list[FileEntry] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    """Absolute, by the name that the metadata uses."""
    bad: dict[str, str] = field(default_factory=dict)
    """Files that are missing or not what they should be, and what is wrong with each."""
    stale_bytes: int = 0
    world_size: int | None = None

    def add(self, finding: Finding) -> None:
        """Add a finding; its paths are names in this folder."""
        paths = tuple(self.prefix + name for name in finding.paths[:MOST_NAMED])
        self.findings.append(replace(finding, paths=paths, tensors=finding.tensors[:MOST_NAMED]))


def check_files(files: DcpFiles, state: SavedState, handles: FileHandles) -> None:
    """List the files; each that the metadata names must be there, as long as its slices, and end as the last one does."""
    last = _last_slices(state)
    for name, entry in files.folder.files.items():
        files.paths[name] = entry.path
    for name in last:
        # A name with a slash is not in the listing.
        if "/" in name and (path := files.folder.path / name).is_file():
            files.paths[name] = str(path)
    for number, (name, place) in enumerate(sorted(last.items())):
        _check_one(files, name, place, handles, probe=number < _MOST_PROBED)
    _list(files, last, whole=bool(state.tensors or state.objects))
    _compare_times(files, last)


def _last_slices(state: SavedState) -> dict[str, Place]:
    """For each data file that the metadata names, the last slice in it."""
    last: dict[str, Place] = {}
    for place in state.places():
        known = last.get(place.file)
        if known is None or place.start + place.nbytes > known.start + known.nbytes:
            last[place.file] = place
    return last


def _check_one(files: DcpFiles, name: str, last: Place, handles: FileHandles, *, probe: bool) -> None:
    path = files.paths.get(name)
    end = last.start + last.nbytes
    shown = printable(files.prefix + name)
    if path is None:
        files.bad[name] = f"{shown} is not there"
        files.add(
            Finding(
                "missing-shard",
                Severity.ERROR,
                f"{shown} is missing: .metadata says that chunks of tensors are in it.",
                "Copy it from the node that wrote it, or give that node's folder as a further source.",
                paths=(name,),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
        return
    there = handles.size(path)
    foreign = probe and not _begins_and_ends_as_zip(handles, path, last, there)
    if there < end:
        files.bad[name] = f"{shown} ends at byte {there:,} of {end:,}"
        files.add(
            Finding(
                "truncated",
                Severity.ERROR,
                f"{shown} has {there:,} bytes where .metadata says {end:,}: it was cut short or exchanged with another file.",
                COPY_AGAIN,
                paths=(name,),
                nbytes=end - there,
                blocks=Blocks.MERGE if foreign else Blocks.UNLESS_ALLOWED,
            )
        )
    elif there > end or foreign:
        files.bad[name] = f"{shown} is not the file that .metadata describes"
        files.add(
            Finding(
                "corrupt",
                Severity.ERROR,
                f"{shown} does not hold what .metadata says ({there:,} bytes, slices up to {end:,}): "
                "it was exchanged with another file or comes from another save.",
                "Copy the folder again from where it was written.",
                paths=(name,),
                blocks=Blocks.MERGE,
            )
        )


def _begins_and_ends_as_zip(handles: FileHandles, path: str, last: Place, nbytes: int) -> bool:
    """Whether the last slice looks like one, as far as the file goes; compressed ones are not looked at."""
    if last.codecs or last.start + 4 > nbytes:
        return True
    if handles.read(path, last.start, 4) != b"PK\x03\x04":
        return False
    end = last.start + last.nbytes
    return end > nbytes or b"PK\x05\x06" in handles.read(path, max(last.start, end - 22), min(22, last.nbytes))


def _list(files: DcpFiles, last: dict[str, Place], *, whole: bool) -> None:
    """Roles, the number of ranks, and what is left over; without readable metadata every data file counts."""
    stale: list[str] = []
    highest = -1
    for name, entry in files.folder.files.items():
        data = DATA.fullmatch(name)
        if data is None:
            if is_dcp_name(name):
                files.files.append(FileEntry(files.prefix + name, entry.nbytes, "metadata"))
            continue
        used = name in last or not whole
        files.files.append(FileEntry(files.prefix + name, entry.nbytes, "weights" if used else "other"))
        if used:
            highest = max(highest, int(data[1]))
        else:
            stale.append(name)
            files.stale_bytes += entry.nbytes
    named = [int(m[1]) for name in last if (m := DATA.fullmatch(name))]
    files.world_size = max([highest, *named]) + 1 or None
    if stale:
        files.add(
            Finding(
                "stale-file",
                Severity.WARNING,
                f"{len(stale)} {'files are' if len(stale) > 1 else 'file is'} not named by .metadata, such as "
                f"{files.prefix}{stale[0]}: left over from an earlier save into the same folder.",
                "They are not read; delete them once you are sure.",
                paths=tuple(stale),
                nbytes=files.stale_bytes,
            )
        )


def _compare_times(files: DcpFiles, last: dict[str, Place]) -> None:
    """A save into a folder that had one replaces the data first and the metadata last; stopped between, it leaves a mixture."""
    listed = files.folder.files
    metadata = listed.get(METADATA)
    if metadata is None:
        return
    unfinished = [name for name in listed if UNFINISHED.fullmatch(name)]
    later = [n for n in last if n in listed and listed[n].mtime > metadata.mtime + _LATER_S]
    if unfinished or (later and len(later) < len(last)):
        name = unfinished[0] if unfinished else later[0]
        files.add(
            Finding(
                "stale-file",
                Severity.WARNING,
                f"{files.prefix}{printable(name)} is newer than .metadata: a later save into this folder may have been stopped, "
                "which leaves data of two saves.",
                "Compare it with another step, or use an earlier checkpoint.",
                paths=(name,),
                sure=False,
            )
        )
