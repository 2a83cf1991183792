"""Names for everything in a pickled graph: tensors by their dotted path, all else as short text.

Keys are joined by dots; `@x` is the attribute x of a tensor or container, `::x` a part of a sparse, nested or quantised value,
`(1)` the second argument of a call that is not known.  Modules give the names of their `state_dict()`.  Each container is walked
once, however often it is referred to, so that reference bombs stay small; nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardyard.formats.pickles import Call, Dict, Set, attribute, pairs, sequence
from shardyard.formats.torch.numpy_values import ArrayValue
from shardyard.formats.torch.tensors import Broken, CompositeValue, TensorValue, WrapperValue
from shardyard.formats.torch.text import describe, is_scalar, key_text
from shardyard.text import printable

MOST_LEAVES = 2_000_000
MOST_OBJECTS = 20_000
DEEPEST = 400
"""Levels below which nothing is listed: a name of 400 parts is no name."""
_SHOWN_ITEMS = 16
_REMEMBERED_DEPTH = 4
_REMEMBERED_KEYS = 100_000

Path = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Leaf:
    """A tensor, or what should be one, at its place."""

    path: Path
    value: TensorValue | Broken
    buffer: bool | None = None
    """Whether a module says that it is a buffer; None where nothing says."""
    listed: bool = True
    """False for tensors that a loader would not ask for by name: arguments of calls, attributes of modules."""

    @property
    def name(self) -> str:
        return ".".join(self.path) or "<root>"


@dataclass(slots=True)
class CompositeLeaf:
    """A sparse, nested, quantised or wrapped value at its place; its parts are leaves of their own."""

    name: str
    kind: str
    parts: list[str]
    parameters: dict[str, object]


@dataclass(slots=True)
class Names:
    """What a graph holds."""

    leaves: list[Leaf] = field(default_factory=list)
    composites: list[CompositeLeaf] = field(default_factory=list)
    objects: list[tuple[str, str]] = field(default_factory=list)
    """(name, text) of values that are no tensors."""
    mappings: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    """Keys of the dicts and modules near the root."""
    notes: list[str] = field(default_factory=list)
    """What is not shown, and why."""


def names_of(root: object) -> Names:
    """Walk a graph; see the module's description."""
    walk = _Walk()
    walk.run(root)
    return walk.found


@dataclass(slots=True)
class _Step:
    value: object
    path: Path
    listed: bool = True
    quiet: bool = False
    """Leave out values that are no tensors."""
    module: bool = False
    """The value is a child of a module: it adds to the last part of the path, and may be met again."""
    buffer: bool | None = None


class _Walk:
    def __init__(self) -> None:
        self.found = Names()
        self.seen: dict[int, Path] = {}
        self.steps: list[_Step] = []

    def run(self, root: object) -> None:
        self.steps.append(_Step(root, ()))
        while self.steps:
            step = self.steps.pop()
            if len(self.found.leaves) >= MOST_LEAVES:
                self.note(f"More than {MOST_LEAVES} names lead to tensors; the rest is not shown.")
                return
            if len(step.path) > DEEPEST:
                self.note(f"Values are nested more than {DEEPEST} levels deep; what is further down is not shown.")
                continue
            self.visit(step)

    def note(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)

    def push(self, steps: list[_Step]) -> None:
        self.steps.extend(reversed(steps))

    def visit(self, step: _Step) -> None:
        value = step.value
        if isinstance(value, TensorValue):
            self.tensor(step, value)
        elif isinstance(value, Broken):
            self.found.leaves.append(Leaf(step.path, value, listed=step.listed))
        elif isinstance(value, CompositeValue):
            self.composite(step, value)
        elif isinstance(value, WrapperValue):
            self.wrapper(step, value)
        elif isinstance(value, ArrayValue):
            if value.tensor is not None:
                self.found.leaves.append(Leaf(step.path, value.tensor, listed=step.listed))
            else:
                self.text(step, value.what)
        elif isinstance(value, (list, tuple, Dict, Set, Call)):
            self.container(step, value)
        else:
            self.text(step, describe(value))

    def text(self, step: _Step, text: str) -> None:
        if step.quiet:
            return
        if len(self.found.objects) < MOST_OBJECTS:
            self.found.objects.append((".".join(step.path) or "<root>", text))
        else:
            self.note(f"More than {MOST_OBJECTS} values are no tensors; the rest is not shown.")

    # Tensors

    def tensor(self, step: _Step, value: TensorValue) -> None:
        self.found.leaves.append(Leaf(step.path, value, step.buffer, step.listed))
        if value.quantiser is not None:
            self.quantised(step, value)
        if value.state is not None and id(value) not in self.seen:
            self.seen[id(value)] = step.path
            self.attributes(step, value.state)

    def attributes(self, step: _Step, state: object) -> None:
        """Attributes that came with a tensor, a dict subclass or a list subclass."""
        # `_metadata` is the versions that state_dict() notes for each module: a line a module, and of no use to anybody.
        items = [(k, v) for k, v in _state_items(state) if k != "_metadata"]
        self.push([_Step(v, (*step.path, f"@{k}"), step.listed, step.quiet) for k, v in items])

    def quantised(self, step: _Step, value: TensorValue) -> None:
        quantiser = value.quantiser or ()
        name = ".".join(step.path)
        parameters: dict[str, object] = {"scheme": describe(quantiser[0])}
        parts = [name]
        for label, item in zip(("scale", "zero_point", "axis"), quantiser[1:], strict=False):
            if isinstance(item, TensorValue):
                parts.append(self.part(step, label + "s", item))
            elif is_scalar(item):
                parameters[label] = item
        self.found.composites.append(CompositeLeaf(name, "quantised", parts, parameters))

    def part(self, step: _Step, label: str, value: TensorValue | Broken) -> str:
        last = step.path[-1] if step.path else ""
        path = (*step.path[:-1], f"{last}::{label}")
        self.found.leaves.append(Leaf(path, value, step.buffer, step.listed))
        return ".".join(path)

    def composite(self, step: _Step, value: CompositeValue) -> None:
        parts = [self.part(step, label, part) for label, part in value.parts.items() if isinstance(part, (TensorValue, Broken))]
        name = ".".join(step.path)
        self.found.composites.append(CompositeLeaf(name, value.kind, parts, dict(value.parameters)))
        if value.state is not None and id(value) not in self.seen:
            self.seen[id(value)] = step.path
            self.attributes(step, value.state)

    def wrapper(self, step: _Step, value: WrapperValue) -> None:
        if id(value) in self.seen:
            return
        self.seen[id(value)] = step.path
        name, parts = ".".join(step.path), []
        inner = [*((str(i), a) for i, a in enumerate(value.args)), *_state_items(value.state)]
        for label, item in inner:
            if isinstance(item, TensorValue):
                parts.append(self.part(step, label, item))
            elif not is_scalar(item):
                self.push([_Step(item, (*step.path, f"({label})"), False, True)])
        self.found.composites.append(CompositeLeaf(name, "subclass", parts, {"class": value.subclass}))

    # Containers and calls

    def container(self, step: _Step, value: object) -> None:
        if isinstance(value, (list, tuple)) and all(map(is_scalar, value[:_SHOWN_ITEMS])) and all(map(is_scalar, value)):
            self.text(step, describe(value))
            return
        first = self.seen.get(id(value))
        if first is not None and not step.module:
            self.text(step, f"the same object as {'.'.join(first) or '<root>'}")
            return
        self.seen[id(value)] = step.path
        if isinstance(value, Dict):
            self.mapping(step, value.pairs)
        elif isinstance(value, Call):
            self.call(step, value)
        else:
            self.items(step, sequence(value) or [])

    def mapping(self, step: _Step, items: list[tuple[object, object]]) -> None:
        keys = [key_text(key, at) for at, (key, _) in enumerate(items)]
        if len(step.path) <= _REMEMBERED_DEPTH and len(self.found.mappings) < _REMEMBERED_KEYS:
            self.found.mappings[step.path] = tuple(keys)
        if not items:
            self.text(step, "{}")
            return
        last = {key: at for at, key in enumerate(keys)}
        if len(last) != len(keys):
            twice = next(key for at, key in enumerate(keys) if last[key] != at)
            self.note(f"Key {describe(twice)} occurs twice in a dict; the later one counts.")
        steps = [
            _Step(value, (*step.path, key), step.listed, step.quiet)
            for at, (key, (_, value)) in enumerate(zip(keys, items, strict=True))
            if last[key] == at
        ]
        self.push(steps)

    def items(self, step: _Step, items: list[object]) -> None:
        if not items:
            self.text(step, "[]")
        self.push([_Step(item, (*step.path, str(i)), step.listed, step.quiet) for i, item in enumerate(items)])

    def call(self, step: _Step, value: Call) -> None:
        state = [payload for kind, payload in value.later if kind == "BUILD"]
        if attribute(value, "_modules") is not None and attribute(value, "_parameters") is not None:
            self.module(step, value)
            return
        set_items = [p for kind, payload in value.later if kind == "SETITEMS" for p in _list(payload)]
        more = [p for kind, payload in value.later if kind in ("APPENDS", "ADDITEMS") for p in _list(payload)]
        known, listed = pairs(value), sequence(value)
        if known is not None or set_items:
            self.mapping(step, known if known is not None else [p for p in set_items if isinstance(p, tuple)])
            for part in state:
                self.attributes(step, part)
        elif more or (listed is not None and value.path != "torch.Size"):
            self.items(step, listed if listed is not None else more)
            for part in state:
                self.attributes(step, part)
        else:
            self.object(step, value, state)

    def object(self, step: _Step, value: Call, state: list[object]) -> None:
        """An object of a class that is not known: its state by attribute, its arguments by number."""
        steps: list[_Step] = []
        for part in state:
            steps += [_Step(v, (*step.path, k), step.listed, step.quiet) for k, v in _state_items(part)]
        arguments = value.args if isinstance(value.args, tuple) else ()
        as_tuple = value.path.startswith("torch.return_types.") or (value.made_by == "NEWOBJ" and not state)
        if value.path.startswith("torch.return_types.") and arguments and isinstance(arguments[0], tuple):
            arguments = arguments[0]
        for i, item in enumerate(arguments):
            if not is_scalar(item):
                listed = step.listed and as_tuple
                steps.append(_Step(item, (*step.path, str(i) if as_tuple else f"({i})"), listed, not as_tuple))
        if value.path.startswith("torch._utils._rebuild"):
            # A tensor made by a newer torch than is known here must not go missing without a word.
            broken = Broken(f"it is built by {printable(value.path, 80)}, which is not known.", value.args)
            self.found.leaves.append(Leaf(step.path, broken, step.buffer, step.listed))
            return
        if not steps or not state:
            self.text(step, describe(value))
        self.push(steps)

    def module(self, step: _Step, value: Call) -> None:
        """A torch.nn module: names as its state_dict() has them."""
        if not step.module:
            self.text(step, f"module {describe(value)}")
        hidden = {key_text(k, 0) for k in sequence(attribute(value, "_non_persistent_buffers_set")) or []}
        steps = []
        for group, buffer in (("_parameters", False), ("_buffers", True)):
            for key, item in _text_items(attribute(value, group)):
                if item is not None:
                    listed = step.listed and not (buffer and key in hidden)
                    steps.append(_Step(item, _joined(step, key), listed, True, buffer=buffer))
        for key, item in _text_items(attribute(value, "_modules")):
            if item is not None:
                steps.append(_Step(item, _joined(step, key), step.listed, True, module=True))
        for part in (payload for kind, payload in value.later if kind == "BUILD"):
            for key, item in _state_items(part):
                if key not in _MODULE_PARTS and not is_scalar(item):
                    steps.append(_Step(item, _joined(step, f"@{key}"), False, True))
        if not step.module and len(step.path) <= _REMEMBERED_DEPTH:
            self.found.mappings[step.path] = ("",)
        self.push(steps)


_MODULE_PARTS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}


def _joined(step: _Step, key: str) -> Path:
    """Inside a module the state_dict name grows in the last part of the path."""
    return (*step.path[:-1], f"{step.path[-1]}.{key}") if step.module else (*step.path, key)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text_items(value: object) -> list[tuple[str, object]]:
    return [(key_text(k, at), v) for at, (k, v) in enumerate(pairs(value) or [])]


def _state_items(state: object) -> Iterator[tuple[str, object]]:
    """The attributes of a BUILD state: a dict, or (dict or None, dict of slots); anything else by number."""
    if isinstance(state, tuple) and len(state) == 2 and all(p is None or pairs(p) is not None for p in state):
        for part in state:
            yield from _text_items(part)
    elif pairs(state) is not None:
        yield from _text_items(state)
    elif isinstance(state, (tuple, list)):
        yield from ((f"({i})", item) for i, item in enumerate(state) if not is_scalar(item))
    elif state is not None and not is_scalar(state):
        yield "(state)", state
