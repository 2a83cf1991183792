"""Planning a shrink: giving back the bytes that no tensor uses, of single files and whole folders.

Nothing ever grows: a file that would not become smaller is left as it is.  With an output the whole folder is written there,
unshrunk files copied, and appears by one rename; in place each file is replaced only after the new one was read back and proved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from shardyard.errors import CheckpointError, NoRoomError, UnsupportedError, UsageError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.sniff import Content, sniff_file
from shardyard.health.words import size
from shardyard.limits import disk
from shardyard.operations.place import Place, check_free
from shardyard.operations.shrink.files import Found, files_of
from shardyard.operations.shrink.plan import FilePlan, Shrinking, ShrinkPlan
from shardyard.operations.shrink.replace import Fingerprint, reason_to_leave
from shardyard.operations.shrink.ties import differing_message, tied_copies
from shardyard.text import printable


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
    plan = ShrinkPlan(paths, place, in_place, dedupe_tied, [], workers)
    found = files_of(paths, pattern)
    alone = len(found) == 1 and not os.path.isdir(paths[0])
    with FileHandles() as handles:
        if dedupe_tied:
            for folder in dict.fromkeys(os.path.dirname(f.path) for f in found if f.wanted):
                inside = [f.path for f in found if f.wanted and os.path.dirname(f.path) == folder]
                plan.ties[folder] = tied_copies(handles, folder, inside, None)
        plan.files = [_plan_file(handles, f, plan, alone=alone) for f in found]
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


def _plan_file(handles: FileHandles, found: Found, plan: ShrinkPlan, *, alone: bool) -> FilePlan:
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
        few = f"only {size(new.unused)} of it {'is' if new.unused == 1 else 'are'} unused, less than padding could take"
        return few if new.unused > 0 else "every stored byte is used"
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
        from shardyard.operations.shrink.safetensors import SafetensorsShrink

        return SafetensorsShrink(handles, path, ties.drop.get(path) if ties else None)
    if content in (Content.ZIP, Content.PICKLE, Content.TAR):
        from shardyard.operations.shrink.torch import Ties, TorchShrink

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
