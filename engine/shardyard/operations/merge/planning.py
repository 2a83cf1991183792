"""Making a merge's plan: every refusal is made here, before a byte of tensor data is read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import UsageError
from shardyard.files import FileHandles, fingerprint
from shardyard.layouts import EvenRuns
from shardyard.limits import preflight
from shardyard.operations.merge import contents, estimate
from shardyard.operations.merge.adapters import CONFIG
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.outputs import OutputFile, index_file, literal_file, safetensors_file, split, torch_file
from shardyard.operations.merge.plan import Plan, hash_of, marker
from shardyard.operations.merge.selection import select
from shardyard.operations.place import Place, check_free
from shardyard.pieces import EncodedRecord, InlineRecord, Record
from shardyard.text import printable


def plan_merge(
    sources: Sequence[str | os.PathLike[str]] | Checkpoint,
    out: str | os.PathLike[str],
    options: MergeOptions | None = None,
    *,
    side_files: Mapping[str, bytes] | None = None,
    resuming: bool = False,
) -> Plan:
    """Plan a merge of a checkpoint, or of the folders that hold one. No byte of tensor data is read.

    `side_files` are written beside the weights (an export's config and tokenizer).  `resuming`: an output that this very plan
    has published already is no obstacle.

    Raises:
        ShardyardError: it cannot be merged, or not there.
    """
    options = options or MergeOptions()
    place = Place.of(out)
    checkpoint = sources if isinstance(sources, Checkpoint) else _open(sources, options)
    with FileHandles() as handles:
        return _plan(checkpoint, place, options, dict(side_files or {}), handles, resuming=resuming)


def _open(sources: Sequence[str | os.PathLike[str]], options: MergeOptions) -> Checkpoint:
    from shardyard.discover import open_checkpoint
    from shardyard.formats.candidate import OpenOptions

    return open_checkpoint([Path(s) for s in sources], OpenOptions(tag=options.tag, part=options.part))


def _plan(
    checkpoint: Checkpoint,
    place: Place,
    options: MergeOptions,
    side_files: dict[str, bytes],
    handles: FileHandles,
    *,
    resuming: bool,
) -> Plan:
    kind = _output_format(place, options)
    selection = select(checkpoint, options)
    chosen = contents.choose(checkpoint, selection, options, kind)
    tensors = [w.tensor for w in (*chosen.written, *(a for taken in chosen.adapters.values() for a in taken))]
    tensors += [t for fold in selection.folds.values() for t in (fold.a, fold.b)]
    tensors += [copy for w in chosen.written for copy in w.copies]
    for tensor in tensors:
        contents.check_layout(tensor, tensor.name)
    records = list(_records(tensors))
    used = list(dict.fromkeys(r.path for r in records if not isinstance(r, InlineRecord)))
    if not resuming:
        check_free(place, overwrite=options.overwrite, sources=[*used, str(checkpoint.path)])
    files = _lay_out(chosen, place, options, kind)
    plan = Plan(
        place,
        options,
        checkpoint,
        selection,
        files,
        chosen.tied,
        Counter((w.tensor.dtype.name, w.dtype.name) for w in chosen.written if w.cast and w.dtype != w.tensor.dtype),
        {path: fingerprint(handles, path) for path in used} | _inline(records),
        list({id(r): r for r in records if isinstance(r, EncodedRecord)}.values()),
        list(selection.findings),
    )
    if place.single and side_files:
        raise UsageError("Side files need a folder as the output.", path=str(place.out))
    plan.files.extend(literal_file(name, data) for name, data in side_files.items() if data)
    plan.hash = hash_of(plan, kind)
    if not place.single:
        plan.files.append(marker(plan))
    plan.summary = estimate.summary(plan, kind)
    _check_room(plan)
    return plan


def _output_format(place: Place, options: MergeOptions) -> str:
    said = place.format
    if said is not None and options.format is not None and said != options.format:
        raise UsageError(f"{printable(place.out.name)} ends like a {said} file, but --format {options.format} was asked for.")
    return said or options.format or "safetensors"


def _lay_out(chosen: contents.Contents, place: Place, options: MergeOptions, kind: str) -> list[OutputFile]:
    """The weight files and, where there are several, the index."""
    most = None if place.single else options.max_shard_size
    shards = _shards(chosen, most)
    stem, ending = ("model", ".safetensors") if kind == "safetensors" else ("pytorch_model", ".bin")
    order = {name: k for k, name in enumerate(chosen.order)}
    by_owner: dict[str, list[str]] = {}
    for alias, owner in chosen.tied.items():
        by_owner.setdefault(owner, []).append(alias)
    files: list[OutputFile] = []
    places: dict[str, str] = {}
    for k, shard in enumerate(shards):
        number = f"-{k + 1:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        name = place.out.name if place.single else f"{stem}{number}{ending}"
        tensors = [chosen.written[i] for i in shard]
        tied = {alias: w.name for w in tensors for alias in by_owner.get(w.name, ())}
        if kind == "safetensors":
            files.append(safetensors_file(name, tensors, {"format": "pt", **dict(sorted(tied.items()))}))
        else:
            names = sorted([*(w.name for w in tensors), *tied], key=order.__getitem__)
            wholes = [w for w in chosen.wholes if w.parts[0] in tensors]
            files.append(torch_file(name, tensors, tied, names, wholes))
            places.update(dict.fromkeys(tied, name))
        places.update({w.name: name for w in tensors})
    files.extend(_adapter_files(chosen, place))
    if len(shards) > 1:
        index = index_file(f"{stem}{ending}.index.json", sum(w.nbytes for w in chosen.written), places)
        files.append(index)
    return files


def _adapter_files(chosen: contents.Contents, place: Place) -> list[OutputFile]:
    """Adapters that were split off, in folders of their own, as PEFT saves them."""
    if chosen.adapters and place.single:
        raise UsageError("An adapter that is split off needs a folder as the output; give one, or use --lora keep.")
    files = []
    for folder, written in chosen.adapters.items():
        files.append(safetensors_file(f"{folder}/adapter_model.safetensors", written, {"format": "pt"}))
        if folder in chosen.adapter_configs:
            files.append(literal_file(f"{folder}/{CONFIG}", chosen.adapter_configs[folder]))
    return files


def _shards(chosen: contents.Contents, most: int | None) -> list[list[int]]:
    """Numbers of written tensors by shard; the parts of one value stay together."""
    if not chosen.wholes:
        return split([w.nbytes for w in chosen.written], most)
    numbers = {w.name: k for k, w in enumerate(chosen.written)}
    together = {numbers[p.name]: numbers[w.parts[0].name] for w in chosen.wholes for p in w.parts}
    groups: dict[int, list[int]] = {}
    for k in range(len(chosen.written)):
        groups.setdefault(together.get(k, k), []).append(k)
    units = list(groups.values())
    sizes = [sum(chosen.written[k].nbytes for k in unit) for unit in units]
    return [[k for u in shard for k in units[u]] for shard in split(sizes, most)]


def _records(tensors: Iterable[Tensor]) -> Iterable[Record]:
    """All records that hold the tensors; sequences of rank records that tensors share are walked once."""
    seen: set[int] = set()
    for tensor in tensors:
        for layout in (tensor.layout, *tensor.replicas, tensor.copy16.layout if tensor.copy16 else None):
            if isinstance(layout, EvenRuns):
                if id(layout.ranks) in seen:
                    continue
                seen.add(id(layout.ranks))
                yield from layout.ranks
            elif layout is not None:
                yield from layout.records()


def _inline(records: Iterable[Record]) -> dict[str, dict[str, str | int]]:
    """Fingerprints of values that were in a pickle, or never in a file."""
    return {
        f"{r.path}:{r.name}:{k}": {"bytes": r.nbytes, "sha256": hashlib.sha256(r.data).hexdigest()}
        for k, r in enumerate(records)
        if isinstance(r, InlineRecord)
    }


def _check_room(plan: Plan) -> None:
    """Refuse before the first byte what this place or this machine cannot hold; tell of what is merely tight.

    Raises:
        NoRoomError: the disk, its quota, memory or the CPU time allowed does not suffice.
    """
    need = preflight.Need(
        out=plan.place.out.parent,
        write_bytes=plan.nbytes + sum(r.nbytes for r in plan.spool),
        read_bytes=plan.summary["bytes_read"],
        memory_bytes=plan.summary["memory"],
        files=len(plan.files),
        there_bytes=_already_written(plan.place.staging),
        verb="This merge",
    )
    tight = preflight.check(need)
    plan.findings += tight
    plan.summary["findings"] += [f.brief() for f in tight]


def _already_written(folder: Path) -> int:
    """Bytes that an unfinished run of the same output takes already."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(base, name)).st_blocks * 512
    return total
