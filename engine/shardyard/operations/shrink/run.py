"""Running a shrink: file by file, each one whole before the next; what was finished is not done again."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from shardyard import __version__
from shardyard.errors import CheckpointError, JobError, NoRoomError, OutputExistsError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.limits import disk, manners
from shardyard.operations.context import Context
from shardyard.operations.merge import staging
from shardyard.operations.place import MARKER, Place, read_marker
from shardyard.operations.shrink.files import linked_folders
from shardyard.operations.shrink.meter import Meter
from shardyard.operations.shrink.plan import FilePlan, ShrinkPlan, report_lines, row_of
from shardyard.operations.shrink.planning import reason_it_stays, shrinking
from shardyard.operations.shrink.replace import Fingerprint, replace, sync_folder, write_beside
from shardyard.operations.shrink.ties import differing_message, tied_copies
from shardyard.operations.write_back import CALL
from shardyard.text import printable

_FICLONE = 0x40049409
_PLAN, _DONE, _LOCK = "shrink.json", "done.jsonl", "lock"


def shrink(plan: ShrinkPlan, context: Context) -> dict[str, Any]:
    """Do it; returns the report.

    Raises:
        ShardyardError: what stopped it. Files that were done are done; the same command goes on from there.
    """
    context.plan(plan.to_json())
    return _Run(plan, context).run()


def made_since(plan: ShrinkPlan, since: float, folder: Path) -> bool:
    """Whether the job of `folder` put the output in place after `since`, before it was killed; see `staging.published_since`."""
    place = plan.place
    try:
        if place is None or place.out.stat().st_ctime < since:
            return False
        if place.single:
            return staging.is_noted(place.out, plan.hash, folder)
    except OSError:
        return False
    marker = read_marker(place.out)
    return marker is not None and marker.get("plan") == plan.hash


def made(plan: ShrinkPlan) -> dict[str, Any]:
    """The report of an output that is in place already; what is left of its staging goes."""
    done = _Run(plan, Context())
    done.rows = [row_of(f) for f in plan.looked_at]
    if plan.place is not None:
        staging.remove(plan.place.staging)
    return done.result()


class _Run:
    def __init__(self, plan: ShrinkPlan, context: Context) -> None:
        self.plan = plan
        self.context = context
        copied = sum(f.before for f in plan.files if not f.shrunk) if plan.place is not None else 0
        self.meter = Meter(
            context, copied + (2 if plan.in_place else 1) * sum(f.payload for f in plan.files), plan.workers or manners.workers()
        )
        self.rows: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        if self.plan.dedupe_tied:
            self._compare_copies()
        if self.plan.place is not None:
            self._into(self.plan.place)
        elif self.plan.in_place:
            self._in_place()
        else:
            self.rows = [row_of(f) for f in self.plan.looked_at]
        return self.result()

    def result(self) -> dict[str, Any]:
        before = sum(row["before"] for row in self.rows)
        saved = sum(row["saved"] for row in self.rows)
        place = self.plan.place
        return {
            "verb": "shrink",
            "out": None if place is None else printable(str(place.out)),
            "in_place": self.plan.in_place,
            "files": self.rows,
            "before": before,
            "after": before - saved,
            "saved": saved,
            "bytes_written": self.meter.written,
            "lines": report_lines(self.rows),
        }

    def _compare_copies(self) -> None:
        """The plan believed config.json; now the bytes decide which copies may go."""
        self.plan.compared = True
        with FileHandles() as handles:
            for folder in list(self.plan.ties):
                inside = [f.found.path for f in self.plan.files if f.found.wanted and os.path.dirname(f.found.path) == folder]
                ties = self.plan.ties[folder] = tied_copies(handles, folder, inside, self.meter)
                for alias, owner in ties.differing:
                    said = differing_message(alias, owner)
                    self.context.finding(Finding("tie-disagrees", Severity.WARNING, said, tensors=(owner, alias)))

    # In place

    def _in_place(self) -> None:
        for ties in self.plan.ties.values():
            # An index that lacks a stored copy harms nobody; one that names a copy that is gone does: the index goes first.
            for path, data in ties.indexes.items():
                mode = os.stat(path).st_mode
                staging.write_durably(Path(path), data)
                os.chmod(path, mode & 0o7777)
                sync_folder(os.path.dirname(path))
        for file in self.plan.looked_at:
            self.rows.append(self._replace(file) if file.shrunk else row_of(file))

    def _replace(self, file: FilePlan) -> dict[str, Any]:
        path = file.found.path
        self.meter.item = printable(file.found.name)
        with FileHandles() as handles:
            try:
                new = shrinking(handles, path, self.plan)
                why = reason_it_stays(new, file.before) if new is not None else "it is no checkpoint"
                if new is None or why:
                    return _left(file, why)
                why = replace(
                    path, file.fingerprint, lambda fd: new.write(fd, self.meter), lambda made: new.prove(made, self.meter)
                )
            except CheckpointError as error:
                return self._skip(file, error)
        if why:
            return _left(file, why)
        after = os.stat(path).st_size
        self.context.message(f"{printable(file.found.name)} is replaced.")
        return {**row_of(file), "after": after, "saved": file.before - after}

    def _skip(self, file: FilePlan, error: CheckpointError) -> dict[str, Any]:
        """A fault that only reading the data showed: the file is left, the others go on."""
        if len(self.plan.files) == 1:
            raise error
        self.context.finding(Finding(error.code, Severity.ERROR, error.problem, error.remedy, (file.found.name,)))
        return _left(file, error.message)

    # Into an output

    def _into(self, place: Place) -> None:
        try:
            with _claimed(place, self.plan.hash):
                self._fill(place)
                self._publish(place)
        except OSError as error:
            full = disk.no_room(error, place.staging)
            if full is not None:
                raise full from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise NoRoomError(f"{printable(str(place.out.parent))} cannot be written to.", path=str(place.out)) from error
            raise JobError(f"{printable(str(place.out))} cannot be made: {os.strerror(error.errno or 0)}.") from error
        staging.remove(place.staging)

    def _fill(self, place: Place) -> None:
        done = _read_done(place)
        indexes = {path: data for ties in self.plan.ties.values() for path, data in ties.indexes.items()}
        for file in self.plan.files:
            target = place.files / (place.out.name if place.single else file.found.name)
            self.meter.item = printable(file.found.name)
            row = done.get(file.found.name)
            if row is None or not target.is_file() or target.stat().st_size != row["after"]:
                target.parent.mkdir(parents=True, exist_ok=True)
                row = self._make(file, target, indexes.get(file.found.path))
                _note_done(place, file.found.name, row)
            else:
                self.meter.step(done=file.payload if file.shrunk else file.before)
            if file.shrunk or file.why:
                self.rows.append(row)
        for path, name in linked_folders(self.plan.sources):
            target = place.files / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(target):
                os.symlink(os.readlink(path), target)

    def _make(self, file: FilePlan, target: Path, data: bytes | None) -> dict[str, Any]:
        path = file.found.path
        if Fingerprint.of(path) != file.fingerprint:
            raise JobError(f"{printable(file.found.name)} changed meanwhile; shrink again when nothing writes to it.", path=path)
        if data is not None:
            staging.write_durably(target, data)
            return row_of(file)
        row = row_of(file)
        if file.shrunk:
            try:
                with FileHandles() as handles:
                    new = shrinking(handles, path, self.plan)
                    why = reason_it_stays(new, file.before) if new is not None else "it is no checkpoint"
                    if new is not None and not why:
                        # The old file stays, so what it was put together from need not be read once more.
                        prove = partial(new.prove, meter=self.meter, ends_only=True)
                        write_beside(str(target), lambda fd: new.write(fd, self.meter), prove)
                        _copy_mode(path, target)
                        return {**row, "after": new.nbytes, "saved": file.before - new.nbytes}
                row = _left(file, why)
            except CheckpointError as error:
                row = self._skip(file, error)
        self._copy(path, target)
        return row

    def _copy(self, path: str, target: Path) -> None:
        """A file as it is: shared blocks where the file system can, else its bytes."""
        with open(path, "rb") as old, open(target, "wb") as new:
            nbytes = os.fstat(old.fileno()).st_size
            try:
                fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
                self.meter.step(done=nbytes)
            except OSError:
                while block := old.read(CALL):
                    new.write(block)
                    self.meter.step(read=len(block), written=len(block), done=len(block))
            new.flush()
            os.fsync(new.fileno())
        _copy_mode(path, target)

    def _publish(self, place: Place) -> None:
        if not place.single:
            names = sorted(f.found.name for f in self.plan.files)
            files = {name: (place.files / name).stat().st_size for name in names}
            for path in list(place.files.rglob("*")):
                if not path.is_dir() and not path.is_symlink() and str(path.relative_to(place.files)) not in files:
                    path.unlink()  # what a run left that was killed while it wrote a small file
            marker = {
                "schema": 1,
                "shardyard": __version__,
                "plan": self.plan.hash,
                "settings": {"verb": "shrink", "dedupe_tied": self.plan.dedupe_tied},
                "sources": self.plan.sources,
                "complete": True,
                "files": files,
            }
            staging.write_durably(place.files / MARKER, (json.dumps(marker, indent=2) + "\n").encode("utf-8", "surrogateescape"))
        for folder, _, _ in os.walk(place.files):
            sync_folder(folder)
        made = place.files / place.out.name if place.single else place.files
        if not place.single and place.out.is_dir():
            place.out.rmdir()  # it is empty, or the plan would have been refused
        elif place.single and os.path.lexists(place.out):
            raise OutputExistsError(f"{printable(str(place.out))} is there already; choose another name.", path=str(place.out))
        if place.single and self.context.folder is not None:
            staging.note_file(made, self.plan.hash, self.context.folder)
        staging.put(place, made)
        sync_folder(str(place.out.parent))


def _left(file: FilePlan, why: str) -> dict[str, Any]:
    return {**row_of(file), "after": file.before, "saved": 0, "action": "leave", "why": why}


def _copy_mode(path: str, target: Path) -> None:
    info = os.stat(path)
    with suppress(OSError):
        os.chmod(target, info.st_mode & 0o7777)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


@contextmanager
def _claimed(place: Place, plan_hash: str) -> Iterator[None]:
    """The staging folder of this plan, held by this process alone."""
    place.staging.mkdir(parents=True, exist_ok=True)
    fd = os.open(place.staging / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JobError(f"Another process is writing {printable(str(place.staging))}.", path=str(place.staging)) from None
        known = place.staging / _PLAN
        if known.exists() and known.read_text() != plan_hash:
            _forget(place)
        elif not known.exists() and any(not p.name.startswith((_LOCK, _PLAN)) for p in place.staging.iterdir()):
            where = printable(str(place.staging))
            said = f"{where} holds something unfinished that is no shrink; delete it, or choose another output."
            raise OutputExistsError(said, path=str(place.staging))
        staging.write_durably(known, plan_hash.encode())
        place.files.mkdir(exist_ok=True)
        yield
    finally:
        os.close(fd)


def _forget(place: Place) -> None:
    """An unfinished shrink with other sources or settings: nothing of it can be used."""
    staging.remove(place.files)
    (place.staging / _DONE).unlink(missing_ok=True)


def _read_done(place: Place) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        for line in (place.staging / _DONE).read_text(errors="surrogateescape").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found[row["key"]] = row["row"]
    return found


def _note_done(place: Place, key: str, row: dict[str, Any]) -> None:
    line = json.dumps({"key": key, "row": row}) + "\n"
    fd = os.open(place.staging / _DONE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
