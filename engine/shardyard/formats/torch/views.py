"""Where a raw pickled graph looks at storages: tensors, whose views can be moved, and everything else, which needs the whole.

The graph is one that `open_torch(raw=True)` gave: rebuild calls stand in it as they were pickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardyard.formats.pickles import Call, Dict, Global, Persistent, PickleError, Set, pairs
from shardyard.formats.torch.tensors import REBUILDS, StorageRef, TensorValue

PLACED = frozenset(
    f"torch._utils.{name}" for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
)
"""Calls whose arguments begin with storage, offset, size and stride."""
FROM_TYPE = frozenset({"torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type"})
"""(function, type, arguments, state): the function may be one of PLACED."""
PARAMETERS = frozenset({"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"})


@dataclass(slots=True, eq=False)
class TensorCall:
    """A call that places a tensor in a storage."""

    call: Call
    wrapped: bool
    """The arguments are those inside a FROM_TYPE call."""
    value: TensorValue
    storage: StorageRef

    @property
    def identity(self) -> tuple[object, ...]:
        """Two tensors with equal identities are one view."""
        value, ref = self.value, self.storage
        return (ref.key, ref.view, value.dtype.name, value.offset, value.shape, value.strides, value.ops)

    def join(self, owner: TensorCall) -> None:
        """Look at what another tensor of the same type and shape looks at."""
        self.move(owner.storage, owner.value.offset, owner.value.strides)
        self.storage = owner.storage
        self.value = replace(self.value, storage=owner.storage, offset=owner.value.offset, strides=owner.value.strides)

    @property
    def arguments(self) -> tuple[object, ...]:
        return arguments_of(self.call) or ()

    def move(self, storage: object, offset: int, strides: tuple[int, ...]) -> None:
        """Let it look at another place; offset and strides in elements."""
        old = self.arguments
        kept = old[3] if self.value.strides == strides else strides
        new = (storage, offset, old[2], kept, *old[4:])
        if self.wrapped and isinstance(self.call.args, tuple):
            self.call.args = (*self.call.args[:2], new, *self.call.args[3:])
        else:
            self.call.args = new


def arguments_of(call: Call) -> tuple[object, ...] | None:
    """The arguments that place a tensor, if the call does that: (storage, offset, size, stride, …)."""
    arguments: object = None
    if call.made_by == "REDUCE" and isinstance(call.func, Global) and isinstance(call.args, tuple):
        if call.func.path in PLACED:
            arguments = call.args
        elif call.func.path in FROM_TYPE and len(call.args) == 4:
            func = call.args[0]
            arguments = call.args[2] if isinstance(func, Global) and func.path in PLACED else None
    if isinstance(arguments, tuple) and len(arguments) >= 4 and isinstance(arguments[0], StorageRef):
        return arguments
    return None


def value_of(call: Call) -> TensorValue | None:
    """The tensor that a call makes; None if it is malformed or no such call."""
    arguments = arguments_of(call)
    if arguments is None or not isinstance(call.func, Global) or not isinstance(call.args, tuple):
        return None
    func = call.args[0] if call.func.path in FROM_TYPE else call.func
    rebuild = REBUILDS.get(func.path) if isinstance(func, Global) else None
    try:
        value = rebuild("REDUCE", arguments) if rebuild is not None else None
    except PickleError:
        return None
    return value if isinstance(value, TensorValue) else None


@dataclass(slots=True)
class Looks:
    """All looks at storages in one graph."""

    tensors: list[TensorCall] = field(default_factory=list)
    whole: dict[str, StorageRef] = field(default_factory=dict)
    """Storages that something other than a tensor refers to, by key."""


def looks_of(root: object) -> Looks:
    """Find them, without recursion; each container and call once."""
    found = Looks()
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, StorageRef):
            found.whole.setdefault(value.key, value)
            continue
        if not isinstance(value, (list, tuple, Dict, Set, Call, Persistent)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Call):
            waiting.extend(_inside(value, found))
        else:
            waiting.extend(_children(value))
    return found


def named_calls(root: object) -> dict[str, Call]:
    """The tensors of a flat state dict by name; parameters are looked into."""
    found: dict[str, Call] = {}
    for key, value in pairs(root) or ():
        inner = value
        if isinstance(value, Call) and value.path in PARAMETERS and isinstance(value.args, tuple) and value.args:
            inner = value.args[0]
        if isinstance(key, str) and isinstance(inner, Call) and arguments_of(inner) is not None:
            found[key] = inner
    return found


def _inside(call: Call, found: Looks) -> Iterable[object]:
    """What is inside a call; the placing arguments of a tensor are taken out."""
    inner: list[object] = [payload for _, payload in call.later]
    inner += (call.func, call.kwargs)
    value = value_of(call)
    arguments = arguments_of(call)
    movable = value is not None and value.storage is not None and value.dtype.bits >= 8
    if not movable or arguments is None or value is None or value.storage is None:
        return [*inner, call.args]
    wrapped = arguments is not call.args
    found.tensors.append(TensorCall(call, wrapped, value, value.storage))
    if wrapped and isinstance(call.args, tuple):
        inner += (*call.args[:2], *call.args[3:])
    return [*inner, *arguments[1:]]


def _children(value: object) -> Iterable[object]:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Dict):
        return [part for pair in value.pairs for part in pair]
    if isinstance(value, Set):
        return value.items
    return [value.pid] if isinstance(value, Persistent) else ()
