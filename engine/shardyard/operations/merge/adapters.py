"""LoRA weights among a model's: kept as they are, split off into an adapter of their own, or folded into the weights.

Folding adds scale * B * A to the stored weight in float32.  The scale needs the adapter's alpha, which is in no tensor: it comes
from adapter_config.json or the trainer's own note, and is never invented.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import UnsupportedError, UsageError
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import read_json
from shardyard.text import printable

CONFIG = "adapter_config.json"
NOTE = "lora_train_meta.json"
"""What verl writes beside its rank files: r and alpha."""
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<which>[AB])(?:\.(?P<adapter>[^.]+))?(?P<end>\.weight)?")
_OTHER = re.compile(r"\.lora_(?:magnitude_vector|dropout|variant)|\.lora_[AB](?:\.[^.]+)?\.bias$|\.(?:ia3_l|oft_|hada_|vera_)")
_SAVED = re.compile(r"(?P<module>.+)\.modules_to_save\.(?P<adapter>[^.]+)\.(?P<rest>.+)")
_HEAD = "base_model.model."
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Fold:
    """What is added to a weight: scale * B * A, transposed for embeddings and Conv1D weights."""

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool


@dataclass(slots=True)
class Pair:
    """The two matrices of one module."""

    module: str
    """As the model calls it, without the wrapper's parts."""
    embedding: bool
    names: dict[str, str] = field(default_factory=dict)
    """`A` and `B` to stored names."""


@dataclass(slots=True)
class Split:
    """What `--lora split` or `fold` makes of a selection."""

    base: dict[str, str]
    """Stored names to output names of the base model."""
    folds: dict[str, Fold] = field(default_factory=dict)
    """By stored name of the weight that is changed."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Adapter folders (`adapter`, `adapter/NAME`) to stored names and the names that PEFT saves them under."""
    configs: dict[str, bytes] = field(default_factory=dict)
    """Their adapter_config.json, where alpha is known."""


@dataclass(slots=True)
class Adapters:
    """How a set of names falls apart into a base model and adapters."""

    base: dict[str, str]
    """Stored names to the base model's names."""
    pairs: dict[str, list[Pair]]
    """By adapter name."""
    saved: dict[str, dict[str, str]]
    """By adapter name: stored names of whole modules that were trained, to the base model's names."""
    other: list[str]
    """Stored names that belong to adapters in a way that is not understood."""

    @property
    def any(self) -> bool:
        return bool(self.pairs or self.saved or self.other)


def sort_out(names: Iterable[str]) -> Adapters:
    """Tell base weights from adapters by PEFT's names."""
    names = list(names)
    found = Adapters({}, {}, {}, [])
    pairs: dict[tuple[str, str, bool], Pair] = {}
    for name in names:
        matrix, saved = _MATRIX.fullmatch(name), _SAVED.fullmatch(name)
        if matrix is not None:
            adapter = matrix["adapter"] or DEFAULT
            key = adapter, _clean(matrix["module"]), bool(matrix["embedding"])
            pair = pairs.setdefault(key, Pair(key[1], key[2]))
            pair.names[matrix["which"]] = name
        elif saved is not None:
            found.saved.setdefault(saved["adapter"], {})[name] = f"{_clean(saved['module'])}.{saved['rest']}"
        elif _OTHER.search(name):
            found.other.append(name)
        else:
            found.base[name] = name
    for (adapter, _, _), pair in pairs.items():
        found.pairs.setdefault(adapter, []).append(pair)
    if found.any:
        found.base = {name: _clean(name) for name in found.base}
    return found


def _clean(name: str) -> str:
    """The base model's name: without PEFT's head and wrapper parts."""
    parts = name.removeprefix(_HEAD).split(".")
    return ".".join(p for p in parts if p not in ("base_layer", "original_module"))


def split(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], names: Mapping[str, str], how: str) -> Split | None:
    """Take the LoRA weights out of a selection, by splitting them off or folding them in; None if there are none.

    Raises:
        UsageError: there is nothing to fold, or no base model.
        UnsupportedError: the adapter cannot be folded.
    """
    stored = {names[old]: old for old in tensors}
    adapters = sort_out(stored)
    if not adapters.any:
        if how == "fold":
            raise UsageError("There are no LoRA weights to fold here.", path=str(checkpoint.path))
        return None
    if not adapters.base:
        raise UsageError(
            "This is an adapter alone. Keep it as it is with merge --lora keep, or fold it into its base model with "
            "--lora fold --like BASE.",
            path=str(checkpoint.path),
        )
    settings = read_settings(checkpoint)
    made = Split({stored[name]: new for name, new in adapters.base.items()})
    if how == "fold":
        by_name = {name: tensors[old] for name, old in stored.items()}
        base = {new: name for name, new in adapters.base.items()}
        found = folds_of(adapters, by_name, settings, checkpoint.path)
        made.folds = {stored[base[new]]: fold for new, fold in found.items()}
        for saved in adapters.saved.values():
            # A module that was trained whole takes the place of its original.
            for name, new in saved.items():
                if new in base:
                    made.base.pop(stored[base[new]], None)
                made.base[stored[name]] = new
        return made
    if adapters.other:
        raise UnsupportedError(
            f"{printable(adapters.other[0], 120)} belongs to an adapter of a kind that is not split off; use --lora keep.",
            code="lora-unmerged",
            path=str(checkpoint.path),
            tensors=adapters.other,
        )
    for which in sorted({*adapters.pairs, *adapters.saved}):
        folder = "adapter" if which == DEFAULT else f"adapter/{_file_name(which)}"
        made.files[folder] = {stored[name]: new for name, new in adapter_names(adapters, which).items()}
        config = adapter_config(settings, adapters, which)
        if config is not None and which == DEFAULT:
            made.configs[folder] = config
    return made


def _file_name(text: str) -> str:
    return re.sub(r"[^\w-]", "_", text)


def adapter_names(adapters: Adapters, which: str) -> dict[str, str]:
    """Stored names of one adapter to the names that PEFT saves them under."""
    found = {}
    for pair in adapters.pairs.get(which, ()):
        for letter, stored in pair.names.items():
            kind = "lora_embedding_" if pair.embedding else "lora_"
            end = "" if pair.embedding else ".weight"
            found[stored] = f"{_HEAD}{pair.module}.{kind}{letter}{end}"
    found.update({stored: _HEAD + name for stored, name in adapters.saved.get(which, {}).items()})
    return found


def read_settings(checkpoint: Checkpoint) -> Mapping[str, object]:
    """r, alpha and patterns, from adapter_config.json or the trainer's note; empty where there is neither."""
    start = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    places = [start, start / "lora_adapter", start / "adapter", start.parent]
    if checkpoint.config_folder is not None:
        places.append(checkpoint.config_folder)
    for place in places:
        for name in (CONFIG, NOTE):
            found = read_json(Folder(place), name) if (place / name).is_file() else None
            if isinstance(found, dict) and found.get("lora_alpha") is not None:
                return found
    return {}


def adapter_config(settings: Mapping[str, object], adapters: Adapters, which: str) -> bytes | None:
    """adapter_config.json for a split-off adapter: the source's own, or one made of what is known. None if alpha is not."""
    if "peft_type" in settings:
        return (json.dumps(settings, indent=2) + "\n").encode()
    if not settings:
        return None
    made = {
        "peft_type": "LORA",
        "task_type": settings.get("task_type"),
        "r": settings.get("r"),
        "lora_alpha": settings["lora_alpha"],
        "target_modules": sorted({pair.module.rpartition(".")[2] for pair in adapters.pairs.get(which, ())}),
        "bias": "none",
        "inference_mode": True,
        "base_model_name_or_path": None,
    }
    return (json.dumps(made, indent=2) + "\n").encode()


def folds_of(adapters: Adapters, tensors: Mapping[str, Tensor], settings: Mapping[str, object], path: Path) -> dict[str, Fold]:
    """What to add to which base weight, by the base model's names.

    Raises:
        UnsupportedError: alpha is not known, or a part of the adapter is not understood.
    """
    if adapters.other or settings.get("use_dora"):
        shown = printable(adapters.other[0], 120) if adapters.other else "use_dora in its settings"
        raise UnsupportedError(
            f"This adapter is more than LoRA ({shown}), which is not folded; use --lora split.",
            code="lora-unmerged",
            path=str(path),
            tensors=adapters.other,
        )
    names = sorted({*adapters.pairs, *adapters.saved})
    if len(names) > 1:
        raise UsageError(f"There are several adapters ({', '.join(map(printable, names))}); folding needs one. Use --lora split.")
    if adapters.pairs and not settings:
        raise UnsupportedError(
            f"The adapter's alpha is not known: there is no {CONFIG} or {NOTE} with lora_alpha beside the checkpoint. "
            "Put it there, or use --lora split.",
            code="lora-unmerged",
            path=str(path),
        )
    base = {new: old for old, new in adapters.base.items()}
    found: dict[str, Fold] = {}
    for pair in adapters.pairs.get(names[0] if names else DEFAULT, ()):
        target = f"{pair.module}.weight"
        a, b = (tensors.get(pair.names.get(letter, "")) for letter in "AB")
        weight = tensors.get(base.get(target, ""))
        if a is None or b is None or weight is None:
            raise UnsupportedError(
                f"The LoRA weights of {printable(pair.module, 120)} cannot be folded: one of the two matrices, or the weight "
                "that they change, is not here. Use --lora split, or name the base model with --like.",
                code="lora-unmerged",
                path=str(path),
                tensors=[pair.module],
            )
        found[target] = _fold(pair, a, b, weight, settings, path)
    return found


def _fold(pair: Pair, a: Tensor, b: Tensor, weight: Tensor, settings: Mapping[str, object], path: Path) -> Fold:
    ranks = {*a.shape[:1], *b.shape[1:2]}
    transposed = pair.embedding or bool(settings.get("fan_in_fan_out"))
    shape = (a.shape[1], b.shape[0]) if transposed and len(a.shape) == len(b.shape) == 2 else (*b.shape[:1], *a.shape[1:])
    floats = all(t.dtype.castable for t in (a, b, weight))
    if len(a.shape) != 2 or len(b.shape) != 2 or len(ranks) != 1 or shape != weight.shape or not floats:
        raise UnsupportedError(
            f"The LoRA weights of {printable(pair.module, 120)} ({list(b.shape)} times {list(a.shape)}) do not fit its weight "
            f"({list(weight.shape)}), or are of a kind that is not folded; use --lora split.",
            code="lora-unmerged",
            path=str(path),
            tensors=[pair.module],
        )
    rank = _by_pattern(settings, "rank_pattern", pair.module, settings.get("r"))
    if rank is not None and int(rank) != a.shape[0]:
        raise UnsupportedError(
            f"{printable(pair.module, 120)} has rank {a.shape[0]}, its settings say {rank:g}: they are of another adapter.",
            code="lora-unmerged",
            path=str(path),
        )
    alpha = _by_pattern(settings, "alpha_pattern", pair.module, settings["lora_alpha"])
    if alpha is None:
        raise UnsupportedError("lora_alpha in the adapter's settings is no number.", code="lora-unmerged", path=str(path))
    scale = alpha / (math.sqrt(a.shape[0]) if settings.get("use_rslora") else a.shape[0])
    return Fold(a, b, scale, transposed)


def _by_pattern(settings: Mapping[str, object], key: str, module: str, default: object) -> float | None:
    """A setting that may differ by module, as PEFT looks it up: a pattern is the end of a module's name."""
    patterns = settings.get(key)
    value = default
    if isinstance(patterns, dict):
        for pattern, given in patterns.items():
            if _matches(str(pattern), module):
                value = given
                break
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern means a module: the end of its name, as an expression in which a dot matches anything.

    Repetition is not honoured: an expression from a file must not be able to run for ever.
    """
    plain = pattern.removeprefix("^").removesuffix("$")
    if not re.fullmatch(r"[\w.\\-]+", plain):
        raise UnsupportedError(
            f"The adapter's settings choose ranks or alphas by the expression {printable(pattern, 80)}, which is not read; "
            "use --lora split.",
            code="lora-unmerged",
        )
    return re.fullmatch(rf"(?:.*\.)?(?:{plain})", module) is not None
