"""The staging folder of an output: made once, sized once, shared by all tasks, and removed when the output is published."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardyard.errors import NoRoomError, OutputExistsError
from shardyard.limits import disk
from shardyard.operations.merge.plan import Plan, settings
from shardyard.operations.place import Place, check_existing, read_marker
from shardyard.text import printable

PLAN = "plan.json"
NAMED = "named.json"
"""In a job's folder: the single file that it was about to give its name."""
READY = "ready"
"""Set once every byte was written and checked: from then on only renames are left."""


def prepare(plan: Plan) -> None:
    """Make the staging folder and its files, or go on with those of the same plan. Several tasks may call it at once.

    Raises:
        OutputExistsError: another unfinished merge holds the place.
        NoRoomError: the folder or its files cannot be made.
    """
    place = plan.place
    try:
        heal(place)
        _drop_orphaned_ledgers(plan)
        place.files.mkdir(parents=True, exist_ok=True)
        _claim(plan)
        for file in plan.files:
            _create(place.files / file.name, file.nbytes)
    except OSError as error:
        full = disk.no_room(error, place.staging, plan.nbytes)
        raise full or NoRoomError(
            f"{printable(str(error.filename or place.staging))} cannot be made: {os.strerror(error.errno or 0)}.",
            path=str(place.staging),
        ) from error


def _drop_orphaned_ledgers(plan: Plan) -> None:
    """Begin anew if a file that a ledger speaks of is gone: its fresh zeros must not count as done.

    A ledger is only made once all files are there, so files that another task is making now have none yet.  Nothing that
    `prepare` makes is synced: what a crash of the machine takes away is made again here.
    """
    folder = plan.place.staging
    found = _read_json(folder / PLAN)
    if (found is not None and found.get("hash") != plan.hash) or not any(folder.glob("ledger-*.jsonl")):
        return
    for file in plan.files:
        path = plan.place.files / file.name
        if not path.exists() or path.stat().st_size != file.nbytes:
            remove(folder)
            return


def _claim(plan: Plan) -> None:
    """Write down whose staging folder this is; refuse one that another plan has begun."""
    path = plan.place.staging / PLAN
    found = _read_json(path)
    if found is None:
        row = {"hash": plan.hash, "settings": settings(plan.options), "sources": plan.sources, "format": plan.summary["format"]}
        _write_first(path, json.dumps(row).encode())
        found = _read_json(path)
    if found is not None and found.get("hash") != plan.hash:
        raise OutputExistsError(
            f"{printable(str(plan.place.staging))} holds an unfinished merge with {_difference(plan, found)}; "
            "finish that one, or delete the folder (shardyard jobs clean).",
            path=str(plan.place.staging),
        )


def _write_first(path: Path, data: bytes) -> None:
    """Write a file unless another process has written it in this very moment; one that cannot be read is replaced."""
    mine = path.with_name(f"{path.name}.{os.getpid()}.first")
    write_whole(mine, data)
    try:
        os.link(mine, path)
    except FileExistsError:
        if _read_json(path) is None:
            os.rename(mine, path)
    except OSError:
        # A file system without links.
        os.rename(mine, path)
    finally:
        mine.unlink(missing_ok=True)


def _difference(plan: Plan, found: dict[str, Any]) -> str:
    """What the unfinished merge has that this one has not, in words."""
    ours, theirs = settings(plan.options), found.get("settings", {})
    changed = sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))
    if changed:
        shown = ", ".join(f"{k.replace('_', ' ')} {printable(str(theirs.get(k)), 40)} instead of {ours.get(k)}" for k in changed)
        return f"other settings ({shown})"
    sources = found.get("sources", {})
    files = sorted(p for p in {*plan.sources, *sources} if plan.sources.get(p) != sources.get(p))
    if files:
        there = files[0] in plan.sources and files[0] in sources
        return f"other sources ({printable(os.path.basename(files[0]))} {'has changed' if there else 'is not in both'})"
    return "another layout"


def _create(path: Path, nbytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(fd).st_size != nbytes:
            os.ftruncate(fd, nbytes)
    finally:
        os.close(fd)


def heal(place: Place) -> None:
    """After a crash between the renames of an `--overwrite`: the old output goes back, or away if the new one is there."""
    if not place.old.exists():
        return
    if place.out.exists():
        remove(place.old)
    elif not (place.staging / READY).exists():
        os.rename(place.old, place.out)


def already_published(plan: Plan) -> bool:
    """Whether this very plan was published and only its staging folder is left."""
    place = plan.place
    if not (place.staging / READY).exists() or (place.files / plan.files[0].name).exists():
        return False
    if place.single:
        return place.out.is_file() and place.out.stat().st_size == plan.files[0].nbytes
    marker = read_marker(place.out)
    return marker is not None and marker.get("plan") == plan.hash


def note_file(made: Path, plan_hash: str, folder: Path) -> None:
    """Before a single file gets its name: write into the job's folder which file it is, for it bears no mark of its own."""
    write_durably(folder / NAMED, json.dumps(_file_noted(made, plan_hash)).encode())


def is_noted(out: Path, plan_hash: str, folder: Path) -> bool:
    """Whether this very file is the one that the job noted; raises OSError if it is not there."""
    return _read_json(folder / NAMED) == _file_noted(out, plan_hash)


def _file_noted(path: Path, plan_hash: str) -> dict[str, object]:
    status = path.stat()
    return {"plan": plan_hash, "file": [status.st_dev, status.st_ino]}


def published_since(plan: Plan, since: float, folder: Path) -> bool:
    """Whether a job put the output in place after `since`, before it was killed.

    A folder's marker tells. A single file has none, and another job's may have its size and its header: it must be the very file
    that the job noted in its own folder.
    """
    out = plan.place.out
    try:
        if plan.place.single:
            return is_noted(out, plan.hash, folder) and out.stat().st_size == plan.files[0].nbytes
        marker = read_marker(out)
        return out.stat().st_ctime >= since and marker is not None and marker.get("plan") == plan.hash
    except OSError:
        return False


def begun(plan: Plan) -> bool:
    """Whether an unfinished run of this very plan is there."""
    found = _read_json(plan.place.staging / PLAN)
    return found is not None and found.get("hash") == plan.hash


def swap_in(plan: Plan) -> None:
    """Give the finished output its final name; every step can be repeated after a crash.

    Raises:
        OutputExistsError: something that may not be replaced has come there since the work began; the finished files stay.
    """
    place = plan.place
    overwrite = plan.options.overwrite
    if place.single:
        put(place, place.files / plan.files[0].name, overwrite=overwrite)
    else:
        if os.path.lexists(place.out):
            check_existing(place, place.out, overwrite=overwrite)
            if any(place.out.iterdir()):
                os.rename(place.out, place.old)
        put(place, place.files)
    _sync_folder(place.out.parent)
    if place.old.exists():
        remove(place.old)


def put(place: Place, source: Path, *, overwrite: bool = False) -> None:
    """A rename that replaces only what may be replaced: for a file, a link fails where another process was first."""
    if overwrite or not place.single:
        os.rename(source, place.out)
        return
    try:
        os.link(source, place.out)
    except FileExistsError:
        if not os.path.samefile(source, place.out):
            check_existing(place, place.out, overwrite=False)
    except OSError:
        # A file system without links: what is there is looked at just before the rename.
        if os.path.lexists(place.out):
            check_existing(place, place.out, overwrite=False)
        os.rename(source, place.out)
        return
    source.unlink()


def remove(path: Path) -> None:
    """Remove a folder or file of ours. Ledgers go first: without their data they would call zeros done."""
    if path.is_dir() and not path.is_symlink():
        for ledger in path.glob("ledger-*.jsonl"):
            ledger.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def write_whole(path: Path, data: bytes, *, durably: bool = False) -> None:
    """A small file, whole or not at all; `durably` also after a crash of the machine."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, data)
        if durably:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)


def write_durably(path: Path, data: bytes) -> None:
    """`write_whole`, durably."""
    write_whole(path, data, durably=True)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


sync_folder = _sync_folder
