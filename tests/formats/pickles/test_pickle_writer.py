"""What the inert pickler writes, the inert unpickler and Python's own read back as the same graph, shared as it was shared."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.formats.pickles import Call, Dict, Global, Set, load
from shardyard.formats.pickles.writer import dump
from shardyard.formats.torch import graphs

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 80), 1 << 80),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=300),
)
MAKERS: dict[str, Any] = {
    "list": list,
    "dict": Dict,
    "set": lambda: Set([]),
    "call": lambda: Call("REDUCE", Global("lab", "Thing"), ()),
    "bytearray": lambda: bytearray(b"xyz"),
}


@st.composite
def graph(draw: st.DrawFn) -> Any:
    """A graph with shared parts and cycles: nodes are made first, then filled with leaves and each other."""
    kinds = draw(st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=8))
    nodes = [MAKERS[kind]() for kind in kinds]
    item = st.one_of(LEAVES, st.sampled_from(nodes), st.tuples(st.sampled_from(nodes), LEAVES))
    for node in nodes:
        items = draw(st.lists(item, max_size=5))
        if isinstance(node, list):
            node.extend(items)
        elif isinstance(node, Dict):
            node.pairs.extend((f"k{i}", v) for i, v in enumerate(items))
        elif isinstance(node, Set):
            node.items.extend(i for i in items if isinstance(i, (int, str)))
        elif isinstance(node, Call):
            node.later += [("BUILD", v) for v in items[:2]] + ([("APPENDS", items[2:])] if items[2:] else [])
    return draw(st.sampled_from(nodes))


@settings(max_examples=300, deadline=None)
@given(graph(), st.sampled_from([2, 3, 4, 5]))
def test_graphs_with_cycles_come_back_the_same(root: Any, protocol: int) -> None:
    data = dump(root, protocol)
    graphs.compare(root, load(data).root)
    # Written again from what was read, not a byte changes.
    assert dump(load(data).root, protocol) == data


def values() -> list[Any]:
    shared = ["shared"]
    loop: list[Any] = [shared]
    loop.append((loop, shared))
    inner = ([],)
    inner[0].append(inner)
    return [loop, inner, {"a": {1, 2}, (1, "b"): frozenset({3})}, OrderedDict(x=shared, y=shared), [1, -1, 1 << 90], b"x" * 400]


@pytest.mark.parametrize("protocol", range(6))
def test_python_reads_it_as_what_was_pickled(protocol: int) -> None:
    for value in values():
        again = pickle.loads(dump(load(pickle.dumps(value, protocol)).root, protocol))
        assert repr(again) == repr(value)
    loop = pickle.loads(dump(load(pickle.dumps(values()[0], protocol)).root, protocol))
    assert loop[1][0] is loop and loop[1][1] is loop[0]


class Recursive:
    """Its own arguments contain it."""

    def __init__(self, box: list[Any]) -> None:
        self.box = box

    def __reduce__(self) -> Any:
        return Recursive, (self.box,)


def test_a_call_whose_arguments_contain_it_is_made_once() -> None:
    box: list[Any] = []
    call = Call("REDUCE", Global("lab", "Recursive"), (box,))
    box.append(call)
    root = load(dump(call)).root
    graphs.compare(call, root)
    data = dump(box)
    assert data.count(b"R") - data.count(b"Recursive") == 1


def test_depth_costs_no_stack() -> None:
    root: Any = []
    for _ in range(100_000):
        root = [root]
    graphs.compare(root, load(dump(root)).root)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1]], [[2]]),
        ([1], [1.0]),
        ([True], [1]),
        ([0.0], [-0.0]),
        (["a"], [b"a"]),
        (Dict([("a", 1), ("b", 2)]), Dict([("b", 2), ("a", 1)])),
        (Call("REDUCE", Global("m", "f"), ()), Call("NEWOBJ", Global("m", "f"), ())),
    ],
)
def test_graphs_that_differ_are_told_apart(a: Any, b: Any) -> None:
    with pytest.raises(graphs.Different):
        graphs.compare(a, b)


def test_sharing_is_part_of_the_meaning() -> None:
    one: list[Any] = [1]
    for a, b in (([one, one], [[1], [1]]), ([[1], [1]], [one, one])):
        with pytest.raises(graphs.Different):
            graphs.compare(a, b)
    graphs.compare([one, one], [one, one])
