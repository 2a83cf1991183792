"""What exactly is written: each tensor's output name and dtype, ties dropped or kept, and what a format cannot hold refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import Checkpoint, Composite, Tensor
from shardyard.dtypes import BY_NAME, DType
from shardyard.errors import CheckpointError, DamagedError, UnsupportedError
from shardyard.formats import model_config
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.selection import Selection
from shardyard.operations.merge.state_pickle import WHOLES
from shardyard.operations.merge.ties import tie_groups
from shardyard.operations.merge.written import Whole, Written
from shardyard.operations.names import matching
from shardyard.text import printable

MOST_NAMED = 5


@dataclass(slots=True)
class Contents:
    """The tensors of the output."""

    written: list[Written]
    """In module order; each once."""
    order: list[str]
    """All names of the output, aliases included, in module order."""
    tied: dict[str, str] = field(default_factory=dict)
    """Aliases to owners: names that are not written."""
    wholes: list[Whole] = field(default_factory=list)
    """Values of a torch file that are made of several tensors."""
    adapters: dict[str, list[Written]] = field(default_factory=dict)
    """Adapters that are split off, by folder."""
    adapter_configs: dict[str, bytes] = field(default_factory=dict)


def check_layout(tensor: Tensor, name: str) -> None:
    """Show that every byte of a tensor is written exactly once.

    Raises:
        DamagedError: it is not; the sentence names the tensor.
    """
    if tensor.layout is None:
        return
    try:
        tensor.layout.prove(tensor.nbytes)
    except DamagedError as error:
        sentence = f"{printable(name, 120)}: {error.message}"
        raise DamagedError(sentence, code=error.code, path=error.path, tensors=[name]) from error


def choose(checkpoint: Checkpoint, selection: Selection, options: MergeOptions, kind: str) -> Contents:
    """The output's tensors by `--dtype`, `--keep-dtype` and `--tied`, for a format.

    Raises:
        CheckpointError: the format cannot hold some of them, or a cast is not possible.
    """
    names, tensors = selection.names, selection.tensors
    held = _composites(checkpoint, selection, kind)
    exact = {part for c in held if c.kind == "quantised" for part in c.parts}
    tied: dict[str, str] = {}
    copies: dict[str, list[Tensor]] = {}
    if options.tied != "both":
        parts = {part for c in held for part in c.parts}
        for group in tie_groups(checkpoint, {n: t for n, t in tensors.items() if n not in parts}):
            # A torch file keeps every name, on one storage, so there a tie costs nothing.
            if not selection.folds.keys().isdisjoint((group.owner, *group.aliases)):
                raise UnsupportedError(
                    f"{_listed((group.owner, *group.aliases))} are tied, and LoRA changes one of them; write --tied both.",
                    code="lora-unmerged",
                    tensors=[group.owner, *group.aliases],
                )
            if options.tied == "once" or group.declared or kind == "torch":
                tied.update(dict.fromkeys(group.aliases, group.owner))
                copies.setdefault(group.owner, []).extend(tensors[n] for n in group.compare)
    target = _target(checkpoint, options)
    kept = matching([n for old in tensors for n in (old, names[old])], options.keep_dtype)
    written: list[Written] = []
    for old, tensor in tensors.items():
        if old not in tied:
            keep = target is None or not tensor.dtype.castable or not kept.isdisjoint((old, names[old])) or old in exact
            dtype = tensor.dtype if keep or target is None else target
            written.append(Written(names[old], tensor, dtype, tuple(copies.get(old, ())), selection.folds.get(old)))
    _refuse_unholdable(written, kind)
    new_tied = {names[alias]: names[owner] for alias, owner in tied.items()}
    adapters = {f: [Written(name, t, t.dtype) for name, t in taken] for f, taken in selection.adapters.items()}
    for taken in adapters.values():
        _refuse_unholdable(taken, "safetensors")
    order = [names[old] for old in tensors]
    return Contents(written, order, new_tied, _wholes(held, names, written), adapters, selection.adapter_configs)


def _target(checkpoint: Checkpoint, options: MergeOptions) -> DType | None:
    """The dtype to cast to; None to keep what is stored."""
    if options.dtype in (None, "keep"):
        return None
    method = model_config.quantised(checkpoint.config)
    if method:
        raise UnsupportedError(
            f"config.json says that the weights are quantised ({printable(method, 40)}); they can only be kept as they are "
            "(--dtype keep).",
            code="quantised",
            path=str(checkpoint.path),
        )
    return BY_NAME[str(options.dtype)]


def _composites(checkpoint: Checkpoint, selection: Selection, kind: str) -> list[Composite]:
    """The sparse, quantised and nested values that are merged: a torch file can hold most, a safetensors file none."""
    held = [c for c in checkpoint.composites if any(part in selection.tensors for part in c.parts)]
    bad = [c for c in held if kind != "torch" or c.kind not in WHOLES or not all(p in selection.tensors for p in c.parts)]
    if bad:
        kinds = ", ".join(sorted({c.kind for c in bad}))
        instead = ", or write --format torch" if kind != "torch" and all(c.kind in WHOLES for c in bad) else ""
        raise UnsupportedError(
            f"A {kind} file cannot hold {_listed(c.name for c in bad)} ({printable(kinds, 60)}); "
            f"leave them out with --exclude{instead}.",
            code="unsupported",
            path=str(checkpoint.path),
            tensors=[c.name for c in bad],
        )
    return held


def _wholes(held: list[Composite], names: Mapping[str, str], written: list[Written]) -> list[Whole]:
    by_name = {w.name: w for w in written}
    return [
        Whole(names[c.parts[0]].partition("::")[0], c.kind, tuple(by_name[names[p]] for p in c.parts), c.parameters) for c in held
    ]


def _refuse_unholdable(written: list[Written], kind: str) -> None:
    if kind == "safetensors":
        bad = [w for w in written if w.dtype.safetensors is None or not _valid(w.name)]
        hint = "leave them out with --exclude, or write --format torch"
    else:
        bad = [w for w in written if w.dtype.name not in BY_NAME or w.dtype.bits % 8]
        hint = "leave them out with --exclude"
    if bad:
        types = ", ".join(sorted({printable(w.dtype.name, 40) for w in bad}))
        raise UnsupportedError(
            f"A {kind} file cannot hold {_listed(w.name for w in bad)} ({types}); {hint}.",
            code="unsupported",
            tensors=[w.name for w in bad],
        )


def _valid(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name != "__metadata__"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(printable(n, 120) for n in every[:MOST_NAMED])
    return shown + (f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else "")


def overflow_error(counts: dict[str, int], dtype: str) -> CheckpointError:
    """What a cast that made finite values infinite ends with."""
    names = sorted(counts)
    return CheckpointError(
        f"{sum(counts.values())} finite values become infinite as {dtype}, in {_listed(names)}; nothing was written. "
        "Choose bfloat16 or float32, keep these with --keep-dtype, or add --allow-overflow.",
        code="overflow",
        tensors=names,
    )
