"""The catalogue: what every format reader makes and every operation uses.

A `Checkpoint` is a set of named `Tensor`s; a tensor knows where its bytes are through a `Layout` (`shardyard.layouts`).
Nothing here reads tensor data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from shardyard.dtypes import DType
from shardyard.findings import Blocks, Finding
from shardyard.layouts import Layout
from shardyard.pieces import Ops, Piece


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
