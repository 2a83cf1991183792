"""`*_model_states.pt`: names, shapes, buffers, frozen weights and aliases, and at stages 0 to 2 the weights themselves.

The keys were read from files of DeepSpeed 0.3.16 to 0.19.8.  `param_shapes` stands here from 0.7 on, before that in the
optimizer files.  The user's client state is merged into the same dict: any other key, with any value, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardyard.formats.deepspeed.flat import Shape, layout_error
from shardyard.formats.deepspeed.state_dicts import read_state_dict
from shardyard.formats.pickles import integers, lookup, pairs, sequence
from shardyard.formats.torch.file import TorchFile
from shardyard.formats.torch.tensors import TensorValue
from shardyard.text import printable

Shapes = dict[str, Shape]
MOST_RANKS = 1 << 16
"""More than any run has; files that claim more are not believed."""


@dataclass(slots=True)
class ModelFile:
    """A model file, read."""

    file: TorchFile
    name: str
    module: dict[str, TensorValue]
    """The state dict in module order: real weights at stages 0 to 2, placeholders and buffers at stage 3."""
    odd: dict[str, str]
    """Names in it that are no plain tensors, with what they are."""
    module_stored: bool
    """False for pipelines, whose weights are in layer files."""
    modules: tuple[str, ...]
    """Paths of all modules, those without tensors included, as torch records them beside the state dict."""
    buffers: tuple[str, ...] | None
    """None: the version does not record them."""
    shapes: list[Shapes] | None
    """One dict an optimizer group (stages 1, 2) or sub group (stage 3), in the order of the flat vectors."""
    frozen_recorded: bool
    """Whether the version writes `frozen_param_shapes`, be it None."""
    frozen: Shapes | None
    fragments: dict[str, TensorValue]
    shared: dict[str, str] | None
    """Alias to owner. None: the version does not record them."""
    settings: Settings
    optimizer: object
    """The whole optimizer's state, at stage 0."""
    extra: dict[str, object] = field(default_factory=dict)
    """All other keys: the user's client state among them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers that a model file records; None where it does not."""

    version: str | None
    step: int | None
    data_ranks: int | None
    model_ranks: int | None
    pipeline_stages: int | None
    tensor_ranks: int | None
    stage: int | None
    """By the run's config."""
    round_robin: bool
    bf16: bool
    mics: int
    """`mics_shard_size`: above 0, parameters were cut over groups of so many ranks."""
    experts: tuple[int, ...]
    auto_experts: bool
    """AutoEP replaced the model's experts by its own layers."""


_READ = {
    "module",
    "buffer_names",
    "param_shapes",
    "frozen_param_shapes",
    "frozen_param_fragments",
    "shared_params",
    "optimizer",
    "ds_version",
    "global_steps",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "num_experts",
    "ds_autoep_layers",
    "autoep_layers",
}


def read_model_file(file: TorchFile) -> ModelFile:
    """Take a model file apart.

    Raises:
        DamagedError: it is no model file, or a layout key is not what it should be.
    """
    name = file.path.rsplit("/", 1)[-1]
    root = _top(file, name)
    module = read_state_dict(root.get("module"), file)
    buffers = sequence(root.get("buffer_names"))
    return ModelFile(
        file,
        name,
        module.tensors,
        module.odd,
        module.stored,
        module.modules,
        tuple(b for b in buffers if isinstance(b, str)) if buffers is not None else None,
        shape_groups(root.get("param_shapes"), file),
        "frozen_param_shapes" in root,
        _shapes(root["frozen_param_shapes"], file) if root.get("frozen_param_shapes") is not None else None,
        read_state_dict(root.get("frozen_param_fragments"), file).tensors,
        _shared(root.get("shared_params"), file),
        _settings(root),
        root.get("optimizer"),
        {k: v for k, v in root.items() if k not in _READ},
    )


def _top(file: TorchFile, name: str) -> dict[str, object]:
    found = pairs(file.root)
    if found is None:
        raise layout_error(f"{printable(name)} is no model file of DeepSpeed: it holds no dict.", file.path)
    return {k: v for k, v in found if isinstance(k, str)}


def shape_groups(value: object, file: TorchFile) -> list[Shapes] | None:
    """`param_shapes`: a list of dicts, or before 0.5 one dict over all groups; None if there is none."""
    if value is None:
        return None
    if pairs(value) is not None:
        return [_shapes(value, file)]
    return [_shapes(group, file) for group in _list(value, "param_shapes", file)]


def single_dict(value: object) -> bool:
    """Whether `param_shapes` is one dict over all groups, which does not tell which group a parameter is in."""
    return pairs(value) is not None


def _list(value: object, what: str, file: TorchFile) -> list[object]:
    if not isinstance(value, (list, tuple)):
        raise layout_error(f"{printable(file.path.rsplit('/', 1)[-1])}: {what} is not a list.", file.path)
    return list(value)


def _shapes(value: object, file: TorchFile) -> Shapes:
    found: Shapes = {}
    items = pairs(value)
    if items is None:
        raise layout_error(f"{printable(file.path.rsplit('/', 1)[-1])}: param_shapes holds something that is no dict.", file.path)
    for name, shape in items:
        sizes = integers(shape)
        if not isinstance(name, str) or sizes is None or min(sizes, default=0) < 0 or name in found:
            where = printable(file.path.rsplit("/", 1)[-1])
            raise layout_error(f"{where}: the shape of {printable(str(name), 80)} is not one list of numbers.", file.path)
        found[name] = sizes
    return found


def _shared(value: object, file: TorchFile) -> dict[str, str] | None:
    if value is None:
        return None
    found: dict[str, str] = {}
    for alias, owner in pairs(value) or ():
        if not isinstance(alias, str) or not isinstance(owner, str):
            raise layout_error(
                f"{printable(file.path.rsplit('/', 1)[-1])}: shared_params holds something that is no name.", file.path
            )
        found[alias] = owner
    return found


def _settings(root: Mapping[str, object]) -> Settings:
    config = root.get("ds_config")
    zero = lookup(config, "zero_optimization")
    dims = root.get("checkpoint_parallel_dimensions")
    version = root.get("ds_version")
    return Settings(
        version if isinstance(version, str) else None,
        _number(root.get("global_steps"), 1 << 60),
        _number(root.get("dp_world_size")),
        _number(root.get("mp_world_size")),
        _number(lookup(dims, "pp_degree")),
        _number(lookup(dims, "tp_degree")),
        _number(lookup(zero, "stage")),
        lookup(zero, "round_robin_gradients") is True,
        lookup(lookup(config, "bf16") or lookup(config, "bfloat16"), "enabled") is True,
        _number(lookup(zero, "mics_shard_size")) or 0,
        tuple(n for n in integers(root.get("num_experts")) or () if 0 < n <= MOST_RANKS),
        any(root.get(key) is not None for key in ("ds_autoep_layers", "autoep_layers")),
    )


def _number(value: object, most: int = MOST_RANKS) -> int | None:
    """A count that can be meant; what a file claims is never a loop's length unchecked."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
