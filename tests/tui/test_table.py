"""The small table of many tensors."""

from __future__ import annotations

import random

from shardyard_tui.table import Facts, TableBuilder, TensorTable
from support.fake_engine import large_table

ONE = Facts("float32", (2, 3), 24, "", ("a.pt",))


def build(*names: str) -> TensorTable:
    builder = TableBuilder()
    for name in names:
        builder.add(name, ONE)
    return builder.build()


def test_names_come_back_as_they_were_whatever_numbers_are_in_them() -> None:
    names = [
        "a.0.b",
        "a.10.b",
        "a.2.b",
        "layer_007.w",
        "x",
        "",
        "1.2.3",
        "v4294967296",
        "00",
        "0",
        "999999999",
        "9999999999",
        "é.1.ñ",
    ]
    random.Random(1).shuffle(names)
    table = build(*names)
    assert sorted(table.name(i) for i in range(len(table))) == sorted(names)


def test_rows_are_in_natural_order() -> None:
    table = build("l.10.w", "l.9.w", "l.9.b", "a")
    assert [table.name(i) for i in range(4)] == ["a", "l.9.b", "l.9.w", "l.10.w"]


def test_tensors_fold_into_patterns_with_their_sums() -> None:
    builder = TableBuilder()
    for layer in range(3):
        builder.add(f"layers.{layer}.w", Facts("float32", (4, layer + 1), 16 * (layer + 1), "", ("a",)))
        builder.add(f"layers.{layer}.b", ONE)
    table = builder.build()
    groups = {g.name: g for g in table.groups(range(len(table)))}
    assert set(groups) == {"layers.#.w", "layers.#.b"}
    assert groups["layers.#.w"].nbytes == 96
    assert groups["layers.#.w"].common("shape") == "3 kinds"
    assert groups["layers.#.b"].common("dtype") == "float32"


def test_bytes_of_tied_names_count_once() -> None:
    builder = TableBuilder()
    builder.add("embed", ONE)
    builder.add("head", ONE, tied_to="embed")
    table = builder.build()
    assert table.nbytes == 24
    assert {table.name(row): owner for row, owner in table.tied_to.items()} == {"head": "embed"}


def test_half_a_million_rows_take_little_memory() -> None:
    table = large_table(500_000)
    assert len(table) == 500_000
    assert sum(a.itemsize * len(a) for a in (table.pattern, table.fact, table.start, table.numbers)) < 12_000_000
