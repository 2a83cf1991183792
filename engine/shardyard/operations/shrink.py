"""Shrink: give back the bytes that no tensor uses, of single files and whole folders, into a new place or in place.

Nothing ever grows: a file that would not become smaller is left as it is.  With an output the whole folder is written there,
unshrunk files copied, and appears by one rename; in place each file is replaced only after the new one was read back and proved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from shardyard.errors import CheckpointError, NoRoomError, UnsupportedError, UsageError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.sniff import Content, sniff_file
from shardyard.health.words import size
from shardyard.limits import disk
from shardyard.operations.context import Context
from shardyard.operations.place import Place, check_free, read_marker
from shardyard.operations.shrink_files import Found, files_of
from shardyard.operations.shrink_meter import Meter
from shardyard.operations.shrink_replace import Fingerprint, reason_to_leave
from shardyard.operations.shrink_ties import Tied, differing_message, tied_copies
from shardyard.text import printable


class Shrinking(Protocol):
    """A file's new form."""

    @property
    def nbytes(self) -> int: ...
    @property
    def payload(self) -> int: ...
    @property
    def tensors(self) -> int: ...
    @property
    def worthwhile(self) -> bool: ...
    def write(self, fd: int, meter: Meter) -> None: ...
    def prove(self, path: str, meter: Meter) -> None: ...


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file of a shrink."""

    found: Found
    fingerprint: Fingerprint
    after: int
    """Bytes of the new file; as before where it is left."""
    payload: int = 0
    """Tensor bytes to be written and compared."""
    tensors: int = 0
    shrunk: bool = False
    why: str = ""
    """Why it is left as it is; empty for files that are not looked at."""
    damaged: bool = False

    @property
    def before(self) -> int:
        return self.fingerprint.nbytes

    @property
    def saved(self) -> int:
        return self.before - self.after if self.shrunk else 0


@dataclass(slots=True)
class ShrinkPlan:
    """What a shrink would do; made from headers and pickles alone."""

    sources: list[str]
    place: Place | None
    """None: in place, or only looked at."""
    in_place: bool
    dedupe_tied: bool
    files: list[FilePlan]
    ties: dict[str, Tied] = field(default_factory=dict)
    """By folder."""
    findings: list[Finding] = field(default_factory=list)
    compared: bool = False
    """Whether copies of tied weights were compared by their bytes; a plan reads none."""

    @property
    def before(self) -> int:
        return sum(f.before for f in self.looked_at)

    @property
    def after(self) -> int:
        return sum(f.after for f in self.looked_at)

    @property
    def looked_at(self) -> list[FilePlan]:
        """Files that are shrunk, or were looked at and left."""
        return [f for f in self.files if f.shrunk or f.why]

    @property
    def needed(self) -> int:
        """Disk that must be free: all of an output, or the largest new file in place."""
        if self.place is None:
            return max((f.after for f in self.files if f.shrunk), default=0)
        return sum(f.after for f in self.files)

    @property
    def hash(self) -> str:
        """Names this very plan: other sources or settings give another."""
        rows = [[f.found.path, f.fingerprint.nbytes, f.fingerprint.modified_ns, f.after] for f in self.files]
        settings = [self.sources, self.dedupe_tied, rows]
        return hashlib.sha256(json.dumps(settings).encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """As `--dry-run` and the app show it."""
        where = self.place.out if self.place is not None else self.sources[0]
        room = disk.of(where)
        working = sum(f.payload for f in self.files)
        copied = sum(f.after for f in self.files if not f.shrunk) if self.place is not None else 0
        shrunk = [f for f in self.files if f.shrunk]
        return {
            "verb": "shrink",
            "sources": [printable(s) for s in self.sources],
            "out": None if self.place is None else printable(str(self.place.out)),
            "in_place": self.in_place,
            "files": [row_of(f) for f in self.looked_at],
            "tensors": sum(f.tensors for f in shrunk),
            "before": self.before,
            "after": self.after,
            "saved": self.before - self.after,
            "bytes_read": 3 * working + copied,
            "bytes_written": sum(f.after for f in shrunk) + copied,
            "memory": MEMORY,
            "disk": {"needed": self.needed, "free": room.room, "path": printable(str(room.folder))},
            "complete": True,
            "notes": report_lines([row_of(f) for f in self.looked_at]),
            "findings": [{"code": f.code, "severity": f.severity.value, "message": f.message} for f in self.findings],
        }


MEMORY = 60 << 20
"""Anonymous memory that a shrink takes for files of any size; a pickle of 100,000 tensors adds twice as much."""


def row_of(file: FilePlan) -> dict[str, Any]:
    """One file of a plan or a report."""
    return {
        "name": printable(file.found.name),
        "before": file.before,
        "after": file.after,
        "saved": file.saved,
        "tensors": file.tensors,
        "action": "shrink" if file.shrunk else "leave",
        "why": file.why,
    }


def report_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Before, after and saved, for each file and in all."""
    lines = []
    for row in rows:
        if row["action"] == "shrink":
            lines.append(f"{row['name']}: {size(row['before'])} to {size(row['after'])}, saves {size(row['saved'])}")
        else:
            lines.append(f"{row['name']}: {size(row['before'])}, left as it is: {row['why']}")
    before, saved = sum(r["before"] for r in rows), sum(r["saved"] for r in rows)
    share = f" ({saved / before:.0%})" if before else ""
    lines.append(f"In all: {size(before)} to {size(before - saved)}, saves {size(saved)}{share}")
    return lines


def plan_shrink(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    pattern: str | None = None,
    in_place: bool = False,
    dedupe_tied: bool = False,
    workers: int | None = None,
    resuming: bool = False,
) -> ShrinkPlan:
    """Look at the files and say what each would become. With neither `out` nor `in_place`, only that.

    `resuming` lets OUT be there, for a run that was killed after its last rename: see `made_since`.

    Raises:
        UsageError: no such file, or options that contradict each other.
        OutputExistsError: OUT holds files already.
        NoRoomError: the disk does not suffice.
        CheckpointError: the one file that was named cannot be shrunk.
    """
    if in_place and out is not None:
        raise UsageError("Choose either -o OUT or --in-place.")
    if not sources:
        raise UsageError("shrink needs a file or a folder.")
    paths = [os.path.abspath(s) for s in sources]
    place = _place(paths, out, resuming=resuming)
    plan = ShrinkPlan(paths, place, in_place, dedupe_tied, [])
    found = files_of(paths, pattern)
    alone = len(found) == 1 and not os.path.isdir(paths[0])
    with FileHandles() as handles:
        if dedupe_tied:
            for folder in dict.fromkeys(os.path.dirname(f.path) for f in found if f.wanted):
                inside = [f.path for f in found if f.wanted and os.path.dirname(f.path) == folder]
                plan.ties[folder] = tied_copies(handles, folder, inside, None)
        plan.files = [plan_file(handles, f, plan, alone=alone) for f in found]
    _say_differing(plan)
    _check_room(plan)
    return plan


def _place(sources: list[str], out: str | os.PathLike[str] | None, *, resuming: bool) -> Place | None:
    if out is None:
        return None
    place = Place.of(out)
    single = place.single and len(sources) == 1 and os.path.isfile(sources[0])
    place = replace(place, single=single)
    if not resuming:
        check_free(place, overwrite=False, sources=sources)
    if any(str(place.out).startswith(source + os.sep) for source in sources):
        raise UsageError(f"{printable(str(place.out))} lies inside what is to be shrunk; choose another output.")
    return place


def plan_file(handles: FileHandles, found: Found, plan: ShrinkPlan, *, alone: bool) -> FilePlan:
    """What one file would become."""
    mark = Fingerprint.of(found.path)
    left = FilePlan(found, mark, mark.nbytes)
    if not found.wanted:
        return left
    if plan.in_place and found.is_link and not alone:
        return replace(left, why="it is a link; name the file that it leads to")
    try:
        new = shrinking(handles, found.path, plan)
        if new is None:
            return left
    except CheckpointError as error:
        if alone:
            raise
        return replace(left, why=error.message, damaged=not isinstance(error, UnsupportedError))
    why = reason_it_stays(new, mark.nbytes)
    if why:
        return replace(left, why=why)
    why = reason_to_leave(os.path.realpath(found.path), mark) if plan.in_place else ""
    if why:
        return replace(left, why=why)
    return replace(left, after=new.nbytes, payload=new.payload, tensors=new.tensors, shrunk=True)


def reason_it_stays(new: Shrinking, nbytes: int) -> str:
    """Why a file of `nbytes` is left as it is; empty if its new form gives bytes back."""
    if not new.worthwhile:
        return "every stored byte is used"
    return (
        ""
        if new.nbytes < nbytes
        else "it would not become smaller: its tensors are so small that storing each by itself costs more"
    )


def shrinking(handles: FileHandles, path: str, plan: ShrinkPlan) -> Shrinking | None:
    """The new form of a file; None if it is no checkpoint of a kind that is shrunk.

    Raises:
        CheckpointError: it is damaged, or of a kind that is not written again.
    """
    content = sniff_file(handles, path).content
    ties = plan.ties.get(os.path.dirname(path))
    if content is Content.SAFETENSORS:
        from shardyard.operations.shrink_safetensors import SafetensorsShrink

        return SafetensorsShrink(handles, path, ties.drop.get(path) if ties else None)
    if content in (Content.ZIP, Content.PICKLE, Content.TAR):
        from shardyard.operations.shrink_torch import Ties, TorchShrink

        if not plan.dedupe_tied:
            return TorchShrink(handles, path)
        return TorchShrink(handles, path, Ties.COMPARED if plan.compared else Ties.BELIEVED)
    return None


def _say_differing(plan: ShrinkPlan) -> None:
    for ties in plan.ties.values():
        for alias, owner in ties.differing:
            finding = Finding("tie-disagrees", Severity.WARNING, differing_message(alias, owner), tensors=(owner, alias))
            plan.findings.append(finding)


def _check_room(plan: ShrinkPlan) -> None:
    if not any(f.shrunk for f in plan.files) or (plan.place is None and not plan.in_place):
        return
    if plan.place is not None:
        checks = [(str(plan.place.out), plan.needed)]
    else:
        checks = [(os.path.dirname(os.path.realpath(f.found.path)), f.after) for f in plan.files if f.shrunk]
    largest: dict[str, int] = {}
    for folder, needed in checks:
        largest[folder] = max(needed, largest.get(folder, 0))
    for folder, needed in largest.items():
        room = disk.of(folder)
        if needed > room.room:
            said = (
                f"{printable(str(room.folder))} has {size(room.room)} free; the new file needs {size(needed)} beside the old one."
            )
            raise NoRoomError(said, path=folder)


def made_since(plan: ShrinkPlan, since: float) -> bool:
    """Whether the output was put in place after `since` by this very plan: a run was killed after its last rename."""
    place = plan.place
    try:
        if place is None or place.out.stat().st_ctime < since:
            return False
        if place.single:
            return place.out.stat().st_size == plan.files[0].after
    except OSError:
        return False
    marker = read_marker(place.out)
    return marker is not None and marker.get("plan") == plan.hash


def made(plan: ShrinkPlan) -> dict[str, Any]:
    """The report of an output that is in place already; what is left of its staging goes."""
    from shardyard.operations.shrink_run import already

    return already(plan)


def shrink(plan: ShrinkPlan, context: Context) -> dict[str, Any]:
    """Do it; returns the report.

    Raises:
        ShardyardError: what stopped it. Files that were done are done; the same command goes on from there.
    """
    from shardyard.operations.shrink_run import run

    return run(plan, context)
