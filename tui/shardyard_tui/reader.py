"""The process that reads checkpoints for the app: questions on stdin, answers on stdout, one at a time.

It may be killed at any moment, hang on a dead mount or run out of memory: the app loses an answer, nothing else.  It reads
headers, central directories and pickles as data; it never writes.
"""

from __future__ import annotations

import gc
import os
import pickle
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from shardyard.errors import ShardyardError
from shardyard.text import printable
from shardyard_tui.facts import (
    ByteMap,
    EngineError,
    Found,
    JobRequest,
    Listed,
    Listing,
    Opened,
    PieceFacts,
    Reading,
    Scanning,
    Stretch,
    TensorDetail,
)
from shardyard_tui.table import Facts, TableBuilder, TensorTable

if TYPE_CHECKING:
    from shardyard.checkpoint import Checkpoint, Tensor

KEPT = 2
"""Opened checkpoints kept for the next question about them."""
MOST_PIECES = 200
MOST_NAMED = 200
MOST_STRETCHES = 20_000
MOST_LISTED = 100_000
TELL_S = 0.1


class Reader:
    """Answers questions; each is a method that gives values, the last one being the answer."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._kept: OrderedDict[tuple[str, str | None], tuple[float, Checkpoint]] = OrderedDict()

    def alone(self) -> bool:
        """Whether the app is gone: nobody waits for the answer."""
        return os.getppid() != self._parent

    def scan(self, folder: str) -> Iterator[Found | Scanning]:
        """The checkpoints below a folder."""
        from shardyard.discover import find, walk
        from shardyard.formats.folder import Folder

        if not os.path.isdir(folder):
            yield _found(find(Path(folder)))
            return
        told = 0.0
        for count, visit in enumerate(walk(Folder(folder), None, self.alone), 1):
            for candidate in visit.look.candidates:
                yield _found(candidate)
            for problem in (*visit.problems, *visit.look.problems):
                where = str(visit.look.folder.path)
                yield Scanning(count, printable(where), printable(problem), where)
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                yield Scanning(count, printable(str(visit.look.folder.path)))
        yield Scanning(count, "")

    def listing(self, folder: str) -> Iterator[Listing]:
        """What lies in a folder, or around a file."""
        entries: list[Listed] = []
        problem = ""
        try:
            with os.scandir(folder) as items:
                for item in items:
                    if len(entries) >= MOST_LISTED:
                        problem = f"More than {MOST_LISTED:,} entries; the rest is not shown."
                        break
                    entries.append(_listed(item))
        except OSError as error:
            problem = f"{printable(os.path.basename(folder))} cannot be listed: {os.strerror(error.errno or 0).lower()}."
        yield Listing(folder, tuple(entries), problem)

    def open(self, path: str, tag: str | None) -> Iterator[Opened | Reading]:
        """Read a checkpoint's headers."""
        from shardyard.operations.inspect.report import checkpoint_json

        yield Reading("headers")
        checkpoint = self._checkpoint(path, tag, fresh=True)
        report = shortened(checkpoint_json(checkpoint))
        stamp, owner = _saved(checkpoint)
        objects = tuple((o.name, o.text) for o in checkpoint.objects)
        yield Opened(path, report, tensor_table(checkpoint), stamp, owner, objects)

    def tensor(self, path: str, name: str) -> Iterator[TensorDetail]:
        """Where one tensor's bytes are."""
        from shardyard.health import facts

        checkpoint = self._checkpoint(path, None)
        tensor = next((t for n, t in facts.all_tensors(checkpoint).items() if printable(n) == name), None)
        if tensor is None:
            raise EngineError(f"{name} is not there any more; R reads again.", "UsageError")
        yield _detail(name, tensor, checkpoint)

    def statistics(self, path: str, name: str) -> Iterator[dict[str, Any] | Reading]:
        """Everything about one tensor's values: the one question that reads data, in a process of its own."""
        from shardyard.files import FileHandles
        from shardyard.health import facts
        from shardyard.operations.statistics import description as statistics

        tensor = next((t for n, t in facts.all_tensors(self._checkpoint(path, None)).items() if printable(n) == name), None)
        if tensor is None or tensor.layout is None:
            raise EngineError(f"The data of {name} is not here.", "IncompleteError")
        yield Reading(name, 0, tensor.nbytes)
        with FileHandles() as handles:
            yield statistics.describe(tensor, handles)

    def byte_map(self, path: str, file: str) -> Iterator[ByteMap]:
        """What each part of one file is for."""
        yield _byte_map(self._checkpoint(path, None), file)

    def stamp(self, path: str) -> Iterator[float]:
        """The newest change of the checkpoint's files."""
        from shardyard.discover import find

        yield _found(find(Path(path))).mtime

    def plan(self, request: JobRequest) -> Iterator[dict[str, Any]]:
        """A plan; the same object that `--dry-run` prints."""
        from shardyard_tui import planning

        yield planning.plan(request)

    def default_out(self, source: str, verb: str, started_in: str) -> Iterator[str]:
        """A free name for an output."""
        from shardyard_tui import planning

        yield planning.default_out(source, verb, started_in)

    def doctor(self) -> Iterator[dict[str, Any]]:
        """What `shardyard doctor --json` says."""
        from shardyard.cli import doctor

        yield doctor.report()

    def _checkpoint(self, path: str, tag: str | None, *, fresh: bool = False) -> Checkpoint:
        from shardyard.discover import find, open_candidate, unreadable
        from shardyard.formats.candidate import OpenOptions

        candidate = find(Path(path))
        stamp = _found(candidate).mtime
        kept = self._kept.get((path, tag))
        if kept is not None and kept[0] == stamp and not fresh:
            return kept[1]
        try:
            # Pickles make very many small objects that are no garbage.
            gc.disable()
            checkpoint = open_candidate(candidate, OpenOptions(tag=tag, cancelled=self.alone))
        except ShardyardError as error:
            checkpoint = unreadable(candidate, error)
        finally:
            gc.enable()
        self._kept[path, tag] = stamp, checkpoint
        self._kept.move_to_end((path, tag))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return checkpoint


def _found(candidate: Any) -> Found:
    folder = candidate.folder
    newest = 0.0
    for name in candidate.files:
        place = folder
        *steps, last = name.split("/")
        for step in steps:
            place = place.sub(step)
        entry = place.entries.get(last)
        newest = max(newest, entry.mtime if entry is not None else 0.0)
    path = str(candidate.path)
    return Found(path, candidate.kind.value, candidate.nbytes, len(candidate.files), os.path.isdir(path), newest)


def shortened(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what no screen can show: a finding about half a million tensors names the first of them."""
    findings = []
    for finding in report["findings"]:
        tensors, paths = finding["tensors"], finding["paths"]
        total = len(tensors) + len(paths)
        findings.append({**finding, "tensors": tensors[:MOST_NAMED], "paths": paths[:MOST_NAMED], "named": total})
    return {**report, "findings": findings, "tied": report["tied"][:MOST_NAMED]}


def _listed(item: os.DirEntry[str]) -> Listed:
    try:
        is_folder, info = item.is_dir(), item.stat()
        return Listed(item.name, item.path, is_folder, 0 if is_folder else info.st_size, info.st_mtime)
    except OSError:
        return Listed(item.name, item.path, False, 0, 0.0)


def _saved(checkpoint: Checkpoint) -> tuple[float, str]:
    """When its newest file was written, and by whom, where that is somebody else."""
    base = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    newest, owner = 0.0, -1
    for file in checkpoint.files:
        try:
            info = os.stat(base / file.path)
        except OSError:
            continue
        if info.st_mtime > newest:
            newest, owner = info.st_mtime, info.st_uid
    name = ""
    if owner >= 0 and owner != os.getuid():
        # One's own name is no news.
        import pwd

        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
    return newest, printable(name)


def tensor_table(checkpoint: Checkpoint) -> TensorTable:
    """The checkpoint's tensors as a small table."""
    from shardyard.health import facts

    owners = {alias: group[0] for group in facts.tied_groups(checkpoint) for alias in group[1:]}
    base = str(checkpoint.path) + "/"
    relative: dict[tuple[str, ...], tuple[str, ...]] = {}
    builder = TableBuilder()
    for name, tensor in facts.all_tensors(checkpoint).items():
        files = tensor.files
        if files not in relative:
            relative[files] = tuple(printable(f.removeprefix(base)) for f in files)
        flags = []
        if tensor.layout is None:
            flags.append("missing")
        if tensor.trainable is False:
            flags.append("frozen")
        if tensor.storage is not None and tensor.storage.storage_nbytes > tensor.nbytes:
            flags.append("part of a storage")
        role = "" if tensor.role.value == "weight" else tensor.role.value
        common = Facts(printable(tensor.dtype.name), tensor.shape, tensor.nbytes, role, relative[files], tuple(flags))
        builder.add(printable(name), common, printable(owners[name]) if name in owners else "")
    return builder.build()


def _detail(name: str, tensor: Tensor, checkpoint: Checkpoint) -> TensorDetail:
    base = str(checkpoint.path) + "/"
    pieces: list[PieceFacts] = []
    more = 0
    for number, piece in enumerate(tensor.pieces(0, tensor.nbytes)):
        if number >= MOST_PIECES:
            more += 1
            if more > 100_000:
                break
            continue
        low, _ = piece.source_span
        file = printable(piece.record.path.removeprefix(base))
        pieces.append(PieceFacts(file, printable(piece.record.name), low, piece.nbytes, piece.target_offset))
    storage = ""
    if tensor.storage is not None and tensor.storage.storage_nbytes != tensor.nbytes:
        storage = f"It uses {tensor.nbytes:,} of the {tensor.storage.storage_nbytes:,} bytes of its storage."
    return TensorDetail(name, tuple(pieces), more, storage, printable(tensor.note))


def _byte_map(checkpoint: Checkpoint, file: str) -> ByteMap:
    base = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    wanted = str(base / file)
    size = os.stat(wanted).st_size
    runs: list[Stretch] = []
    for part in checkpoint.parts.values():
        for name, tensor in part.tensors.items():
            runs += _runs(printable(name), tensor, wanted)
            if len(runs) > 4 * MOST_STRETCHES:
                break
    runs.sort(key=lambda run: (run.start, -run.nbytes))
    stretches: list[Stretch] = []
    end = 0
    for run in runs:
        if run.start > end:
            stretches.append(Stretch(end, run.start - end, "header" if end == 0 else "unused", ""))
        if run.start + run.nbytes > end:
            fresh = max(run.start, end)
            stretches.append(Stretch(fresh, run.start + run.nbytes - fresh, run.what, run.name))
            end = run.start + run.nbytes
    if end < size:
        stretches.append(Stretch(end, size - end, "directory" if stretches else "other", ""))
    more = max(0, len(stretches) - MOST_STRETCHES)
    return ByteMap(file, size, tuple(stretches[:MOST_STRETCHES]), more)


def _runs(name: str, tensor: Tensor, wanted: str) -> Iterator[Stretch]:
    """The bytes of the file that belong to the tensor, as spans."""
    for piece in tensor.pieces(0, tensor.nbytes):
        if piece.record.path == wanted:
            low, high = piece.source_span
            yield Stretch(piece.record.start + low, high - low, tensor.role.value, name)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until nobody asks any more."""
    reader = Reader()

    def tell(kind: str, value: object) -> None:
        data = pickle.dumps((kind, value), protocol=5)
        answers.write(struct.pack("<Q", len(data)) + data)
        answers.flush()

    while head := questions.read(8):
        (length,) = struct.unpack("<Q", head)
        verb, arguments = pickle.loads(questions.read(length))
        try:
            for value in getattr(reader, verb)(**arguments):
                tell("value", value)
            tell("end", None)
        except EngineError as error:
            tell("error", error)
        except ShardyardError as error:
            tell("error", EngineError(error.message, type(error).__name__, getattr(error, "candidates", ())))
        except MemoryError:
            tell("error", EngineError("There is not enough memory to read this here; try a compute node.", "NoRoomError"))
        except RecursionError:
            tell("error", EngineError("It is nested too deep to be read.", "DamagedError"))
        except OSError as error:
            what = printable(error.filename) if isinstance(error.filename, str) else "A file"
            tell("error", EngineError(f"{what} cannot be read: {(error.strerror or str(error)).lower()}.", "DamagedError"))
        except Exception as error:  # the process's outermost edge: a fault of ours must not end the screen
            where = _where(error)
            said = printable(f"{type(error).__name__}: {error}", 200)
            tell("error", EngineError(f"This is a fault in shardyard, please report it: {said} ({where}).", "Fault"))


def _where(error: BaseException) -> str:
    """The innermost place that an error came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace is not None else "?"


def main() -> None:
    """Run as `python -m shardyard_tui.reader`."""
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not end up among the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        serve(sys.stdin.buffer, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()
