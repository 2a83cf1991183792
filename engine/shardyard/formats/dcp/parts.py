"""Which of the saved names are the model's, which the optimizer's, and what the component is called.

`planner_data` records how each flattened name came about: `model.layers.0.weight` may be one key or the key `layers.0.weight`
in a dict called `model`.  Only the latter is a component whose path is left out of names; where nothing is recorded, names
stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from shardyard.formats.dcp.metadata import Path

_MODEL = re.compile(
    r"(?:(?:ema|avg|averaged|online|target)_?)?"
    r"(?:models?|module|net|network|state_dict|weights|params|parameters|actor|critic|policy|reward|reference"
    r"|student|teacher|generator|discriminator|ema)"
    r"(?:_(?:state|dict|model|module|weights|params|ema|\d+))*",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(r"(?:optims?|optimizers?|opt_state)(?:_(?:state|states|dict|\d+))*", re.IGNORECASE)
_REST = re.compile(
    r"(?:lr_|opt_param_)?schedulers?(?:_\d+)?|train_state|trainer(?:_state)?|dataloaders?|rng(?:_states?)?|random_states?"
    r"|rerun_state_machine|(?:grad_)?scaler|loops|callbacks|metrics|extra_state",
    re.IGNORECASE,
)
_DEEPEST = 3
"""Dicts that are looked through for a component; deeper ones are the model's own."""


class Kind(Enum):
    """What a component is."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor belongs."""

    part: str
    """The component's path joined by dots, or `model`, `optimizer` and `other` for what lies at the root."""
    name: str
    """The tensor's name without the component's path."""
    kind: Kind


def sort_out(names: Iterable[str], paths: Mapping[str, Path]) -> dict[str, Home]:
    """The home of each tensor name; `paths` are those of all entries, pickled values included."""
    bare_optimizer = any(p[0] == "param_groups" for p in paths.values())
    found = {name: _component(name, paths.get(name), bare_optimizer=bare_optimizer) for name in names}
    _lengthen(found)
    has_model = any(c is not None and c[2] is Kind.MODEL for c in found.values())
    return {name: _home(name, component, paths.get(name), has_model=has_model) for name, component in found.items()}


_Component = tuple[Path, Path, Kind]
"""(its own path, the rest of the tensor's path, what it is)."""


def _component(name: str, path: Path | None, *, bare_optimizer: bool) -> _Component | None:
    """The component that a dict on the way to the tensor is named after; None if none is."""
    if path is None:
        return _by_dots(name)
    if bare_optimizer and path[0] in ("state", "param_groups"):
        return (), path, Kind.OPTIMIZER
    model = None
    for i, step in enumerate(path[:-1][:_DEEPEST]):
        kind = _kind(step)
        if kind is Kind.MODEL and model is None:
            model = i + 1
        elif kind is Kind.OPTIMIZER or (kind is Kind.OTHER and model is None):
            return path[: i + 1], path[i + 1 :], kind
    return (path[:model], path[model:], Kind.MODEL) if model is not None else None


def _by_dots(name: str) -> _Component | None:
    """Without recorded paths only what is surely no weight is told apart, by the first words of its name."""
    steps = tuple(name.split("."))
    for i, step in enumerate(steps[:-1][:2]):
        if _OPTIMIZER.fullmatch(step):
            return steps[: i + 1], steps[i + 1 :], Kind.OPTIMIZER
    return (steps[:1], steps[1:], Kind.OTHER) if len(steps) > 1 and _REST.fullmatch(steps[0]) else None


def _kind(step: str | int) -> Kind | None:
    if isinstance(step, int):
        return None
    if _OPTIMIZER.fullmatch(step):
        return Kind.OPTIMIZER
    if _REST.fullmatch(step):
        return Kind.OTHER
    return Kind.MODEL if _MODEL.fullmatch(step) else None


def _lengthen(found: dict[str, _Component | None]) -> None:
    """Go on down while a model component holds nothing but one further component: `state_dict.model`, `models.0`."""
    for _ in range(_DEEPEST):
        inner: dict[Path, set[str | int | None]] = {}
        for component in found.values():
            if component is not None and component[2] is Kind.MODEL:
                own, rest, _kind_of = component
                deeper = len(rest) > 1 and (isinstance(rest[0], int) or _kind(rest[0]) is Kind.MODEL)
                inner.setdefault(own, set()).add(rest[0] if deeper else None)
        wrappers = {own for own, steps in inner.items() if None not in steps and (len(steps) == 1 or _all_numbers(steps))}
        if not wrappers:
            return
        for name, component in found.items():
            if component is not None and component[2] is Kind.MODEL and component[0] in wrappers:
                own, rest, kind = component
                found[name] = (*own, rest[0]), rest[1:], kind


def _all_numbers(steps: set[str | int | None]) -> bool:
    return all(isinstance(step, int) for step in steps)


def _home(name: str, component: _Component | None, path: Path | None, *, has_model: bool) -> Home:
    if component is not None:
        own, rest, kind = component
        if kind is Kind.OTHER:
            return Home(Kind.OTHER.value, name, kind)
        return Home(_joined(own) or kind.value, _joined(rest), kind)
    if not has_model:
        # No dict is called like a model: all that is nothing else is the model, named as stored.
        return Home(Kind.MODEL.value, name, Kind.MODEL)
    if path is not None and len(path) > 1:
        return Home(str(path[0]), _joined(path[1:]), Kind.OTHER)
    return Home(Kind.OTHER.value, name, Kind.OTHER)


def _joined(path: Path) -> str:
    return ".".join(map(str, path))
