"""Shards that torch.distributed.checkpoint's Hugging Face writer left: safetensors files with a part of each tensor.

The header's `DCP_SHARDING_INFO` says where each part belongs.  The whole shape is not stored: it is the furthest that any part
reaches, so parts must fill it, and the shard numbers must have no gap.  Whether the last ranks' files are all there is told by
config.json and by tensors that must fit each other, or else not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Tensor
from shardyard.dtypes import DType
from shardyard.errors import COPY_AGAIN, Cancelled, DamagedError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.coverage import Block, flaw
from shardyard.formats.dcp.shard_gaps import SHARD, Shards
from shardyard.formats.dcp.values import step_in_name
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import find_config
from shardyard.formats.safetensors.file import SafetensorsFile, open_safetensors
from shardyard.formats.same_files import conflicts
from shardyard.layouts import Boxes
from shardyard.pieces import Piece, Record, box, row_major
from shardyard.text import printable

_INFO = "DCP_SHARDING_INFO"
_MOST_NAMED = 20


@dataclass(slots=True)
class _Parts:
    """One tensor's parts as the files hold them."""

    dtype: DType
    blocks: dict[Block, list[tuple[Record, int]]] = field(default_factory=dict)
    """(data section, offset in it) of each copy of each block."""
    problem: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        ends = [[o + n for o, n in zip(offsets, sizes, strict=True)] for offsets, sizes in self.blocks]
        return tuple(max(of_dim) for of_dim in zip(*ends, strict=True))


class HfDcp:
    """One candidate for the shards of a folder."""

    name = "torch.distributed.checkpoint, Hugging Face writer"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """By names alone."""
        names = tuple(n for n in unclaimed if n in folder.files and SHARD.fullmatch(n))
        if names:
            yield Candidate(self, folder, folder.path, CheckpointKind.HF_DCP, names)

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read all headers."""
        folder = candidate.folder
        config, config_folder = find_config(folder, above=True)
        checkpoint = Checkpoint(
            candidate.path,
            CheckpointKind.HF_DCP,
            [FileEntry(name, folder.files[name].nbytes, "weights") for name in candidate.files],
            {},
            "model",
            findings=conflicts(folder, options.handles, set(candidate.files).__contains__),
            step=step_in_name(folder),
            config=config,
            config_folder=config_folder,
            checked={"headers", "shapes"},
        )
        parts, shards = _read(checkpoint, candidate, options)
        tensors = {name: _tensor(name, of_name) for name, of_name in parts.items()}
        checkpoint.parts["model"] = Part("model", tensors, model=True)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        checkpoint.findings += shards.findings(shapes, config)
        if shards.proven(shapes, config):
            checkpoint.checked.add("ranks")
        numbers = {int(m[1]) for name in candidate.files if (m := SHARD.fullmatch(name))}
        checkpoint.world_size = max(numbers)
        _check(checkpoint, tensors, numbers)
        usage = checkpoint.usage
        usage.weights = sum(t.nbytes for t in tensors.values())
        usage.wasted = sum(t.nbytes * len(t.replicas) for t in tensors.values())
        usage.other = max(0, sum(f.nbytes for f in checkpoint.files) - usage.weights - usage.wasted)
        return checkpoint


FORMAT = HfDcp()


def _read(checkpoint: Checkpoint, candidate: Candidate, options: OpenOptions) -> tuple[dict[str, _Parts], Shards]:
    found: dict[str, _Parts] = {}
    shards = Shards()
    metadata: dict[str, str] = {}
    for number, name in enumerate(sorted(candidate.files)):
        if options.cancelled():
            raise Cancelled()
        if options.progress is not None:
            options.progress(name, number, len(candidate.files))
        file = _open(checkpoint, name, candidate.folder.files[name].path, options)
        if file is not None:
            metadata.update({k: v for k, v in file.metadata.items() if k != _INFO})
            shards.blocks[name] = _add(found, file, name, _offsets(checkpoint, file, name))
    checkpoint.metadata = metadata
    return found, shards


def _open(checkpoint: Checkpoint, name: str, path: str, options: OpenOptions) -> SafetensorsFile | None:
    try:
        file = open_safetensors(options.handles, path)
    except DamagedError as error:
        # Without it even the shapes are not known.
        remedy = error.remedy or COPY_AGAIN
        checkpoint.findings.append(Finding(error.code, Severity.ERROR, error.problem, remedy, (name,), blocks=Blocks.MERGE))
        return None
    checkpoint.findings += file.findings
    return file


def _offsets(checkpoint: Checkpoint, file: SafetensorsFile, name: str) -> dict[str, tuple[int, ...]]:
    """Where each tensor of a file belongs, by the file's own word."""
    try:
        info = json.loads(file.metadata.get(_INFO, ""))
        return {key: tuple(value["saved_offsets"]) for key, value in info.items() if _numbers(value["saved_offsets"])}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        text = f"{name} does not say where its parts of tensors belong ({_INFO} is missing or damaged)."
        checkpoint.findings.append(Finding("corrupt", Severity.ERROR, text, COPY_AGAIN, (name,), blocks=Blocks.MERGE))
        return {}


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _add(found: dict[str, _Parts], file: SafetensorsFile, name: str, offsets: dict[str, tuple[int, ...]]) -> dict[str, Block]:
    """Add a file's parts to their tensors; returns their places."""
    places: dict[str, Block] = {}
    for key, tensor in file.tensors.items():
        parts = found.setdefault(key, _Parts(tensor.dtype))
        at = offsets.get(key)
        if at is None or len(at) != len(tensor.shape):
            parts.problem = parts.problem or f"{name} does not say where its part belongs"
            at = (0,) * len(tensor.shape)
        if tensor.layout is None:
            parts.problem = parts.problem or f"{tensor.note} ({name})"
        if parts.dtype != tensor.dtype or any(len(o) != len(at) for o, _ in parts.blocks):
            parts.problem = parts.problem or "the shards disagree about its dtype or number of dimensions"
            continue
        entry = file.header.entries[key]
        parts.blocks.setdefault((at, tensor.shape), []).append((file.record, entry.begin))
        places[key] = (at, tensor.shape)
    return places


def _tensor(name: str, parts: _Parts) -> Tensor:
    dtype, shape = parts.dtype, parts.shape
    note = parts.problem or flaw(shape, list(parts.blocks))
    if not note and (not dtype.bits or dtype.bits % 8):
        note = f"parts of {dtype.name} tensors cannot be put together"
    if note:
        return Tensor(name, dtype, shape, None, note=note, nbytes_stored=None if dtype.bits else 0)
    strides = row_major(shape, dtype.itemsize)
    copies = max(len(places) for places in parts.blocks.values())
    layouts = []
    for i in range(copies):
        pieces = [_piece(b, places[min(i, len(places) - 1)], dtype, strides) for b, places in parts.blocks.items()]
        kept = sorted((p for p in pieces if p is not None), key=lambda p: p.target_offset)
        layouts.append(Boxes(kept, dtype.nbytes(_numel(shape))))
    return Tensor(name, dtype, shape, layouts[0], replicas=tuple(layouts[1:]))


def _numel(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def _piece(block: Block, place: tuple[Record, int], dtype: DType, strides: tuple[int, ...]) -> Piece | None:
    offsets, sizes = block
    record, start = place
    target = sum(o * s for o, s in zip(offsets, strides, strict=True))
    return box(record, dtype.itemsize, sizes, start, row_major(sizes, dtype.itemsize), target, strides)


def _check(checkpoint: Checkpoint, tensors: dict[str, Tensor], numbers: set[int]) -> None:
    broken = {name: t.note for name, t in tensors.items() if t.layout is None}
    if broken:
        first = next(iter(broken))
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        checkpoint.findings.append(
            Finding(
                "missing-tensor" if "stored" in broken[first] else "corrupt",
                Severity.ERROR,
                f"{printable(first, 120)}{more}: {broken[first]}.",
                "Get the missing shards.",
                tensors=tuple(list(broken)[:_MOST_NAMED]),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
    # The highest may be any number that a name can hold: they are counted, not listed.
    highest = max(numbers)
    lost = highest - len(numbers - {0})
    if lost:
        gaps = list(islice((n for n in range(1, highest + 1) if n not in numbers), _MOST_NAMED))
        shards = f"Shard {gaps[0]} of {highest}" + (f" (and {lost - 1:,} more)" if lost > 1 else "")
        # Shapes are as far as parts reach: without a shard that held rows, none of them can be trusted.
        checkpoint.findings.append(
            Finding(
                "missing-shard",
                Severity.ERROR,
                f"{shards} is missing."
                if broken
                else f"{shards} is missing; the others fill whole tensors, which may be all there is or may be too small.",
                "Copy it from the node that wrote it, or give that node's folder as a further source.",
                paths=tuple(f"shard-{n:05}" for n in gaps),
                blocks=Blocks.MERGE if broken else Blocks.UNLESS_ALLOWED,
            )
        )
