"""The last step, once all units are done: tails, checks, sync, and the rename that makes the output appear at once, whole."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardyard.errors import JobError, NoRoomError
from shardyard.files import FileHandles
from shardyard.limits import disk
from shardyard.operations.context import Context
from shardyard.operations.merge import ledger as ledgers
from shardyard.operations.merge import staging
from shardyard.operations.merge.contents import overflow_error
from shardyard.operations.merge.ledger import Done
from shardyard.operations.merge.outputs import OutputFile
from shardyard.operations.merge.plan import Plan
from shardyard.operations.merge.validate import read_back, validate
from shardyard.text import printable


def publish(plan: Plan, context: Context) -> dict[str, Any]:
    """Finish an output whose units are all done; returns the result. Every step can be repeated after a crash.

    Raises:
        JobError: units are missing, another process publishes, or the output does not pass its checks.
        CheckpointError: a source record fails its CRC, or a cast overflowed.
    """
    if staging.already_published(plan):
        return published(plan)
    if not staging.begun(plan):
        raise _not_done(plan, plan.units)
    with _lock(plan.place.staging, None if context.folder is None else str(context.folder)):
        done = ledgers.read(plan.place.staging, plan.hash)
        missing = plan.units - len(done.units)
        if missing:
            raise _not_done(plan, missing)
        checked = _check_sources(plan, done)
        _refuse_overflows(plan, done)
        context.message("Checking what was written.")
        try:
            checked.update(_finish_files(plan, done))
            staging.write_durably(plan.place.staging / staging.READY, plan.hash.encode())
            if plan.place.single and context.folder is not None:
                staging.note_file(plan.place.files / plan.files[0].name, plan.hash, context.folder)
            staging.swap_in(plan)
        except OSError as error:
            raise _as_ours(error, plan) from error
    staging.remove(plan.place.staging)
    return _result(plan, checked)


def _not_done(plan: Plan, missing: int) -> JobError:
    return JobError(f"{missing} of {plan.units} work units are not done yet; resume the merge.", path=str(plan.place.staging))


def published(plan: Plan) -> dict[str, Any]:
    """The result of a plan whose output is in place already; what is left of its staging, and of what it replaced, goes."""
    staging.heal(plan.place)
    staging.remove(plan.place.staging)
    return _result(plan, {})


def _check_sources(plan: Plan, done: Done) -> dict[str, Any]:
    if plan.options.verify == "none":
        return {}
    with FileHandles() as handles:
        checked, unchecked = done.sources.finish(handles, everything=plan.options.verify == "full")
    copies = sum(unit.checked for unit in done.units.values())
    return {"records_checked": checked, "records_not_read_whole": unchecked, "copies_compared": copies}


def _refuse_overflows(plan: Plan, done: Done) -> None:
    counts = done.overflows()
    if counts and not plan.options.allow_overflow:
        raise overflow_error(counts, str(plan.options.dtype))


def _finish_files(plan: Plan, done: Done) -> dict[str, Any]:
    """Write the tails, sync, validate and read back."""
    for file in plan.files:
        path = plan.place.files / file.name
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if file.tail is not None:
                for offset, data in file.tail.parts(_record_crcs(plan, file, done)):
                    os.pwrite(fd, data, offset)
            os.fsync(fd)
        finally:
            os.close(fd)
    with FileHandles() as handles:
        for file in plan.files:
            validate(plan, file, plan.place.files / file.name, handles)
    checked = {"bytes_read_back": read_back(plan, done)} if plan.options.verify != "none" else {}
    for folder in {plan.place.files, *((plan.place.files / f.name).parent for f in plan.files)}:
        staging.sync_folder(folder)
    return checked


def _record_crcs(plan: Plan, file: OutputFile, done: Done) -> dict[int, int]:
    """CRCs of a torch file's data records, put together from the parts that each unit wrote."""
    from shardyard.operations.crc import Coverage

    coverage: dict[int, Coverage] = {}
    for number in plan.units_of(file):
        for record, offset, nbytes, crc in done.units[number].output_parts:
            coverage.setdefault(record, Coverage()).add(offset, nbytes, crc)
    found: dict[int, int] = {}
    assert file.tail is not None
    for number, place in enumerate(file.tail.placed):
        if number not in file.tail.known:
            whole = coverage[number].whole(place.nbytes) if number in coverage else None
            if whole is None:
                raise JobError(f"The CRC of record {place.name} is not known; run the merge again.", path=file.name)
            found[number] = whole
    return found


@contextmanager
def _lock(folder: Path, job: str | None) -> Iterator[None]:
    """One publisher at a time. The lock is a folder that appears with its owner's name in it, whole or not at all."""
    lock, mine = folder / "publishing", folder / f"publishing.{socket.gethostname()}.{os.getpid()}"
    staging.remove(mine)
    mine.mkdir()
    try:
        (mine / OWNER).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "job": job}))
        if _abandoned(lock, job):
            staging.remove(lock)
        # A folder cannot take the name of one that is not empty.
        os.rename(mine, lock)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise JobError(
            f"Another process is publishing this output; if none is, delete {printable(str(lock))}.", path=str(lock)
        ) from None
    finally:
        staging.remove(mine)
    try:
        yield
    finally:
        staging.remove(lock)


OWNER = "owner.json"


def _abandoned(lock: Path, job: str | None) -> bool:
    """Whether the lock is that of an earlier try of the same job, or of a process of this machine that is gone."""
    try:
        owner = json.loads((lock / OWNER).read_bytes())
        if job is not None and owner.get("job") == job:
            return True
        if owner["host"] != socket.gethostname():
            return False
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return int(owner["pid"]) == os.getpid()


def _as_ours(error: OSError, plan: Plan) -> Exception:
    full = disk.no_room(error, plan.place.out)
    if full is not None:
        return full
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoRoomError(f"{printable(str(plan.out.parent))} cannot be written to.", path=str(plan.out))
    return JobError(f"{printable(str(plan.out))} cannot be put in place: {os.strerror(error.errno or 0)}.", path=str(plan.out))


def _result(plan: Plan, checked: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "kind", "tag", "part", "out", "format", "files", "tensors", "parameters", "dtypes", "casts", "bytes_written", "tied",
        "renamed", "complete", "missing", "frozen_left_out", "from_elsewhere", "findings", "verify",
    )  # fmt: skip
    exported = ("verb", "side_files", "config_dtype", "notes", "load")
    result = {key: plan.summary[key] for key in (*keys, *(k for k in exported if k in plan.summary))}
    with suppress(OSError):
        result["bytes"] = sum((plan.out if plan.place.single else plan.out / f.name).stat().st_size for f in plan.files)
    return {**result, "checked": checked}
