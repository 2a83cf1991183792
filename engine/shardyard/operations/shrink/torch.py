"""Shrinking one torch file: written anew by the inert pickler, and proved to mean the same by reading both files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import DamagedError, JobError, UnsupportedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks
from shardyard.formats.declared_ties import declared_ties
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import find_config
from shardyard.formats.pickles import Call, no_collection
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch import graphs, zip_layout
from shardyard.formats.torch.container import TorchFile
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.rewrite import WORTHWHILE, NewStorage, Rewrite, plan_rewrite
from shardyard.formats.torch.tensors import StorageRef, TensorValue
from shardyard.formats.torch.views import FROM_TYPE, arguments_of, named_calls, value_of
from shardyard.formats.zip_directory import DEFLATED, DeflatedRecord, deflated_record_of, record_of
from shardyard.layouts import OneRun, Strided
from shardyard.operations import gather
from shardyard.operations.shrink.copying import Check, Output, Range, differs, first_difference, range_checks
from shardyard.operations.shrink.meter import Meter
from shardyard.pieces import Record
from shardyard.text import printable

_NOT_KEPT = (".format_version", ".data/serialization_id")
"""The first would be wrong in a zip that is laid out otherwise; the second names the bytes of the old file."""


class Ties(Enum):
    """What to do with equal copies of weights that config.json ties, in one file."""

    LEFT = "left"
    BELIEVED = "believed"
    """A plan reads no data: what config.json says is taken for true."""
    COMPARED = "compared"


class TorchShrink:
    """The new form of one torch file; `plan` has the numbers, `write` and `prove` do the work."""

    def __init__(self, handles: FileHandles, path: str, ties: Ties = Ties.LEFT) -> None:
        self.handles = handles
        self.path = path
        with no_collection():
            file = _open(handles, path)
            self.joined = _joined(handles, file, ties) if ties is not Ties.LEFT else []
            self.rewrite: Rewrite = plan_rewrite(file, self.joined)
        self.file = file
        self.records = self._records()
        names = [(name, size) for name, size, _ in self.records]
        if not all(map(_is_utf8, (name for name, _ in names))):
            said = f"{file.name} has a record whose name is not UTF-8, which is not written again."
            raise UnsupportedError(said, code="unsupported", path=path)
        self.placed = zip_layout.place(names, file.zip.alignment) if file.zip is not None else []

    @property
    def nbytes(self) -> int:
        """Size of the new file."""
        if self.file.container == "zip":
            return self.placed[-1].end + zip_layout.directory_nbytes(self.placed)
        return sum(size for _, size, _ in self.records)

    @property
    def payload(self) -> int:
        """Bytes of storages in the new file: what must be read, written and compared."""
        return self.rewrite.new_payload

    @property
    def tensors(self) -> int:
        """How many tensors look at storages."""
        return self.rewrite.tensors

    @property
    def unused(self) -> int:
        """Bytes of storages that no tensor uses."""
        return self.rewrite.saved

    @property
    def worthwhile(self) -> bool:
        """Whether storages get smaller by more than padding eats up."""
        return self.unused >= WORTHWHILE

    def _records(self) -> list[tuple[str, int, bytes | NewStorage | Record]]:
        """(name, bytes, content) in the order of the new file; a legacy file's parts have no names."""
        plan, file = self.rewrite, self.file
        found: list[tuple[str, int, bytes | NewStorage | Record]] = []
        if file.zip is None:
            keys = pickle_writer.dump([s.key for s in plan.storages], file.protocol)
            found.append(("", len(file.prologue) + len(plan.pickle) + len(keys), file.prologue + plan.pickle + keys))
            for storage in plan.storages:
                found += [("", 8, struct.pack("<q", storage.count)), ("", storage.nbytes, storage)]
            return found
        root, window = file.zip.root, file.zip.window
        others: list[tuple[str, int, bytes | NewStorage | Record]] = []
        for member in file.zip.others:
            if member.name.removeprefix(root) not in _NOT_KEPT:
                deflated = member.method == DEFLATED
                record = deflated_record_of(member, window) if deflated else record_of(member, window, file.zip.alignment)
                others.append((member.name, member.nbytes, record))
        late = [o for o in others if o[0].removeprefix(root) == "version"]
        found.append((root + "data.pkl", len(plan.pickle), plan.pickle))
        found += [o for o in others if o not in late]
        found += [(f"{root}data/{storage.key}", storage.nbytes, storage) for storage in plan.storages]
        return found + late

    def write(self, fd: int, meter: Meter) -> None:
        """Write the new file.

        Raises:
            DamagedError: a record that is taken over whole fails its checksum.
        """
        out = Output(fd, self.nbytes, meter)
        crcs = self._contents(out)
        for place, crc in zip(self.placed, crcs, strict=True) if self.placed else ():
            out.put(place.header_offset, place.header)
            out.put(place.data_offset + place.nbytes, zip_layout.descriptor(place, crc))
        if self.placed:
            out.put(self.placed[-1].end, zip_layout.directory(self.placed, crcs))
        out.check_whole(self.path)

    def _contents(self, out: Output) -> list[int]:
        """Write what the records hold; returns their CRC-32s."""
        crcs: dict[int, int] = {}
        straight: dict[int, tuple[Tensor, int]] = {}
        end = 0
        for number, (_, nbytes, content) in enumerate(self.records):
            at = self.placed[number].data_offset if self.placed else end
            end = at + nbytes
            if isinstance(content, bytes):
                crcs[number] = out.put(at, content)
            elif isinstance(content, DeflatedRecord):
                crcs[number] = out.stream(at, content.decode(self.handles))
            else:
                straight[number] = (content.source if isinstance(content, NewStorage) else _whole(content), at)
        crcs.update(zip(straight, out.copy(list(straight.values()), self.handles), strict=True))
        for number in straight:
            self._check_crc(self.records[number][2], crcs[number])
        return [crcs[number] for number in range(len(self.records))]

    def _check_crc(self, content: bytes | NewStorage | Record, crc: int) -> None:
        """A record that is taken over whole must be what its file says of it."""
        record = content.record if isinstance(content, NewStorage) else content
        if isinstance(record, Record) and record.crc32 is not None and crc != record.crc32:
            name = f"{printable(os.path.basename(self.path))}: record {printable(record.name, 80)}"
            raise DamagedError(f"{name} fails its checksum; the file is damaged and was left alone.", path=self.path)

    def prove(self, path: str, meter: Meter, *, ends_only: bool = False) -> None:
        """Read the new file and the old one and show that they mean the same; of runs of bytes only the ends if that is enough.

        Raises:
            JobError: they do not.
        """
        with FileHandles() as handles, no_collection():
            prove_same(handles, self.path, path, meter, self.joined, ends_only=ends_only)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joined(handles: FileHandles, file: TorchFile, ties: Ties) -> list[tuple[str, str]]:
    """(alias, owner) of a flat state dict that are stored apart and equal."""
    config, _ = find_config(Folder(os.path.dirname(file.path)), above=False)
    values = {name: value for name, call in named_calls(file.root).items() if (value := value_of(call)) is not None}
    found = []
    for owner, *aliases in declared_ties(config, {name: value.shape for name, value in values.items()}):
        for alias in aliases:
            a, b = values[owner], values[alias]
            if a.dtype is not b.dtype or a.storage is None or b.storage is None or a.storage.key == b.storage.key:
                continue
            if ties is Ties.BELIEVED or _equal_values(handles, file.tensor(owner, a), file.tensor(alias, b)):
                found.append((alias, owner))
    return found


def _equal_values(handles: FileHandles, a: Tensor, b: Tensor) -> bool:
    size = max(gather.block_size(t, 0, t.nbytes) for t in (a, b))
    blocks = zip(gather.blocks(a, handles, size), gather.blocks(b, handles, size), strict=True)
    return all(x == y for (_, x), (_, y) in blocks)


def _whole(record: Record) -> Tensor:
    return Tensor(record.name, BY_NAME["uint8"], (record.nbytes,), OneRun(record, 0, record.nbytes))


def _open(handles: FileHandles, path: str) -> TorchFile:
    file = open_torch(handles, path, raw=True)
    what = ""
    if file.archive == "torchscript":
        what = "is a TorchScript archive"
    elif file.archive == "package":
        what = "is a torch.package archive"
    elif file.container == "tar":
        what = "is a tar file of torch 0.1"
    elif any(isinstance(r, DeflatedRecord) for r in file.storages.values()):
        what = "has compressed storages"
    if what:
        raise UnsupportedError(f"{file.name} {what}, which is not written again.", code="unsupported", path=path)
    for finding in file.findings:
        if finding.blocks is not Blocks.NOTHING:
            raise DamagedError(finding.message, code=finding.code, path=path)
    return file


# The proof


@dataclass(frozen=True, slots=True)
class _Look:
    """A tensor, or all of a storage, in the old or the new file."""

    key: str
    offset: int
    """In bytes."""
    value: TensorValue | None
    """None: all of the storage."""

    @property
    def strides(self) -> tuple[int, ...]:
        return self.value.strides if self.value is not None else ()

    @property
    def identity(self) -> tuple[object, ...]:
        if self.value is None:
            return (self.key, "whole")
        return (self.key, self.offset, self.value.dtype.name, self.value.shape, self.strides, self.value.ops)


def prove_same(
    handles: FileHandles,
    old_path: str,
    new_path: str,
    meter: Meter,
    joined: Sequence[tuple[str, str]] = (),
    *,
    ends_only: bool = False,
) -> None:
    """Show that two torch files hold equal graphs, equal values and equal ties; `joined` names may have become one tensor.

    Raises:
        JobError: they do not.
    """
    name = printable(os.path.basename(old_path))
    old, new = open_torch(handles, old_path, raw=True), open_torch(handles, new_path, raw=True)
    looks: list[tuple[_Look, _Look]] = []

    def match(x: object, y: object) -> graphs.Pairs | None:
        if isinstance(x, StorageRef) and isinstance(y, StorageRef):
            return _match_storages(x, y, looks)
        if isinstance(x, Call) and isinstance(y, Call) and arguments_of(x) is not None:
            return _match_tensors(x, y, looks)
        return None

    try:
        graphs.compare(old.root, new.root, match)
    except graphs.Different as error:
        raise JobError(f"{name}: the new file differs ({error}); the old one was left alone.", path=old_path) from None
    one = _one(old, joined)
    ties = {one.get(a.identity, a.identity): b.identity for a, b in looks}
    if len(ties) != len(set(ties.values())) or any(ties[one.get(a.identity, a.identity)] != b.identity for a, b in looks):
        raise JobError(f"{name}: the new file ties other tensors; the old one was left alone.", path=old_path)
    key = first_difference(_checks(handles, old, new, looks, meter, ends_only=ends_only), meter.workers)
    if key is not None:
        raise JobError(f"{name}: storage {key} of the new file has other values; the old one was left alone.", path=old_path)


def _one(old: TorchFile, joined: Sequence[tuple[str, str]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The views of joined names, each with the view that it became one with."""
    calls = named_calls(old.root) if joined else {}

    def identity(name: str) -> tuple[object, ...]:
        arguments, value = arguments_of(calls[name]), value_of(calls[name])
        if arguments is None or value is None or not isinstance(arguments[0], StorageRef):
            return ()
        return _look(arguments[0], value).identity

    return {identity(alias): identity(owner) for alias, owner in joined}


def _match_storages(x: StorageRef, y: StorageRef, looks: list[tuple[_Look, _Look]]) -> graphs.Pairs:
    """A storage by itself: class, place and size as they were; its bytes are compared later."""
    looks.append((_Look(x.key, 0, None), _Look(y.key, 0, None)))
    return [*zip(x.pid[:2], y.pid[:2], strict=True), *zip(x.pid[3:], y.pid[3:], strict=True)]


def _match_tensors(x: Call, y: Call, looks: list[tuple[_Look, _Look]]) -> graphs.Pairs | None:
    """A tensor may have another storage key, offset and strides; everything else stays."""
    a, b = arguments_of(x), arguments_of(y)
    value, other = value_of(x), value_of(y)
    if a is None or b is None or value is None or other is None or value.dtype.bits < 8:
        return None
    if value.shape != other.shape or len(a) != len(b) or not isinstance(x.args, tuple) or not isinstance(y.args, tuple):
        raise graphs.Different("a tensor has another shape")
    s, t = a[0], b[0]
    if not isinstance(s, StorageRef) or not isinstance(t, StorageRef):
        return None
    if 0 not in value.shape:
        looks.append((_look(s, value), _look(t, other)))
    inner: list[tuple[object, object]] = [(x.made_by, y.made_by), (x.func, y.func), (a[2], b[2]), *zip(a[4:], b[4:], strict=True)]
    if isinstance(x.func, type(y.func)) and x.path in FROM_TYPE:
        inner += [*zip(x.args[:2], y.args[:2], strict=True), *zip(x.args[3:], y.args[3:], strict=True)]
    inner += [(s.pid[1], t.pid[1]), (s.pid[3], t.pid[3])]
    if [k for k, _ in x.later] != [k for k, _ in y.later]:
        raise graphs.Different("a tensor is changed differently")
    return [*inner, *((p, q) for (_, p), (_, q) in zip(x.later, y.later, strict=True))]


def _look(storage: StorageRef, value: TensorValue) -> _Look:
    base = storage.view[0] * (storage.dtype or value.dtype).itemsize if storage.view else 0
    return _Look(storage.key, base + value.offset * value.dtype.itemsize, value)


def _checks(
    handles: FileHandles, old: TorchFile, new: TorchFile, looks: list[tuple[_Look, _Look]], meter: Meter, *, ends_only: bool
) -> Iterator[Check]:
    """For each new storage, by its key: that it is a run of an old one, however many views look at it.

    Those that are none are compared here, value by value as their views see them: one at a time, for their blocks may be large.
    """
    by_key: dict[str, dict[tuple[object, ...], tuple[_Look, _Look]]] = {}
    for a, b in looks:
        by_key.setdefault(b.key, {}).setdefault(b.identity, (a, b))
    for key, found in by_key.items():
        record = new.storages[key]
        made = Range(record.path, record.locate(handles), record.nbytes)
        delta = {(a.key, a.offset - b.offset) for a, b in found.values()}
        if len(delta) == 1 and all(a.strides == b.strides for a, b in found.values()):
            ((old_key, start),) = delta
            source = old.storages[old_key]
            inside = 0 <= start <= source.nbytes - record.nbytes
            run = Range(source.path, source.locate(handles) + start, record.nbytes)
            yield from range_checks(key, handles, run, made, meter, ends_only=ends_only) if inside else [differs(key)]
        elif not all(_same_values(handles, old.storages[a.key], a, record, b, meter) for a, b in found.values()):
            yield differs(key)


def _same_values(handles: FileHandles, source: Record, a: _Look, record: Record, b: _Look, meter: Meter) -> bool:
    if a.value is None or b.value is None:
        return False
    left, right = _values(source, a, a.value), _values(record, b, b.value)
    size = max(gather.block_size(t, 0, t.nbytes) for t in (left, right))
    for (_, x), (_, y) in zip(gather.blocks(left, handles, size), gather.blocks(right, handles, size), strict=True):
        if bytes(x) != y:
            return False
        meter.step(read=len(x) + len(y), done=len(x))
    return True


def _values(record: Record, look: _Look, value: TensorValue) -> Tensor:
    """The stored elements in row-major order, as opaque words."""
    item = value.dtype.itemsize
    layout = Strided(record, look.offset, value.shape, tuple(s * item for s in value.strides), item)
    return Tensor("", value.dtype, value.shape, layout)


__all__ = ["TorchShrink", "prove_same"]
