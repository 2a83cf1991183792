"""Which tensors of a torch file are a model, which an optimizer: the parts that can be merged alone.

A part is a dict of tensors (or a module) somewhere near the root, known by its path: `state_dict`, `model`, `app.model`, `ema`.
Names in a part do not have the part's own path.  There is a default only if exactly one part is a whole model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardyard.checkpoint import Role
from shardyard.formats.torch.names import Leaf, Names, Path
from shardyard.formats.torch.tensors import TensorValue

_OPTIMIZER = re.compile(r"(?:^|_)(?:optim|adam\w*)(?:$|_)|optimizer", re.IGNORECASE)
_MASTER = re.compile(r"master|fp32_(?:groups|params|weights)|single_partition_of_fp32", re.IGNORECASE)
_MODEL = re.compile(
    r"model|state_dict|module|network|weights|params|(?:^|_)(?:net|ema|actor|critic|policy|generator|discriminator|student|teacher)"
    r"(?:$|_)|^net[A-Z_]",
    re.IGNORECASE,
)
_LIKELY_SHARE = 20
"""A dict of tensors with less than a 20th of the largest one's bytes is no model of its own."""
ALL = "tensors"
OTHER = "other"


@dataclass(slots=True)
class Group:
    """A part and its leaves."""

    name: str
    path: Path
    role: Role
    model: bool
    leaves: list[Leaf] = field(default_factory=list)

    def local(self, leaf: Leaf) -> str:
        """The leaf's name inside the part."""
        return ".".join(leaf.path[len(self.path) :]) or "<root>"


def groups_of(names: Names) -> tuple[list[Group], str | None]:
    """The parts of a graph, and the default one's name."""
    return _Grouping(names).run()


class _Grouping:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.optimizers = {path for path, keys in names.mappings.items() if "param_groups" in keys and "state" in keys}
        self.known: dict[Path, Path | None] = {}

    def run(self) -> tuple[list[Group], str | None]:
        optimizer, rest, aside = [], [], []
        for leaf in self.names.leaves:
            if self.optimizer_path(leaf.path) is not None:
                optimizer.append(leaf)
            elif leaf.listed:
                rest.append(leaf)
            else:
                aside.append(leaf)
        groups, default = self.models(rest)
        taken = {id(leaf) for group in groups for leaf in group.leaves}
        other = Group(OTHER, (), Role.OTHER, False, [leaf for leaf in [*rest, *aside] if id(leaf) not in taken])
        return [*groups, *self.optimizer_groups(optimizer), *([other] if other.leaves else [])], default

    # Optimizers

    def optimizer_path(self, path: Path) -> Path | None:
        """The path of the optimizer that a leaf belongs to."""
        above = path[:-1]
        if above not in self.known:
            self.known[above] = self.find_optimizer(above)
        return self.known[above]

    def find_optimizer(self, above: Path) -> Path | None:
        for depth in range(len(above) + 1):
            if above[:depth] in self.optimizers:
                return above[:depth]
            if depth < len(above) and "." not in above[depth] and _OPTIMIZER.search(above[depth]):
                return above[: depth + 1]
        return None

    def optimizer_groups(self, leaves: list[Leaf]) -> list[Group]:
        found: dict[Path, Group] = {}
        for leaf in leaves:
            path = self.optimizer_path(leaf.path) or ()
            group = found.setdefault(path, Group(".".join(path) or "optimizer", path, Role.OPTIMIZER, False))
            group.leaves.append(leaf)
        return list(found.values())

    # Models

    def models(self, leaves: list[Leaf]) -> tuple[list[Group], str | None]:
        if not leaves:
            return [], None
        roots = self.roots(leaves)
        groups = [Group(".".join(path) or "model", path, Role.WEIGHT, True) for path in roots]
        for leaf in leaves:
            for group in groups:
                if leaf.path[: len(group.path)] == group.path:
                    group.leaves.append(leaf)
                    break
        for group in groups:
            if len(groups) > 1 and group.path and _MASTER.search(group.path[-1]):
                group.role, group.model = Role.MASTER, False
        sizes = {group.name: _bytes(group.leaves) for group in groups}
        largest = max(sizes.values(), default=0)
        models = [g for g in groups if g.model and sizes[g.name] * _LIKELY_SHARE >= largest]
        groups = [g for g in groups if g in models or g.role is Role.MASTER]
        named = [g for g in models if not g.path or _MODEL.search(g.path[-1])]
        if len(models) == 1 and (named or len(models[0].leaves) == len(leaves)):
            return groups, models[0].name
        if named:
            return groups, None
        # Dicts of tensors under names that say nothing: together they are what was saved.
        return [Group(ALL, (), Role.WEIGHT, True, leaves)], ALL

    def roots(self, leaves: list[Leaf]) -> list[Path]:
        """Paths of dicts most of whose values are tensors, without those inside another one."""
        counts: dict[Path, int] = {}
        for leaf in leaves:
            at = leaf.path[:-1]
            if at in self.names.mappings:
                counts[at] = counts.get(at, 0) + 1
        dense = [p for p, n in counts.items() if 2 * n >= len(self.names.mappings[p])]
        dense.sort(key=len)
        found: list[Path] = []
        for path in dense:
            if not any(path[: len(p)] == p for p in found):
                found.append(path)
        return found


def _bytes(leaves: list[Leaf]) -> int:
    values = {id(leaf.value): leaf.value for leaf in leaves if isinstance(leaf.value, TensorValue)}
    return sum(v.dtype.nbytes(_numel(v.shape)) for v in values.values())


def _numel(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
