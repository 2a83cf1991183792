"""ZeRO folders of any shape, written without torch, with the answers: the model of how DeepSpeed lays out its files.

Written from the format's description and not from the reader: whole vectors are built with numpy and cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.torch.writer import Storage, instance, ordered_dict, size, tensor, write_torch
from support.truth import Answer

Shape = tuple[int, ...]
FLOAT, BF16, INT = BY_NAME["float32"], BY_NAME["bfloat16"], BY_NAME["int64"]


def dictionary(items: Iterable[tuple[object, object]] = (), **fields: object) -> Dict:
    """A plain dict of a pickle."""
    made = Dict()
    made.pairs.extend([*items, *fields.items()])
    return made


@dataclass
class ZeroRun:
    """A run that saves one step."""

    stage: int
    world: int
    groups: list[dict[str, Shape]]
    """Trainable weights by optimizer group, in the order of the flat vectors."""
    frozen: dict[str, Shape] = field(default_factory=dict)
    buffers: dict[str, Shape] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    alignment: int = 0
    """Stages 1 and 2: each parameter begins at a multiple of so many elements."""
    sub_groups: list[list[str]] | None = None
    """Stage 3: names by sub group, where a group is split."""
    keeps_padding: bool = False
    """BF16_Optimizer: no `zero_stage`, padding stays."""
    last_padding_only: bool = False
    """Up to 0.10: only the last rank knows of padding."""
    stores_padding: bool = True
    shapes_in_optimizer: bool = False
    records_shared: bool = True
    intervals: int = 0
    """Stage 1 of 0.3.16: communication intervals, each cut over all ranks."""
    module_order: list[str] | None = None
    """The order of names under `module`, where it is not that of the groups."""
    prefix: str = "bf16_"
    seed: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    """Further keys of the model file."""
    optimizer_keys: dict[str, object] = field(default_factory=dict)
    """Further keys of the optimizer state."""

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.values = {n: random.standard_normal(s).astype(np.float32) for g in self.groups for n, s in g.items()}
        self.frozen_values = {n: random.standard_normal(s).astype(ml_dtypes.bfloat16) for n, s in self.frozen.items()}
        self.buffer_values = {n: random.integers(0, 1 << 40, s) for n, s in self.buffers.items()}

    def answers(self) -> dict[str, Answer]:
        """What a merge must write."""
        found = {n: Answer("F32", v.shape, v.tobytes()) for n, v in self.values.items()}
        found |= {n: Answer("BF16", v.shape, v.tobytes()) for n, v in self.frozen_values.items()}
        found |= {n: Answer("I64", v.shape, v.tobytes()) for n, v in self.buffer_values.items()}
        return found | {a: found[o] for a, o in self.aliases.items()}

    def write(self, folder: Path, step: int = 7, model_rank: int = 0) -> Path:
        """Write the root, or a further model rank's files into it; returns the step folder."""
        tag = folder / f"global_step{step}"
        tag.mkdir(parents=True, exist_ok=True)
        (folder / "latest").write_text(tag.name)
        parts = self._columns() if self.stage == 3 else self._partitions()
        for rank in range(self.world):
            name = f"{self.prefix}zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt"
            write_torch(tag / name, self._optimizer_file([p[rank] for p in parts], rank))
            if self.stage == 3:
                name = f"zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_model_states.pt"
                write_torch(tag / name, self._model_file(rank, step))
        if self.stage < 3:
            write_torch(tag / f"mp_rank_{model_rank:02d}_model_states.pt", self._model_file(0, step))
        return tag

    def gaps(self, group: dict[str, Shape]) -> list[int]:
        """Elements left free after each parameter."""
        found, position = [], 0
        for index, shape in enumerate(group.values()):
            position += math.prod(shape)
            gap = -position % self.alignment if self.alignment and index + 1 < len(group) else 0
            position += gap
            found.append(gap)
        return found

    def joined(self, group: dict[str, Shape], dtype: object = np.float32) -> np.ndarray:
        """The group's vector with its gaps, padded to a multiple of twice the world."""
        pieces = []
        for name, gap in zip(group, self.gaps(group), strict=True):
            pieces += [self.values[name].reshape(-1), np.full(gap, np.float32(-9.0))]
        whole = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        return np.concatenate([whole, np.zeros(-len(whole) % (2 * self.world), np.float32)]).astype(dtype)

    def unpadded(self, group: dict[str, Shape]) -> int:
        return sum(math.prod(s) for s in group.values()) + sum(self.gaps(group))

    def paddings(self, group: dict[str, Shape]) -> list[int]:
        """Each rank's padding."""
        total, per = self.unpadded(group), len(self.joined(group)) // self.world
        if self.last_padding_only:
            return [0] * (self.world - 1) + [per * self.world - total]
        return [per - min(max(total - r * per, 0), per) for r in range(self.world)]

    def _partitions(self) -> list[list[np.ndarray]]:
        found = []
        for group in self.groups:
            cut = np.split(self.joined(group), self.world)
            if not self.keeps_padding:
                # A slice as DeepSpeed takes it: where a padding exceeds the partition its end counts from behind.
                cut = [c[: len(c) - p] for c, p in zip(cut, self.paddings(group), strict=True)]
            found.append(cut)
        return found

    def _sub_groups(self) -> list[dict[str, Shape]]:
        if self.sub_groups is None:
            return self.groups
        shapes = {n: s for g in self.groups for n, s in g.items()}
        return [{n: shapes[n] for n in names} for names in self.sub_groups]

    def _columns(self) -> list[list[np.ndarray]]:
        found = []
        for group in self._sub_groups():
            ranks = [[cut(self.values[name], self.world)[r] for name in group] for r in range(self.world)]
            found.append([np.concatenate(r) if r else np.zeros(0, np.float32) for r in ranks])
        return found

    def _shapes(self) -> list[object]:
        return [ordered_dict((n, size(s)) for n, s in g.items()) for g in self._sub_groups()]

    def _optimizer_file(self, vectors: Sequence[np.ndarray], rank: int) -> Dict:
        flats = [flat(v) for v in vectors]
        moments = dictionary(
            (i, dictionary(step=3, exp_avg=flat(v * 0 + 1), exp_avg_sq=flat(v * 0 + 2))) for i, v in enumerate(vectors)
        )
        base = dictionary(state=moments, param_groups=[dictionary(params=[i]) for i in range(len(self.groups))])
        stage = Call("REDUCE", Global("deepspeed.runtime.zero.config", "ZeroStageEnum"), (self.stage,))
        state = dictionary(overflow=False)
        if not self.keeps_padding:
            state.pairs.append(("zero_stage", stage))
        if self.intervals:
            pieces = [[flat(v) for v in np.array_split(vector, self.intervals)] for vector in vectors]
            fields = {"partition_count": self.world, "local_sub_partitions_of_fp32_groups": pieces}
            fields |= {"num_comm_intervals_per_group": [self.intervals] * len(vectors)}
        elif self.stage == 3:
            fields = {"partition_count": self.world, "optimizer_state_dict": base, "fp32_flat_groups": flats}
        else:
            fields = {"partition_count": [self.world] * len(self.groups), "base_optimizer_state": base}
            fields |= {"single_partition_of_fp32_groups": flats}
            if self.stores_padding:
                fields["group_paddings"] = [self.paddings(g)[rank] for g in self.groups]
            if self.alignment:
                fields["param_alignment_paddings"] = [self.gaps(g) for g in self.groups]
        state.pairs += [*fields.items(), *self.optimizer_keys.items()]
        root = dictionary(optimizer_state_dict=state)
        if self.shapes_in_optimizer:
            root.pairs.append(("param_shapes", self._shapes()))
        return root

    def _model_file(self, rank: int, step: int) -> Dict:
        module = [*self._weights(), *((n, whole(v)) for n, v in self.buffer_values.items())]
        owners = dict(module)
        module += [(alias, owners[owner]) for alias, owner in self.aliases.items()]
        fields: dict[str, object] = {"module": ordered_dict(module), "buffer_names": list(self.buffers)}
        if not self.shapes_in_optimizer:
            fields["param_shapes"] = self._shapes()
        if self.stage >= 2:
            fields["frozen_param_shapes"] = ordered_dict((n, size(s)) for n, s in self.frozen.items())
            fields["frozen_param_fragments"] = ordered_dict(
                (n, flat(cut(v, self.world)[rank]) if self.stage == 3 else owners[n]) for n, v in self.frozen_values.items()
            )
        if self.records_shared:
            fields["shared_params"] = dictionary(self.aliases.items() if rank == 0 else ())
        fields |= {"global_steps": step, "dp_world_size": self.world, "mp_world_size": 1}
        config = dictionary(zero_optimization=dictionary(stage=self.stage), bf16=dictionary(enabled=self.prefix == "bf16_"))
        fields |= {"ds_config": config, "ds_version": "0.19.8"}
        return dictionary((fields | self.settings).items())

    def _weights(self) -> list[tuple[str, object]]:
        """Under `module`: views of one 16-bit vector a group, or at stage 3 placeholders."""
        if self.stage == 3:
            names = [*self.values, *self.frozen]
            return [(n, tensor(Storage(BF16, b""), (0,))) for n in names]
        found: list[tuple[str, object]] = []
        for group in self.groups:
            storage, position = Storage(BF16, self.joined(group, ml_dtypes.bfloat16).tobytes()), 0
            for (name, shape), gap in zip(group.items(), self.gaps(group), strict=True):
                found.append((name, tensor(storage, shape, position)))
                position += math.prod(shape) + gap
        found += [(n, whole(v)) for n, v in self.frozen_values.items()]
        return found if self.module_order is None else [(n, dict(found)[n]) for n in self.module_order]


def cut(values: np.ndarray, world: int) -> list[np.ndarray]:
    """Stage 3's equal parts of one parameter, zero-padded at the tail."""
    row = values.reshape(-1)
    per = -(-len(row) // world)
    return list(np.concatenate([row, np.zeros(per * world - len(row), row.dtype)]).reshape(world, per))


def flat(values: np.ndarray) -> Call:
    """A one-dimensional tensor with a storage of its own."""
    return whole(values.reshape(-1))


def whole(values: np.ndarray) -> Call:
    """A tensor with a storage of its own."""
    dtype = {"float32": FLOAT, "bfloat16": BF16, "int64": INT, "float16": BY_NAME["float16"]}[values.dtype.name]
    return tensor(Storage(dtype, values.tobytes()), values.shape)


def scaler() -> Call:
    """An object of a foreign class, as client state often has it."""
    return instance("deepspeed.runtime.fp16.loss_scaler", "LossScaler", dictionary(cur_scale=1.0))
