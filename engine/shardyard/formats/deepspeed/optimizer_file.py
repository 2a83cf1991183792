"""`*_optim_states.pt`: one data rank's part of the fp32 masters, and the optimizer's moments, which stay unread.

Keys by version: 0.3.16 writes ints where later ones write enums and lists, and at stage 1
`local_sub_partitions_of_fp32_groups` (one piece a communication interval); up to 0.5 `param_shapes` stands here; `group_paddings`
came with 0.6, `param_alignment_paddings` with 0.19.7.  BF16_Optimizer writes no `zero_stage` and keeps its padding.
A key that is not known and sounds like a matter of layout is refused: a reader of 0.19.6 that did not know
`param_alignment_paddings` shifted every later parameter without a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardyard.formats.deepspeed.flat import FlatVector, flat_vector, layout_error
from shardyard.formats.deepspeed.model_file import MOST_RANKS, Shapes, shape_groups, single_dict
from shardyard.formats.pickles import Call, integers, lookup, pairs, sequence
from shardyard.formats.torch.file import TorchFile
from shardyard.text import printable


@dataclass(slots=True)
class OptimizerFile:
    """One rank's optimizer file, read; of its tensors only the masters are kept."""

    path: str
    name: str
    stage: int
    """1, 2 or 3, as far as the file tells: 0.5.10 says 2 at stage 1."""
    world: int
    """Data ranks that it says took part: the largest partition count."""
    counts: tuple[int, ...]
    """Partition count of each group; fewer for experts, whose data parallelism is smaller."""
    groups: list[list[FlatVector]]
    """For each group this rank's pieces: one, or one a communication interval (0.3.16, stage 1)."""
    paddings: tuple[int, ...] | None
    gaps: list[tuple[int, ...]] | None
    """Elements left free after each parameter of each group (`parameter_alignment`)."""
    keeps_padding: bool
    experts: frozenset[int]
    """Groups of expert parameters."""
    base_groups: int | None
    """Parameter groups of the torch optimizer inside."""
    shapes: list[Shapes] | None
    """`param_shapes`, where this version keeps it here."""
    single_dict: bool
    """That it is one dict over all groups."""
    partition_groups: bool
    """Whether AutoEP cut groups over other ranks than all data ranks."""

    tensors_nbytes: int
    """Bytes of all tensors in the file, moments included."""
    named: bool
    """Whether the archive inside bears the name of the file that was saved."""

    @property
    def masters_nbytes(self) -> int:
        return sum(v.numel * v.dtype.itemsize for pieces in self.groups for v in pieces)


_KNOWN = {
    "base_optimizer_state",
    "ds_zero_partition_groups",
    "fp32_flat_groups",
    "group_paddings",
    "local_sub_partitions_of_fp32_groups",
    "num_comm_intervals_per_group",
    "optimizer_state_dict",
    "param_alignment_paddings",
    "param_slice_mappings",
    "partition_count",
    "single_partition_of_fp32_groups",
    "universal_checkpoint_info",
    "zero_stage",
}
_LAYOUT = re.compile(
    r"pad|partition|slice|shape|align|order|shard|fragment|offset|mapping|layout|group|interval|stride|permut|chunk|split|robin"
    r"|fp32|fp16|bf16|bit16|flat|master"
)


def read_optimizer_file(file: TorchFile) -> OptimizerFile:
    """Take an optimizer file apart.

    Raises:
        DamagedError: it is no ZeRO optimizer file, or its layout is not known.
    """
    name = printable(file.path.rsplit("/", 1)[-1])
    state = lookup(file.root, "optimizer_state_dict")
    items = pairs(state)
    if items is None:
        raise layout_error(f"{name} is no optimizer file of ZeRO: it has no optimizer_state_dict.", file.path)
    fields = {k: v for k, v in items if isinstance(k, str)}
    unknown = sorted(k for k in fields if k not in _KNOWN and _LAYOUT.search(k.lower()))
    if unknown:
        raise layout_error(
            f"{name} has the key {printable(unknown[0], 60)}, which may change how weights are laid out and is not known here.",
            file.path,
        )
    groups = _groups(file, fields, name)
    stage = _stage(fields)
    if stage not in (None, 1, 2, 3) or (stage == 3) != ("fp32_flat_groups" in fields):
        raise layout_error(f"{name} says it is of ZeRO stage {stage} and holds the weights of another.", file.path)
    base_groups = sequence(lookup(_base_state(fields), "param_groups"))
    top_shapes = lookup(file.root, "param_shapes")
    counts = _counts(fields.get("partition_count"), len(groups), name, file)
    return OptimizerFile(
        file.path,
        file.path.rsplit("/", 1)[-1],
        stage or 1,
        max(counts, default=1),
        counts,
        groups,
        _paddings(fields, len(groups), name, file),
        _gaps(fields.get("param_alignment_paddings"), len(groups), name, file),
        stage is None,
        frozenset(i for i, g in enumerate(base_groups or ()) if lookup(g, "moe") is True),
        len(base_groups) if base_groups is not None else None,
        shape_groups(top_shapes, file),
        single_dict(top_shapes),
        fields.get("ds_zero_partition_groups") is not None,
        sum(record.nbytes for record in file.storages.values()),
        file.saved_as is not None,
    )


def _base_state(fields: dict[str, object]) -> object:
    return fields.get("optimizer_state_dict") or fields.get("base_optimizer_state")


def _stage(fields: dict[str, object]) -> int | None:
    """The stage: a plain int, or the one argument of an enum's call; None for BF16_Optimizer, which does not say."""
    value = fields.get("zero_stage")
    if isinstance(value, Call) and isinstance(value.args, tuple) and len(value.args) == 1:
        value = value.args[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None if value is None else -1


def _groups(file: TorchFile, fields: dict[str, object], name: str) -> list[list[FlatVector]]:
    for key in ("fp32_flat_groups", "single_partition_of_fp32_groups"):
        if key in fields:
            values = _list(fields[key], key, name, file)
            return [[_master(file, v, f"{key}[{i}]", name)] for i, v in enumerate(values)]
    key = "local_sub_partitions_of_fp32_groups"
    if key not in fields:
        raise layout_error(f"{name} holds no masters that are known here.", file.path)
    return [
        [_master(file, v, f"{key}[{i}][{j}]", name) for j, v in enumerate(_list(pieces, key, name, file))]
        for i, pieces in enumerate(_list(fields[key], key, name, file))
    ]


def _master(file: TorchFile, value: object, what: str, name: str) -> FlatVector:
    vector = flat_vector(file, value, what)
    if not vector.dtype.castable:
        raise layout_error(f"{name}: {what} holds {vector.dtype.name}, and masters are floats.", file.path)
    return vector


def _list(value: object, what: str, name: str, file: TorchFile) -> list[object]:
    items = sequence(value)
    if items is None:
        raise layout_error(f"{name}: {what} is not a list.", file.path)
    return items


def _counts(value: object, groups: int, name: str, file: TorchFile) -> tuple[int, ...]:
    counts = (value,) * groups if isinstance(value, int) and not isinstance(value, bool) else integers(value)
    if counts is None or len(counts) != groups or any(not 1 <= c <= MOST_RANKS for c in counts):
        raise layout_error(f"{name}: partition_count does not give one count for each of {groups} groups.", file.path)
    return counts


def _paddings(fields: dict[str, object], groups: int, name: str, file: TorchFile) -> tuple[int, ...] | None:
    value = fields.get("group_paddings", fields.get("groups_padding"))
    if value is None:
        return None
    paddings = integers(value)
    if paddings is None or len(paddings) != groups or min(paddings, default=0) < 0:
        raise layout_error(f"{name}: group_paddings does not give one count for each of {groups} groups.", file.path)
    return paddings


def _gaps(value: object, groups: int, name: str, file: TorchFile) -> list[tuple[int, ...]] | None:
    if value is None:
        return None
    found = [integers(g) for g in _list(value, "param_alignment_paddings", name, file)]
    gaps = [g for g in found if g is not None and min(g, default=0) >= 0]
    if len(gaps) != len(found) or len(gaps) != groups:
        raise layout_error(f"{name}: param_alignment_paddings does not give one list for each of {groups} groups.", file.path)
    return gaps
