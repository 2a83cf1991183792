"""One folder that torch.distributed.checkpoint wrote: its metadata, its files, and what does not fit together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardyard.checkpoint import FileEntry, Tensor
from shardyard.dtypes import unknown
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.coverage import flaw
from shardyard.formats.dcp_layout import Sliced
from shardyard.formats.dcp_metadata import SavedState, read_metadata, union
from shardyard.formats.dcp_rows import Chunk, Place, SavedTensor
from shardyard.formats.dcp_slices import ZSTD
from shardyard.formats.folder import Folder
from shardyard.formats.same_files import conflicts
from shardyard.text import printable

METADATA = ".metadata"
RANK_METADATA = re.compile(r"__(\d{1,9})\.metadata")
DATA = re.compile(r"__(\d{1,9})_(\d{1,9})\.distcp")
UNFINISHED = re.compile(r"(?:__\d{1,9})?\.metadata\.tmp")
_MOST_NAMED = 20
_MOST_PROBED = 4096


def is_dcp_name(name: str) -> bool:
    """Whether a file of that name is part of such a folder."""
    return name == METADATA or any(p.fullmatch(name) for p in (RANK_METADATA, DATA, UNFINISHED))


def is_dcp(folder: Folder) -> bool:
    """Whether the folder holds anything that was written by torch.distributed.checkpoint."""
    return any(is_dcp_name(name) for name in folder.files)


@dataclass(slots=True)
class DcpFolder:
    """A folder, opened."""

    folder: Folder
    prefix: str
    """Put before file names: the folder's own path in the checkpoint, with its slash."""
    state: SavedState = field(default_factory=SavedState)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By full name."""
    findings: list[Finding] = field(default_factory=list)
    files: list[FileEntry] = field(default_factory=list)
    stale_bytes: int = 0
    world_size: int | None = None
    bad: dict[str, str] = field(default_factory=dict)
    """Files that are missing or shorter than they should be, and what is wrong with each."""

    def add(self, code: str, severity: Severity, message: str, remedy: str = "", **more: object) -> None:
        """Add a finding; paths get the prefix."""
        paths = more.pop("paths", ())
        named = tuple(self.prefix + str(p) for p in paths) if isinstance(paths, tuple) else ()
        self.findings.append(Finding(code, severity, message, remedy, paths=named, **more))  # type: ignore[arg-type]


def open_folder(folder: Folder, prefix: str, options: OpenOptions) -> DcpFolder:
    """Read a folder's metadata; damage becomes findings."""
    opened = DcpFolder(folder, prefix)
    opened.findings.extend(conflicts(folder, options.handles, is_dcp_name))
    _read_metadata(opened, options)
    ends = _furthest(opened.state)
    _check_files(opened, options.handles, ends)
    _list_files(opened, ends)
    paths = {name: entry.path for name, entry in folder.files.items()}
    paths.update({name: str(folder.path / name) for name in ends if "/" in name and name not in opened.bad})
    _make_tensors(opened, paths, options.handles)
    return opened


def _read_metadata(opened: DcpFolder, options: OpenOptions) -> None:
    files = opened.folder.files
    ranks = sorted((int(m[1]), name) for name in files if (m := RANK_METADATA.fullmatch(name)))
    names = [METADATA] if METADATA in files else [name for _, name in ranks]
    if not names:
        _no_metadata(opened)
        return
    states = [state for name in names if (state := _read_one(opened, name, options)) is not None]
    if not states:
        return
    try:
        opened.state = states[0] if len(states) == 1 else union(states)
    except DamagedError as error:
        _unreadable(opened, names[0], error)
    if METADATA not in files:
        _check_ranks(opened, {rank for rank, _ in ranks})


def _read_one(opened: DcpFolder, name: str, options: OpenOptions) -> SavedState | None:
    try:
        return read_metadata(options.handles, opened.folder.files[name].path, options.progress, options.cancelled)
    except DamagedError as error:
        _unreadable(opened, name, error)
        return None


def _unreadable(opened: DcpFolder, name: str, error: DamagedError) -> None:
    opened.add(error.code, Severity.ERROR, f"{opened.prefix}{error.message}", paths=(name,), blocks=Blocks.MERGE)


def _no_metadata(opened: DcpFolder) -> None:
    unfinished = next((name for name in opened.folder.files if UNFINISHED.fullmatch(name)), None)
    if unfinished:
        message = f"The save did not finish: {opened.prefix}{unfinished} was being written and there is no .metadata."
        remedy = "Use an earlier checkpoint; without .metadata nothing says which bytes are which tensor."
    else:
        message = f"There is no {opened.prefix}.metadata: the save did not finish, or hidden files were not copied."
        remedy = "Copy the folder again with its hidden files (cp -a, rsync -a), from the node that wrote rank 0's files."
    opened.add("missing-metadata", Severity.ERROR, message, remedy, paths=(unfinished or METADATA,), blocks=Blocks.MERGE)


def _check_ranks(opened: DcpFolder, ranks: set[int]) -> None:
    """With metadata by rank, each rank that wrote data, and each below the highest, must have its own."""
    wrote = {int(m[1]) for name in opened.folder.files if (m := DATA.fullmatch(name))}
    missing = sorted((wrote | set(range(max(ranks | wrote) + 1))) - ranks)
    if missing:
        names = tuple(f"__{rank}.metadata" for rank in missing)
        opened.add(
            "missing-metadata",
            Severity.ERROR,
            f"{opened.prefix}{names[0]}{_more(len(names) - 1)} is missing: each rank of this save wrote metadata of its own.",
            "Copy it from the node of that rank.",
            paths=names[:_MOST_NAMED],
            blocks=Blocks.UNLESS_ALLOWED,
        )


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""


def _places(state: SavedState) -> list[Place]:
    found = [c.place for t in state.tensors.values() for c in t.chunks if c.place is not None]
    found += [c.place for t in state.tensors.values() for copy in t.copies for c in copy if c.place is not None]
    found += [p for places in state.objects.values() for p in places]
    return found


def _furthest(state: SavedState) -> dict[str, Place]:
    """For each data file that the metadata names, the last slice in it."""
    last: dict[str, Place] = {}
    for place in _places(state):
        known = last.get(place.file)
        if known is None or place.start + place.nbytes > known.start + known.nbytes:
            last[place.file] = place
    return last


def _check_files(opened: DcpFolder, handles: FileHandles, ends: dict[str, Place]) -> None:
    """Each file must be there, exactly as long as its slices, and end as the last of them does."""
    for number, (name, last) in enumerate(sorted(ends.items())):
        path = opened.folder.path / name
        entry = opened.folder.files.get(name)
        there = entry.nbytes if entry else path.stat().st_size if "/" in name and path.is_file() else None
        end = last.start + last.nbytes
        shown = printable(opened.prefix + name)
        if there is None:
            opened.bad[name] = f"{shown} is not there"
            opened.add(
                "missing-shard",
                Severity.ERROR,
                f"{shown} is missing: .metadata says that chunks of tensors are in it.",
                "Copy it from the node that wrote it, or give that node's folder as a further source.",
                paths=(name,),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        elif there < end:
            opened.bad[name] = f"{shown} ends at byte {there:,} of {end:,}"
            opened.add(
                "truncated",
                Severity.ERROR,
                f"{shown} has {there:,} bytes where .metadata says {end:,}: it was cut short or exchanged with another file.",
                "Copy it again from where it was written.",
                paths=(name,),
                nbytes=end - there,
                blocks=Blocks.MERGE if _other_than_said(opened, handles, name, last, there) else Blocks.UNLESS_ALLOWED,
            )
        elif there > end or (number < _MOST_PROBED and _other_than_said(opened, handles, name, last, end)):
            opened.bad[name] = f"{shown} is not the file that .metadata describes"
            opened.add(
                "corrupt",
                Severity.ERROR,
                f"{shown} does not hold what .metadata says ({there:,} bytes, slices up to {end:,}): "
                "it was exchanged with another file or comes from another save.",
                "Copy the folder again from where it was written.",
                paths=(name,),
                blocks=Blocks.MERGE,
            )


def _other_than_said(opened: DcpFolder, handles: FileHandles, name: str, last: Place, end: int) -> bool:
    """Whether the last slice, if it is there, does not begin and end as a zip does."""
    entry = opened.folder.files.get(name)
    if entry is None or last.codecs or last.start + 4 > end:
        return False
    begins = handles.read(entry.path, last.start, 4) == b"PK\x03\x04"
    whole = last.start + last.nbytes <= end
    ends = not whole or b"PK\x05\x06" in handles.read(entry.path, max(last.start, end - 22), min(22, last.nbytes))
    return not (begins and ends)


def _list_files(opened: DcpFolder, ends: dict[str, Place]) -> None:
    stale = []
    highest = -1
    for name, entry in opened.folder.files.items():
        data = DATA.fullmatch(name)
        if data is None:
            if is_dcp_name(name):
                opened.files.append(FileEntry(opened.prefix + name, entry.nbytes, "metadata"))
            continue
        used = name in ends or not (opened.state.tensors or opened.state.objects)
        opened.files.append(FileEntry(opened.prefix + name, entry.nbytes, "weights" if used else "other"))
        if used:
            highest = max(highest, int(data[1]))
        else:
            stale.append(name)
            opened.stale_bytes += entry.nbytes
    opened.world_size = max([highest, *(int(m[1]) for n in ends if (m := DATA.fullmatch(n)))], default=-1) + 1 or None
    if stale:
        opened.add(
            "stale-file",
            Severity.WARNING,
            f"{len(stale)} files are not named by .metadata, such as {opened.prefix}{stale[0]}: left over from an earlier save "
            "into the same folder.",
            "They are not read; delete them once you are sure.",
            paths=tuple(stale[:_MOST_NAMED]),
            nbytes=opened.stale_bytes,
        )


def _make_tensors(opened: DcpFolder, paths: dict[str, str], handles: FileHandles) -> None:
    faults: dict[str, list[str]] = {}
    for name, saved in opened.state.tensors.items():
        note, blocking = _fault(opened, saved)
        dtype = saved.dtype if saved.dtype is not None and saved.dtype.bits else None
        if dtype is None or note:
            shown = saved.dtype or unknown("unknown")
            opened.tensors[name] = Tensor(name, shown, saved.shape, None, note=note, nbytes_stored=None if dtype else 0)
            if blocking:
                faults.setdefault(blocking, []).append(name)
            continue
        copies = [_filled_up(saved.chunks, copy) for copy in saved.copies]
        first, *others = (Sliced(saved.shape, dtype, chunks, paths, handles) for chunks in [saved.chunks, *copies])
        opened.tensors[name] = Tensor(name, dtype, saved.shape, first, replicas=tuple(others))
    for what, names in faults.items():
        code, _, text = what.partition(":")
        opened.add(
            code,
            Severity.ERROR,
            f"{printable(names[0], 120)}{_more(len(names) - 1)}: {text}.",
            "The save is incomplete or its metadata is wrong; use another checkpoint.",
            tensors=tuple(names[:_MOST_NAMED]),
            blocks=Blocks.UNLESS_ALLOWED if code in ("missing-tensor", "unsupported") else Blocks.MERGE,
        )


def _fault(opened: DcpFolder, saved: SavedTensor) -> tuple[str, str]:
    """(why the tensor cannot be read, "code:reason" if that is not the fault of a file that was told already)."""
    full = [c for c in saved.chunks if 0 not in c.sizes]
    bad = next((opened.bad[c.place.file] for c in full if c.place is not None and c.place.file in opened.bad), None)
    if bad:
        return bad, ""
    if saved.dtype is None or not saved.dtype.bits:
        reason = f"its dtype {printable(saved.dtype.name, 40) if saved.dtype else ''} is not known to this version"
        return reason, f"unsupported:{reason}"
    codec = next((c.place.codecs for c in full if c.place is not None and c.place.codecs not in ((), (ZSTD,))), None)
    if codec:
        reason = f"its slices are transformed by {printable(', '.join(codec), 80)}, which is not read"
        return reason, f"unsupported:{reason}"
    stored = [c for c in saved.chunks if c.place is not None]
    problem = flaw(saved.shape, [(c.offsets, c.sizes) for c in stored])
    if problem:
        return problem, f"{'missing-tensor' if 'stored' in problem else 'corrupt'}:{problem}"
    return "", ""


def _filled_up(chunks: list[Chunk], copy: list[Chunk]) -> list[Chunk]:
    """A further stored copy as a whole tensor: where this copy lacks a chunk, the first one stands in."""
    here = {c.offsets for c in copy}
    return copy + [c for c in chunks if c.offsets not in here]
