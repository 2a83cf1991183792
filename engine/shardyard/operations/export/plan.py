"""Export: a merge into a folder that a model loader opens as it is, in the precision that config.json names.

The plan is a merge's plan with other defaults and with side files; nothing else differs, so everything that holds for a merge
(nothing under a final name before it is whole, resume, checks) holds here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shardyard.checkpoint import Checkpoint, Role
from shardyard.discover import open_checkpoint
from shardyard.errors import CheckpointError, UsageError
from shardyard.formats import declared_ties, model_config
from shardyard.formats.candidate import OpenOptions
from shardyard.operations.export import files
from shardyard.operations.merge import selection
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.plan import Plan
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.place import Place
from shardyard.text import printable

ALWAYS_KEPT = "*e_score_correction_bias"
"""Routing biases of mixture-of-experts models lose what they are for in 16 bits."""
_CONFIG_DTYPES = ("float32", "bfloat16", "float16")
_MOST_LISTED = 5


def plan_export(
    sources: Sequence[str | os.PathLike[str]] | Checkpoint,
    out: str | os.PathLike[str],
    options: MergeOptions | None = None,
    *,
    resuming: bool = False,
) -> Plan:
    """Plan an export. No byte of tensor data is read.

    Raises:
        ShardyardError: as `plan_merge`; and there is no config.json, or the base model named with `--like` differs.
    """
    options = options or MergeOptions()
    if Place.of(out).single:
        raise UsageError("An export is a folder; give a name without .safetensors, .bin, .pt or .pth, or use merge.")
    checkpoint = sources if isinstance(sources, Checkpoint) else _open(sources, options)
    like = Path(options.like) if options.like is not None else None
    contents, origins = files.collect(files.side_folders(checkpoint, like))
    config = _use_config(checkpoint, contents, origins)
    settled = _defaults(checkpoint, config, options)
    if like is not None:
        _check_like(checkpoint, settled, like)
    plan = plan_merge(checkpoint, out, settled, side_files=contents, resuming=resuming)
    written = files.main_dtype(_bytes_by_dtype(plan))
    if written is not None and not model_config.quantised(config):
        changed = files.with_dtype(contents[files.CONFIG], written)
        if changed != contents[files.CONFIG]:
            contents[files.CONFIG] = changed
            plan = plan_merge(checkpoint, out, settled, side_files=contents, resuming=resuming)
    _describe(plan, origins, written, config)
    return plan


def _open(sources: Sequence[str | os.PathLike[str]], options: MergeOptions) -> Checkpoint:
    return open_checkpoint([Path(s) for s in sources], OpenOptions(tag=options.tag, part=options.part))


def _use_config(checkpoint: Checkpoint, contents: Mapping[str, bytes], origins: Mapping[str, Path]) -> Mapping[str, object]:
    """The config that will be written is the one that decides ties and dtype."""
    from shardyard.formats.folder import Folder

    config = model_config.read_config(Folder(origins[files.CONFIG]))
    if config is None:
        raise UsageError(
            f"config.json in {printable(str(origins[files.CONFIG]))} is no JSON object; mend it, or name a base model "
            "with --like.",
            path=str(origins[files.CONFIG]),
        )
    checkpoint.config = config
    checkpoint.config_folder = origins[files.CONFIG]
    return config


def _defaults(checkpoint: Checkpoint, config: Mapping[str, object], options: MergeOptions) -> MergeOptions:
    """The options with an export's own defaults where nothing was asked for."""
    changes: dict[str, object] = {}
    if options.dtype is None:
        named = model_config.dtype(config)
        quantised = model_config.quantised(config)
        changes["dtype"] = named if named in _CONFIG_DTYPES and not quantised else "keep"
    if not options.keep_dtype:
        part = selection.choose_part(checkpoint, options.part)
        buffers = [name for name, tensor in part.tensors.items() if tensor.role is Role.BUFFER]
        changes["keep_dtype"] = (ALWAYS_KEPT, *(_literal(name) for name in buffers))
    if options.lora is None:
        changes["lora"] = "split"
    return options.but(**changes) if changes else options


def _literal(name: str) -> str:
    """A glob that matches this name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _bytes_by_dtype(plan: Plan) -> dict[str, int]:
    found: Counter[str] = Counter()
    for file in plan.files:
        for written in file.tensors:
            found[written.dtype.name] += written.nbytes
    return dict(found)


def _check_like(checkpoint: Checkpoint, options: MergeOptions, like: Path) -> None:
    """Compare names and shapes with the base model's headers.

    Raises:
        CheckpointError: they differ; the sentence lists how.
    """
    base = open_checkpoint([like], OpenOptions())
    chosen = selection.select(checkpoint, options)
    ours = {chosen.names[old]: tensor.shape for old, tensor in chosen.tensors.items()}
    theirs = {name: tensor.shape for name, tensor in base.tensors.items()}
    # A tie may be stored under either name, or under both.
    restored = {n for names in (ours, theirs) for group in declared_ties.declared_ties(checkpoint.config, names) for n in group}
    restored |= _heads_that_follow(checkpoint.config, {**theirs, **ours})
    missing = sorted(theirs.keys() - ours.keys() - restored)
    extra = sorted(ours.keys() - theirs.keys() - restored)
    shapes = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    told = [
        f"{what} {', '.join(printable(n, 100) for n in names[:_MOST_LISTED])}"
        + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")
        for what, names in (("it lacks", missing), ("it has besides", extra), ("of another shape are", shapes))
        if names
    ]
    if told:
        raise CheckpointError(
            f"The weights are not those of a model like {printable(str(like))}: {'; '.join(told)}.",
            code="differs-from-base",
            path=str(like),
            tensors=[*missing, *extra, *shapes],
        )


def _heads_that_follow(config: Mapping[str, object] | None, shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Names that a tied config makes one tensor, counted over both models' names."""
    return {name for group in declared_ties.declared_ties(config, shapes) for name in group}


def _describe(plan: Plan, origins: Mapping[str, Path], written: str | None, config: Mapping[str, object]) -> None:
    """What the plan dialog and `--dry-run` say in two lines, and how to load the result."""
    dropped = sorted(plan.tied)
    kept = [name for name in plan.selection.tensors if any(fnmatchcase(name, glob) for glob in plan.options.keep_dtype)]
    casts = ", ".join(f"{n} tensors {a} to {b}" for (a, b), n in sorted(plan.casts.items())) or "nothing"
    first = f"casts {casts}"
    if kept and plan.casts:
        first += f"; keeps {len(kept)} as stored"
    if dropped:
        first += f"; stores {len(dropped)} tied name{'s' if len(dropped) > 1 else ''} once, under its owner"
    names = ", ".join(sorted(origins)) or "none"
    plan.summary["verb"] = "export"
    plan.summary["side_files"] = {name: str(path) for name, path in sorted(origins.items())}
    plan.summary["config_dtype"] = written
    plan.summary["notes"] = [first, f"copies {names}", *_hints(plan, config)]
    plan.summary["load"] = load_snippet(plan.out, config)


def load_snippet(out: Path, config: Mapping[str, object]) -> list[str]:
    """Three lines of Python that load the result."""
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures and isinstance(architectures[0], str) else ""
    name = named if named.isidentifier() else "AutoModel"
    return [
        f"from transformers import {name}",
        f"model = {name}.from_pretrained({str(out)!r})",
        "model.eval()",
    ]


_EXPECTED = {
    "llama": "model.embed_tokens.weight",
    "mistral": "model.embed_tokens.weight",
    "mixtral": "model.embed_tokens.weight",
    "qwen2": "model.embed_tokens.weight",
    "qwen3": "model.embed_tokens.weight",
    "gemma": "model.embed_tokens.weight",
    "gemma2": "model.embed_tokens.weight",
    "gpt2": "wte.weight",
    "t5": "shared.weight",
    "gpt_neox": "gpt_neox.embed_in.weight",
}
"""A name that models of a type usually hold; a hint only, since heads and wrappers vary."""


def _hints(plan: Plan, config: Mapping[str, object]) -> list[str]:
    kind = config.get("model_type")
    expected = _EXPECTED.get(kind) if isinstance(kind, str) else None
    names = {plan.selection.names[old] for old in plan.selection.tensors}
    if expected is None or any(declared_ties.ends_with(name, expected) for name in names):
        return []
    return [f"a {kind} model usually has {expected}, and these names do not: a loader may not find them (--strip-prefix, --like)"]
