"""The shares of all ranks' files put together: one tensor for each name, its pieces, and its copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardyard.checkpoint import Role, StoredObject, Tensor, Tie
from shardyard.dtypes import DType, unknown
from shardyard.errors import DamagedError, ShardyardError, UnsupportedError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.coverage import Block, flaw
from shardyard.formats.declared_ties import owner_first
from shardyard.formats.pickles import integers, pairs, sequence, text_of
from shardyard.formats.rank_files.shares import LocalBlock, Share, ShareReader
from shardyard.formats.torch.file import TorchFile
from shardyard.formats.torch.tensors import TensorValue, WrapperValue, dtype_of
from shardyard.formats.torch.text import describe
from shardyard.layouts import Boxes, Layout
from shardyard.pieces import Ops, Piece, box, row_major
from shardyard.text import printable

_MOST_NAMED = 20
_DEEPEST = 16


@dataclass(slots=True)
class _Stored:
    """One tensor's blocks as the ranks hold them."""

    dtype: DType
    shape: tuple[int, ...]
    blocks: dict[Block, list[Piece]] = field(default_factory=dict)
    """By place in the tensor; several pieces where several ranks hold the same."""
    plain: bool = False
    problem: str = ""


@dataclass(slots=True)
class RankSet:
    """Rank files of one kind, added one after another in rank order."""

    role: Role
    stored: dict[str, _Stored] = field(default_factory=dict)
    objects: dict[str, StoredObject] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    globals: dict[str, int] = field(default_factory=dict)
    ranks: int = 1
    """The largest number of ranks that any tensor's layout speaks of."""
    bytes_used: int = 0
    _contents: set[int] = field(default_factory=set)
    """A hash of each file's names."""

    def add(self, file: TorchFile, rank: int) -> None:
        """Take one rank's file; its graph may be dropped afterwards."""
        for (module, name), count in file.globals.items():
            self.globals[f"{module}.{name}"] = self.globals.get(f"{module}.{name}", 0) + count
        self.findings += file.findings
        reader = ShareReader(rank)
        names = 0
        for name, value in _leaves(file.root, "", 0):
            self._add(name, value, file, reader)
            names ^= hash(name)
        self._contents.add(names)

    @property
    def alike(self) -> bool:
        """Whether all files have the same names and hold shares: then a further rank's file would add no name."""
        return len(self._contents) == 1 and any(not stored.plain for stored in self.stored.values())

    def _add(self, name: str, value: object, file: TorchFile, reader: ShareReader) -> None:
        try:
            share = reader.read(value)
            if share is None:
                self.objects.setdefault(name, StoredObject(name, describe(value)))
            else:
                self._take(name, share, file)
        except ShardyardError as error:
            self._problem(name, value, f"{error.message} ({file.name})")

    def _problem(self, name: str, value: object, text: str) -> None:
        known = self.stored.get(name)
        if known is None:
            dtype, shape = _described(value)
            known = self.stored[name] = _Stored(dtype, shape)
        known.problem = known.problem or text

    def _take(self, name: str, share: Share, file: TorchFile) -> None:
        known = self.stored.get(name)
        if known is None:
            known = self.stored[name] = _Stored(share.dtype, share.shape, plain=share.plain)
        self.ranks = max(self.ranks, share.ranks)
        if (known.dtype, known.shape, known.plain) != (share.dtype, share.shape, share.plain):
            known.problem = known.problem or (
                f"the ranks disagree: {known.dtype.name} {list(known.shape)} in one file, "
                f"{share.dtype.name} {list(share.shape)} in {file.name}"
            )
            return
        for block in share.blocks:
            piece = _piece(block, share, file)
            if piece is not None:
                known.blocks.setdefault(block.block, []).append(piece)
                self.bytes_used += piece.nbytes

    def tensors(self, *, flat_state: bool = False) -> dict[str, Tensor]:
        """One tensor for each name; those that are not whole have no layout, and findings say why.

        Args:
            flat_state: plain tensors of one dimension are slices of flat parameters, different on each rank.
        """
        found: dict[str, Tensor] = {}
        faults: dict[tuple[str, str], list[str]] = {}
        for name, stored in self.stored.items():
            tensor, code = self._tensor(name, stored, flat_state=flat_state)
            found[name] = tensor
            if code:
                faults.setdefault((code, tensor.note), []).append(name)
        for (code, note), names in faults.items():
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            self.findings.append(
                Finding(
                    code,
                    Severity.ERROR,
                    f"{printable(names[0], 120)}{more}: {note}.",
                    "Get the missing ranks' files."
                    if code == "missing-tensor"
                    else "It cannot be merged; use --exclude or another checkpoint.",
                    tensors=tuple(names[:_MOST_NAMED]),
                    blocks=Blocks.UNLESS_ALLOWED,
                )
            )
        return found

    def ties(self) -> list[Tie]:
        """Names that every rank's file holds as one view of one storage."""
        groups: dict[object, list[str]] = {}
        for name, stored in self.stored.items():
            if stored.blocks and not stored.problem:
                places = frozenset((block, tuple(pieces)) for block, pieces in stored.blocks.items())
                groups.setdefault((stored.dtype.name, stored.shape, places), []).append(name)
        return [owner_first(names) for names in groups.values() if len(names) > 1]

    def bytes_once(self, ties: Iterable[Tie]) -> int:
        """Bytes of all ranks' shares, tied ones once."""
        again = (name for tie in ties for name in tie.names[1:])
        return self.bytes_used - sum(p.nbytes for n in again for pieces in self.stored[n].blocks.values() for p in pieces)

    def _tensor(self, name: str, stored: _Stored, *, flat_state: bool) -> tuple[Tensor, str]:
        note, code = stored.problem, "unknown-layout" if stored.problem else ""
        if not note and flat_state and stored.plain and len(stored.shape) == 1:
            note = "a slice of a flat parameter, different on each rank, whose names and shapes are not in the file"
        elif not note:
            note = flaw(stored.shape, list(stored.blocks)) if stored.blocks or 0 not in stored.shape else ""
            code = ("missing-tensor" if "stored" in note else "corrupt") if note else ""
        if note:
            return Tensor(name, stored.dtype, stored.shape, None, self.role, note=note), code
        nbytes = stored.dtype.nbytes(_numel(stored.shape))
        copies = max((len(pieces) for pieces in stored.blocks.values()), default=1)
        # Where a block has fewer copies than another, its last one stands in.
        layouts = [_layout([p[min(i, len(p) - 1)] for p in stored.blocks.values()], nbytes) for i in range(copies)]
        return Tensor(name, stored.dtype, stored.shape, layouts[0], self.role, replicas=tuple(layouts[1:])), ""


def _layout(pieces: list[Piece], nbytes: int) -> Layout:
    return Boxes(sorted(pieces, key=lambda p: p.target_offset), nbytes)


def _numel(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def _described(value: object) -> tuple[DType, tuple[int, ...]]:
    """What can be said of a tensor that is not understood."""
    if isinstance(value, TensorValue):
        return value.dtype, value.shape
    if isinstance(value, WrapperValue) and len(value.args) > 2:
        dtype, shape = dtype_of(value.args[1]), integers(value.args[2])
        if dtype is not None and shape is not None and min(shape, default=0) >= 0:
            return dtype, shape
    return unknown("unknown"), ()


def _piece(block: LocalBlock, share: Share, file: TorchFile) -> Piece | None:
    """A block as a copy out of the rank's storage.

    Raises:
        DamagedError: the local tensor leaves its storage, or that is not in the file.
    """
    value, item = block.value, share.dtype.itemsize
    if not share.dtype.bits or share.dtype.bits % 8:
        raise UnsupportedError(f"element type {printable(share.dtype.name, 40)} is not known", code="unsupported")
    offsets, sizes = block.block
    if 0 in sizes:
        return None
    if value.storage is None:
        raise UnsupportedError("it was saved without data", code="placeholder")
    record = file.record(value.storage)
    first = value.storage.view[0] * (value.storage.dtype or value.dtype).itemsize if value.storage.view else 0
    strides = tuple(s * item for s in value.strides)
    source = first + value.offset * item + sum(a * s for a, s in zip(block.local, strides, strict=True))
    target = row_major(share.shape, item)
    ops = value.ops | (Ops.SWAP if file.big_endian and share.dtype.word > 1 else Ops.NONE)
    piece = box(record, item, sizes, source, strides, sum(o * s for o, s in zip(offsets, target, strict=True)), target, ops)
    if piece is not None:
        lo, hi = piece.source_span
        if lo < 0 or hi > record.nbytes:
            raise DamagedError("its local tensor leaves its storage", path=file.path)
    return piece


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """Every value that is no dict, by its path; lists are entered where they hold dicts."""
    items = pairs(value) if depth < _DEEPEST else None
    if items is None:
        found = sequence(value) if depth < _DEEPEST and isinstance(value, list) else None
        if found and any(pairs(item) is not None for item in found):
            items = list(enumerate(found))
    if items is None:
        yield path, value
        return
    for key, item in items:
        step = text_of(key) if text_of(key) is not None else str(key) if isinstance(key, int) else None
        if step is not None:
            yield from _leaves(item, f"{path}.{step}" if path else step, depth + 1)
