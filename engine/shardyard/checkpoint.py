"""The catalogue: what every format reader makes and every operation uses.

A `Checkpoint` is a set of named `Tensor`s.  A tensor knows where its bytes are through a `Layout`, which answers, for any
range of the tensor's row-major little-endian bytes, with `Piece`s: strided copies out of a `Record`, a run of stored bytes.
Nothing here reads tensor data, and nothing walks all pieces: a 671B model on 1,024 ranks has 10^8 of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag
from functools import cached_property
from pathlib import Path
from typing import Protocol

from shardyard.dtypes import DType
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding


@dataclass(slots=True, eq=False)
class Record:
    """A run of `nbytes` stored bytes: a zip record, a safetensors data section, a legacy storage, a whole file."""

    path: str
    """Absolute path of the file that holds it."""
    nbytes: int
    start: int
    """Offset in the file of the first byte, as far as the headers tell; `locate` is the truth."""
    name: str = ""
    """Its name inside the file, such as `archive/data/0`."""
    crc32: int | None = None
    """The stored CRC-32 of all its bytes, where the container has one."""

    def locate(self, handles: FileHandles) -> int:
        """Offset of the first byte in `path`, proven; formats that defer a header check override this."""
        return self.start


@dataclass(slots=True, eq=False)
class InlineRecord(Record):
    """Bytes that were inside a pickle or header and are in memory already (numpy arrays, scalars)."""

    data: bytes = b""


@dataclass(slots=True, eq=False)
class EncodedRecord(Record):
    """Compressed bytes: they have no place on disk until a transfer has decoded them into its staging folder.

    `nbytes` counts decoded bytes.  After `spooled` is set, `path` and `start` point at the decoded copy.
    """

    spooled: bool = False

    def decode(self, handles: FileHandles) -> Iterator[bytes]:
        """The decoded bytes, in order, in blocks of at most 1 MiB."""
        raise NotImplementedError

    def locate(self, handles: FileHandles) -> int:
        if not self.spooled:
            raise DamagedError(f"{self.name or self.path} is compressed and was not decoded yet.", path=self.path)
        return self.start


class Ops(Flag):
    """Value changes between stored and wanted bytes."""

    NONE = 0
    SWAP = 1
    """Reverse the bytes of each word (half elements for complex numbers)."""
    CONJ = 2
    NEG = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A strided copy out of one record into the tensor's row-major bytes.

    Shape counts words; every offset and stride is in bytes.  Target strides fall from left to right and target words never
    overlap; source strides may be anything, 0 included.
    """

    record: Record
    word: int
    """Bytes a word: the element size where it is 1, 2, 4, 8 or 16, else 1."""
    shape: tuple[int, ...]
    source_offset: int
    """Of the first word, in the record."""
    source_strides: tuple[int, ...]
    target_offset: int
    """Of the first word, in the tensor's bytes."""
    target_strides: tuple[int, ...]
    ops: Ops = Ops.NONE

    @property
    def nbytes(self) -> int:
        """Bytes it writes."""
        return self.word * math.prod(self.shape)

    @property
    def run(self) -> bool:
        """Whether it is one plain contiguous copy without ops: the fast path."""
        return len(self.shape) == 1 and self.source_strides[0] == self.target_strides[0] == self.word and not self.ops

    @property
    def source_span(self) -> tuple[int, int]:
        """First and one past the last byte it reads, in the record."""
        lo = hi = self.source_offset
        for n, stride in zip(self.shape, self.source_strides, strict=True):
            reach = (n - 1) * stride
            lo, hi = (lo + reach, hi) if reach < 0 else (lo, hi + reach)
        return lo, hi + self.word

    @property
    def target_end(self) -> int:
        """One past the last byte it writes."""
        return self.target_offset + sum((n - 1) * s for n, s in zip(self.shape, self.target_strides, strict=True)) + self.word


def contiguous_run(record: Record, source: int, target: int, nbytes: int, word: int = 1, ops: Ops = Ops.NONE) -> Piece:
    """A plain copy of `nbytes` bytes."""
    return Piece(record, word, (nbytes // word,), source, (word,), target, (word,), ops)


def row_major(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a packed row-major array."""
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def box(
    record: Record,
    word: int,
    shape: Sequence[int],
    source_offset: int,
    source_strides: Sequence[int],
    target_offset: int,
    target_strides: Sequence[int],
    ops: Ops = Ops.NONE,
) -> Piece | None:
    """A piece with needless dimensions folded away (size 1, or joined in memory on both sides); None if it is empty."""
    if 0 in shape:
        return None
    dims: list[tuple[int, int, int]] = []
    for n, s, t in zip(shape, source_strides, target_strides, strict=True):
        if n == 1:
            continue
        if dims and dims[-1][1] == s * n and dims[-1][2] == t * n:
            dims[-1] = (dims[-1][0] * n, s, t)
        else:
            dims.append((n, s, t))
    if not dims:
        dims = [(1, word, word)]
    sizes, sources, targets = zip(*dims, strict=True)
    return Piece(record, word, sizes, source_offset, sources, target_offset, targets, ops)


def clip(piece: Piece, lo: int, hi: int) -> Iterator[Piece]:
    """The parts of a piece whose target bytes lie in [lo, hi); both must be multiples of its word from the target offset.

    A box is cut into at most two parts a dimension and one middle: its target words are in row-major order.
    """
    if piece.target_offset >= lo and piece.target_end <= hi:
        yield piece
        return
    if piece.target_end <= lo or piece.target_offset >= hi:
        return
    n, target = piece.shape[0], piece.target_strides[0]
    inner = _slab(piece, 0, 1)
    span = inner.target_end - inner.target_offset
    base = piece.target_offset
    first_whole = max(0, -(-(lo - base) // target))
    end_whole = min(n, (hi - base - span) // target + 1)
    if len(piece.shape) == 1:
        if first_whole < end_whole:
            yield _slab(piece, first_whole, end_whole)
        return
    if first_whole > 0 and first_whole - 1 < n:
        yield from clip(_drop(_slab(piece, first_whole - 1, first_whole)), lo, hi)
    if first_whole < end_whole:
        yield _slab(piece, first_whole, end_whole)
    tail = max(end_whole, first_whole)
    if tail < n and base + tail * target < hi:
        yield from clip(_drop(_slab(piece, tail, tail + 1)), lo, hi)


def _slab(piece: Piece, a: int, b: int) -> Piece:
    """Rows a to b of a piece's first dimension."""
    return Piece(
        piece.record,
        piece.word,
        (b - a, *piece.shape[1:]),
        piece.source_offset + a * piece.source_strides[0],
        piece.source_strides,
        piece.target_offset + a * piece.target_strides[0],
        piece.target_strides,
        piece.ops,
    )


def _drop(piece: Piece) -> Piece:
    """The same piece without its first dimension, which must have size 1."""
    return Piece(
        piece.record,
        piece.word,
        piece.shape[1:],
        piece.source_offset,
        piece.source_strides[1:],
        piece.target_offset,
        piece.target_strides[1:],
        piece.ops,
    )


class Layout(Protocol):
    """Where a tensor's bytes are."""

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        """The pieces that touch the tensor's bytes [lo, hi), found by arithmetic; they may reach beyond: see `clip`."""
        ...

    def records(self) -> Iterator[Record]:
        """Each record it reads from, once."""
        ...

    def prove(self, nbytes: int) -> None:
        """Raise DamagedError unless each of the tensor's `nbytes` bytes is written by exactly one piece."""
        ...


@dataclass(slots=True)
class OneRun:
    """The whole tensor is one contiguous run."""

    record: Record
    offset: int
    nbytes: int
    word: int = 1
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        if lo < hi and lo < self.nbytes:
            yield contiguous_run(self.record, self.offset, 0, self.nbytes, self.word, self.ops)

    def records(self) -> Iterator[Record]:
        yield self.record

    def prove(self, nbytes: int) -> None:
        _need(self.nbytes == nbytes, self.record, f"{self.nbytes} bytes stored, {nbytes} expected")
        _need(self.offset >= 0 and self.offset + nbytes <= self.record.nbytes, self.record, "the tensor leaves its record")


@dataclass(slots=True)
class Runs:
    """Contiguous runs one after another: a ZeRO-1/2 parameter that crosses rank borders, a concatenation of row shards."""

    parts: list[tuple[int, Record, int]]
    """(first target byte, record, offset in the record) in rising target order; each run ends where the next begins."""
    nbytes: int
    word: int = 1
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        i = max(0, bisect_right(self.parts, lo, key=lambda p: p[0]) - 1)
        while i < len(self.parts):
            target, record, offset = self.parts[i]
            if target >= min(hi, self.nbytes):
                return
            end = self.parts[i + 1][0] if i + 1 < len(self.parts) else self.nbytes
            if end > target:
                yield contiguous_run(record, offset, target, end - target, self.word, self.ops)
            i += 1

    def records(self) -> Iterator[Record]:
        yield from {id(p[1]): p[1] for p in self.parts}.values()

    def prove(self, nbytes: int) -> None:
        expected = 0
        for i, (target, record, offset) in enumerate(self.parts):
            end = self.parts[i + 1][0] if i + 1 < len(self.parts) else self.nbytes
            _need(target == expected and end >= target, record, "its runs leave a hole or overlap")
            _need(offset >= 0 and offset + end - target <= record.nbytes, record, "a run leaves its record")
            expected = end
        if expected != nbytes:
            path = self.parts[0][1].path if self.parts else None
            raise DamagedError(f"{expected} of {nbytes} bytes are stored.", path=path)


@dataclass(slots=True)
class EvenRuns:
    """Equal runs, one a rank, the last ones padded: how ZeRO-3 cuts each parameter.  Costs no memory a rank."""

    ranks: Sequence[Record]
    """One record a rank, in rank order; shared between all tensors of a group."""
    offset: int
    """Of the run in each rank's record."""
    per: int
    """Bytes a rank holds, padding included."""
    nbytes: int
    word: int = 1

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        hi = min(hi, self.nbytes)
        if lo >= hi:
            return
        for rank in range(lo // self.per, -(-hi // self.per)):
            target = rank * self.per
            yield contiguous_run(self.ranks[rank], self.offset, target, min(self.per, self.nbytes - target), self.word)

    def records(self) -> Iterator[Record]:
        yield from self.ranks[: -(-self.nbytes // self.per)] if self.per else ()

    def prove(self, nbytes: int) -> None:
        if self.nbytes != nbytes or self.per * len(self.ranks) < nbytes:
            path = self.ranks[0].path if self.ranks else None
            raise DamagedError(f"{self.per} bytes on {len(self.ranks)} ranks cannot hold {nbytes}.", path=path)
        if nbytes:
            _need(self.offset >= 0, self.ranks[0], "a run begins before its record")
        if self.offset + self.per > _smallest(self.ranks):
            for record in self.records():
                _need(self.offset + self.per <= record.nbytes, record, "a run leaves its record")


_measured: tuple[Sequence[Record], int] = ((), 0)


def _smallest(ranks: Sequence[Record]) -> int:
    """Bytes of the smallest record; the last answer is kept, since all tensors of a group share one sequence."""
    global _measured
    if _measured[0] is not ranks:
        _measured = (ranks, min((record.nbytes for record in ranks), default=0))
    return _measured[1]


@dataclass(slots=True)
class Strided:
    """The whole tensor is one strided view of a record: transposed, sliced, expanded, byte-swapped, conjugated."""

    record: Record
    offset: int
    shape: tuple[int, ...]
    """In words."""
    strides: tuple[int, ...]
    """In bytes of the record."""
    word: int
    ops: Ops = Ops.NONE

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        piece = box(self.record, self.word, self.shape, self.offset, self.strides, 0, row_major(self.shape, self.word), self.ops)
        if piece is not None and lo < hi:
            yield piece

    def records(self) -> Iterator[Record]:
        yield self.record

    def prove(self, nbytes: int) -> None:
        _need(self.word * math.prod(self.shape) == nbytes, self.record, "shape and size disagree")
        for piece in self.pieces(0, nbytes):
            lo, hi = piece.source_span
            _need(lo >= 0 and hi <= self.record.nbytes, self.record, "the view leaves its storage")


@dataclass(slots=True)
class Boxes:
    """Rectangular blocks of an n-dimensional tensor, in any number of records: DCP chunks, tensor-parallel shards."""

    blocks: list[Piece]
    """In rising order of `target_offset`."""
    nbytes: int
    _ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The running maximum of ends: where it is below `lo`, no earlier block can reach the range.
        top = 0
        for piece in self.blocks:
            top = max(top, piece.target_end)
            self._ends.append(top)

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        for i in range(bisect_right(self._ends, lo), len(self.blocks)):
            piece = self.blocks[i]
            if piece.target_offset >= hi:
                return
            if piece.target_end > lo:
                yield piece

    def records(self) -> Iterator[Record]:
        yield from {id(p.record): p.record for p in self.blocks}.values()

    def prove(self, nbytes: int) -> None:
        """Count bytes, then show that no two blocks meet: equal totals without overlap leave no hole.

        Folding may give neighbours different ranks, so blocks are compared as sets of target runs, merged lazily: cost is
        the number of rows that blocks break into, only where blocks interleave.
        """
        total = sum(p.nbytes for p in self.blocks)
        path = self.blocks[0].record.path if self.blocks else None
        if total != nbytes or self.nbytes != nbytes:
            raise DamagedError(f"its chunks hold {total} of {nbytes} bytes.", path=path)
        for piece in self.blocks:
            lo, hi = piece.source_span
            _need(lo >= 0 and hi <= piece.record.nbytes, piece.record, "a chunk leaves its record")
            _need(piece.target_offset >= 0 and piece.target_end <= nbytes, piece.record, "a chunk leaves the tensor")
        if _blocks_meet(self.blocks):
            raise DamagedError("two of its chunks cover the same elements.", path=path)


def _blocks_meet(blocks: Sequence[Piece]) -> bool:
    """Whether any two row-major blocks share a target byte.

    Sweeps in target order keeping the blocks that are still open.  Two blocks of one row-major tensor whose spans overlap are
    compared run by run with `clip`, cheap because each test ends at the first dimension that tells them apart.
    """
    open_blocks: list[Piece] = []
    for piece in blocks:
        open_blocks = [b for b in open_blocks if b.target_end > piece.target_offset]
        if any(_meet(b, piece) for b in open_blocks):
            return True
        open_blocks.append(piece)
    return False


def _meet(a: Piece, b: Piece) -> bool:
    """Whether two pieces with overlapping spans share a target byte.

    Both are boxes of one row-major tensor, so with all their strides as the digits of one number system they are ranges of
    digits, and meet where every digit does: 8 column shards of 128,000 rows are proven in 1 ms.
    """
    if a.target_end <= b.target_offset or b.target_end <= a.target_offset:
        return False
    chain = sorted({*a.target_strides, *b.target_strides, 1}, reverse=True)
    first, second = _digits(a, chain), _digits(b, chain)
    if first is not None and second is not None:
        return all(x < y_end and y < x_end for (x, x_end), (y, y_end) in zip(first, second, strict=True))
    return _meet_by_rows(a, b)


def _digits(piece: Piece, chain: Sequence[int]) -> list[tuple[int, int]] | None:
    """The range of each digit that its target bytes take, for the falling strides of `chain`; None if they form no box."""
    steps = [(s, n) for s, n in zip(piece.target_strides, piece.shape, strict=True) if n > 1]
    sizes = dict([*steps, (1, piece.word)] if piece.word > 1 else steps)
    if len(sizes) < len(steps) + (piece.word > 1):
        return None
    ranges: list[tuple[int, int]] = []
    carry = 1
    for i in range(len(chain) - 1, -1, -1):
        stride, coarser = chain[i], chain[i - 1] if i else 0
        n = sizes.get(stride, 1)
        if carry > 1 and n > 1:
            return None
        n, carry = n * carry, 1
        if coarser % stride:
            return None
        digit = piece.target_offset // stride if not coarser else piece.target_offset % coarser // stride
        if coarser and digit + n > coarser // stride:
            carry, left = divmod(n, coarser // stride)
            if digit or left:
                return None
            n = coarser // stride
        ranges.append((digit, digit + n))
    return ranges


def _meet_by_rows(a: Piece, b: Piece) -> bool:
    """`_meet` for pieces that begin in the middle of a row and run on: row by row."""
    a_dense = a.target_end - a.target_offset == a.nbytes
    b_dense = b.target_end - b.target_offset == b.nbytes
    if a_dense and b_dense:
        return True
    if a_dense or b_dense:
        dense, loose = (a, b) if a_dense else (b, a)
        # A loose block meets a dense span exactly when some of its words fall inside.
        return any(True for _ in clip(_bytewise(loose), dense.target_offset, dense.target_end))
    outer = a if a.target_strides[0] >= b.target_strides[0] else b
    other = b if outer is a else a
    for row in range(outer.shape[0]):
        slab = _drop(_slab(outer, row, row + 1)) if len(outer.shape) > 1 else _slab(outer, row, row + 1)
        if slab.target_offset >= other.target_end:
            return False
        if slab.target_end > other.target_offset and _meet(slab, other):
            return True
    return False


def _bytewise(piece: Piece) -> Piece:
    """The same target bytes with words of one byte, so that it can be clipped anywhere."""
    if piece.word == 1:
        return piece
    return Piece(
        piece.record,
        1,
        (*piece.shape, piece.word),
        piece.source_offset,
        (*piece.source_strides, 1),
        piece.target_offset,
        (*piece.target_strides, 1),
    )


def _need(condition: bool, record: Record, what: str) -> None:
    if not condition:
        where = f" in record {record.name}" if record.name else ""
        raise DamagedError(f"{Path(record.path).name}{where}: {what}.", path=record.path)


class Role(str, Enum):
    """What a tensor is for."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    MASTER = "master"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class StorageView:
    """How a tensor looks at a shared storage: what sharing, ties and bloat are judged by."""

    key: tuple[str, str]
    """(file, storage key): identity of the storage."""
    storage_nbytes: int
    offset: int
    """In bytes."""
    strides: tuple[int, ...]
    """In bytes, of dimensions as in the shape."""
    ops: Ops = Ops.NONE


@dataclass(slots=True, eq=False)
class Tensor:
    """A named array."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout | None
    """Where its bytes are; None: the name is known, the data is not here."""
    role: Role = Role.WEIGHT
    trainable: bool | None = None
    """False for a frozen weight where the format records it; None: not recorded."""
    storage: StorageView | None = None
    """Set where several tensors may share one storage (torch files)."""
    replicas: tuple[Layout, ...] = ()
    """Other stored copies that must hold the same bytes; one is read, the rest are checked."""
    copy16: Tensor | None = None
    """A stored 16-bit copy that this tensor, cast, must equal (ZeRO-1/2 `module`)."""
    note: str = ""
    """Why the data is absent, or where it came from when that is not the usual place."""
    nbytes_stored: int | None = None
    """Overrides the size worked out from dtype and shape, for dtypes of unknown width."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its row-major values; sub-byte types are rounded up."""
        return self.dtype.nbytes(self.numel) if self.nbytes_stored is None else self.nbytes_stored

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that hold it."""
        return tuple(dict.fromkeys(r.path for r in self.layout.records())) if self.layout is not None else ()

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        """Pieces that touch bytes [lo, hi) of its row-major values."""
        return self.layout.pieces(lo, hi) if self.layout is not None else iter(())


@dataclass(frozen=True, slots=True)
class Composite:
    """A sparse, quantised or nested value: plain tensors that belong together. Containers that cannot hold it refuse it."""

    name: str
    kind: str
    """`sparse_coo`, `sparse_csr`, `quantised`, `nested`, `subclass`, …"""
    parts: tuple[str, ...]
    """Names of its tensors, such as `x::indices`."""
    parameters: Mapping[str, str | int | float | tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Tie:
    """Several names of one tensor."""

    names: tuple[str, ...]
    """The owner first."""
    source: str
    """`storage` (same view), `recorded` (an alias map), `config` (config.json says so), `bytes` (equal bytes)."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A value in the file that is no tensor, as text that is safe to show."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the checkpoint."""

    path: str
    """Relative to the checkpoint's path."""
    nbytes: int
    role: str
    """`weights`, `masters+optimizer`, `index`, `metadata`, `config` or `other`."""


@dataclass(slots=True)
class Usage:
    """Where the bytes are. `wasted`: stored bytes that no tensor uses."""

    weights: int = 0
    masters: int = 0
    optimizer: int = 0
    other: int = 0
    wasted: int = 0


class Part:
    """A component of the saved state that can be merged alone: `model`, `app.model`, `ema`, `masters`, `optimizer`."""

    def __init__(self, name: str, tensors: dict[str, Tensor] | Callable[[], dict[str, Tensor]], *, model: bool) -> None:
        self.name = name
        self.model = model
        """Whether it is a whole set of weights that a person could want (not an optimizer)."""
        self._source = tensors

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Names (without the component's own path) to tensors; built on first use."""
        return self._source if isinstance(self._source, dict) else self._source()


class CheckpointKind(str, Enum):
    """What a checkpoint is, as CONTRACT section 3 names it."""

    SAFETENSORS = "safetensors"
    SAFETENSORS_SHARDED = "safetensors-sharded"
    TORCH = "torch"
    TORCH_SHARDED = "torch-sharded"
    ZERO0 = "deepspeed-zero0"
    ZERO1 = "deepspeed-zero1"
    ZERO2 = "deepspeed-zero2"
    ZERO3 = "deepspeed-zero3"
    PIPELINE = "deepspeed-pipeline"
    MOE = "deepspeed-moe"
    UNIVERSAL = "deepspeed-universal"
    DCP = "dcp"
    HF_DCP = "hf-dcp"
    FSDP_RANKS = "fsdp-ranks"
    FSDP_LOCAL = "fsdp-local"
    TENSOR_PARALLEL = "tensor-parallel"
    LORA = "lora-adapter"
    GGUF = "gguf"
    NPZ = "npz"
    UNREADABLE = "unreadable"


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One weight set, opened: headers, central directories and pickles were read, no tensor data."""

    path: Path
    """The folder or file that it is; for several folders, the first."""
    kind: CheckpointKind
    files: list[FileEntry]
    parts: dict[str, Part]
    """In the order found."""
    part: str | None
    """The part that is merged by default; None when several models qualify or none does."""
    ties: list[Tie] = field(default_factory=list)
    composites: list[Composite] = field(default_factory=list)
    objects: list[StoredObject] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """What the reader saw that was odd; health adds its own."""
    usage: Usage = field(default_factory=Usage)
    world_size: int | None = None
    step: int | None = None
    tags: tuple[str, ...] = ()
    tag: str | None = None
    config: Mapping[str, object] | None = None
    """config.json, where one goes with the checkpoint (beside it, one level up, or in `huggingface/`)."""
    config_folder: Path | None = None
    """Where that config.json and the other side files are."""
    checked: set[str] = field(default_factory=lambda: {"headers"})
    """Of `headers`, `ranks`, `shapes`, `ties`, `crc`, `values`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Text that the container carries (safetensors `__metadata__`, versions, the writer's name)."""
    merge_note: str = ""
    """Why this kind cannot be merged, one sentence; empty when it can."""
    globals: Mapping[str, int] = field(default_factory=dict)
    """Dotted names that its pickles refer to, with counts; nothing was imported."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The default part's tensors; empty where there is no single default."""
        return self.parts[self.part].tensors if self.part is not None else {}

    @property
    def complete(self) -> bool:
        """Whether every tensor of the model part has its data."""
        return all(f.blocks is Blocks.NOTHING for f in self.findings) and self.kind is not CheckpointKind.UNREADABLE

    @property
    def mergeable(self) -> bool:
        return self.complete and not self.merge_note and self.part is not None
