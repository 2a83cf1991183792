"""One folder that torch.distributed.checkpoint wrote, opened: its metadata, and a tensor for each name in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardyard.checkpoint import Tensor
from shardyard.dtypes import unknown
from shardyard.errors import COPY_AGAIN, DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.coverage import flaw
from shardyard.formats.dcp.doubles import check_doubles
from shardyard.formats.dcp.files import (
    DATA,
    METADATA,
    RANK_METADATA,
    UNFINISHED,
    DcpFiles,
    check_files,
    is_dcp_name,
    more,
)
from shardyard.formats.dcp.layout import Sliced
from shardyard.formats.dcp.metadata import SavedState, read_metadata, union
from shardyard.formats.dcp.rows import Chunk, SavedTensor
from shardyard.formats.dcp.slices import ZSTD
from shardyard.formats.folder import Folder
from shardyard.formats.same_files import conflicts
from shardyard.text import printable


@dataclass(slots=True)
class DcpFolder:
    """A folder, opened."""

    files: DcpFiles
    state: SavedState
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By full name."""

    @property
    def folder(self) -> Folder:
        return self.files.folder


def open_folder(folder: Folder, prefix: str, options: OpenOptions) -> DcpFolder:
    """Read a folder's metadata; damage becomes findings."""
    files = DcpFiles(folder, prefix, conflicts(folder, options.handles, is_dcp_name))
    opened = DcpFolder(files, _read_metadata(files, options))
    check_files(files, opened.state, options.handles)
    check_doubles(files, opened.state, options.handles)
    _make_tensors(opened, options.handles)
    return opened


def _read_metadata(files: DcpFiles, options: OpenOptions) -> SavedState:
    listed = files.folder.files
    ranks = sorted((int(m[1]), name) for name in listed if (m := RANK_METADATA.fullmatch(name)))
    names = [METADATA] if METADATA in listed else [name for _, name in ranks]
    if not names:
        _no_metadata(files)
    states = [state for name in names if (state := _read_one(files, name, options)) is not None]
    if METADATA not in listed and ranks:
        _check_ranks(files, {rank for rank, _ in ranks})
    try:
        return states[0] if len(states) == 1 else union(states)
    except DamagedError as error:
        files.add(Finding(error.code, Severity.ERROR, error.problem, error.remedy, paths=(names[0],), blocks=Blocks.MERGE))
        return SavedState()


def _read_one(files: DcpFiles, name: str, options: OpenOptions) -> SavedState | None:
    try:
        return read_metadata(options.handles, files.folder.files[name].path, options.progress, options.cancelled)
    except DamagedError as error:
        message = files.prefix + error.problem
        files.add(Finding(error.code, Severity.ERROR, message, error.remedy or COPY_AGAIN, paths=(name,), blocks=Blocks.MERGE))
        return None


def _no_metadata(files: DcpFiles) -> None:
    unfinished = next((name for name in files.folder.files if UNFINISHED.fullmatch(name)), None)
    if unfinished:
        message = f"The save did not finish: {files.prefix}{unfinished} was being written and there is no .metadata."
        remedy = "Use an earlier checkpoint; without .metadata nothing says which bytes are which tensor."
    else:
        message = f"There is no {files.prefix}.metadata: the save did not finish, or hidden files were not copied."
        remedy = "Copy the folder again with its hidden files (cp -a, rsync -a), from the node that wrote rank 0's files."
    files.add(Finding("missing-metadata", Severity.ERROR, message, remedy, paths=(unfinished or METADATA,), blocks=Blocks.MERGE))


def _check_ranks(files: DcpFiles, ranks: set[int]) -> None:
    """With metadata by rank, each rank that wrote data, and each below the highest, must have its own."""
    wrote = {int(m[1]) for name in files.folder.files if (m := DATA.fullmatch(name))}
    missing = sorted(((ranks | wrote) | set(range(max(ranks)))) - ranks)
    if missing:
        names = tuple(f"__{rank}.metadata" for rank in missing[:100])
        files.add(
            Finding(
                "missing-metadata",
                Severity.ERROR,
                f"{files.prefix}{names[0]}{more(len(missing) - 1)} is missing: each rank of this save wrote metadata of its own.",
                "Copy it from the node of that rank.",
                paths=names,
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )


def _make_tensors(opened: DcpFolder, handles: FileHandles) -> None:
    files = opened.files
    faults: dict[tuple[str, str], list[str]] = {}
    for name, saved in opened.state.tensors.items():
        copies = _copies(saved, files.bad)
        code, note = _fault(saved, copies[0], files.bad)
        if note or saved.dtype is None:
            dtype = saved.dtype or unknown("unknown")
            opened.tensors[name] = Tensor(name, dtype, saved.shape, None, note=note, nbytes_stored=None if dtype.bits else 0)
            if code:
                faults.setdefault((code, note), []).append(name)
            continue
        layouts = [Sliced(saved.shape, saved.dtype, chunks, files.paths, handles) for chunks in copies]
        opened.tensors[name] = Tensor(name, saved.dtype, saved.shape, layouts[0], replicas=tuple(layouts[1:]))
    for (code, note), names in faults.items():
        files.add(
            Finding(
                code,
                Severity.ERROR,
                f"{printable(names[0], 120)}{more(len(names) - 1)}: {note}.",
                "The save is incomplete or its metadata is wrong; use another checkpoint.",
                tensors=tuple(names),
                blocks=Blocks.MERGE if code == "corrupt" else Blocks.UNLESS_ALLOWED,
            )
        )


def _copies(saved: SavedTensor, bad: dict[str, str]) -> list[list[Chunk]]:
    """The chunks to read, then further stored copies of all or some of them; where a copy lacks a chunk, the first stands in."""
    if not saved.copies:
        return [saved.chunks]
    stored: dict[tuple[int, ...], list[Chunk]] = {}
    for chunk in (c for of_rank in (saved.chunks, *saved.copies) for c in of_rank):
        stored.setdefault(chunk.offsets, []).append(chunk)
    usable = [[c for c in same if c.place is not None and c.place.file not in bad] or same[:1] for same in stored.values()]
    return [[same[min(i, len(same) - 1)] for same in usable] for i in range(max(map(len, usable), default=1))]


def _fault(saved: SavedTensor, chunks: list[Chunk], bad: dict[str, str]) -> tuple[str, str]:
    """(code, why the tensor cannot be read); no code where a bad file was told already."""
    placed = [c for c in chunks if c.place is not None]
    for chunk in placed:
        if chunk.place is not None and chunk.place.file in bad and 0 not in chunk.sizes:
            return "", bad[chunk.place.file]
    if saved.dtype is None or not saved.dtype.bits:
        return "unsupported", f"its element type {printable(saved.dtype.name, 40) if saved.dtype else ''} is not known"
    codecs = {c.place.codecs for c in placed if c.place is not None} - {(), (ZSTD,)}
    if codecs:
        return "unsupported", f"its slices are transformed by {printable(', '.join(codecs.pop()), 80)}, which is not read"
    problem = flaw(saved.shape, [(c.offsets, c.sizes) for c in placed])
    return ("missing-tensor" if "stored" in problem else "corrupt", problem) if problem else ("", "")
