"""What may be typed after /."""

from __future__ import annotations

import pytest

from shardyard_tui.filters import parse
from shardyard_tui.table import Facts, TableBuilder

NAMES = [
    "model.layers.1.q_proj.weight",
    "model.layers.12.q_proj.weight",
    "model.layers.2.k_proj.bias",
    "lm_head.weight",
    "Model.Norm",
]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("q_proj", [0, 1]),
        ("Q_PROJ", []),
        ("norm", [4]),
        ("Norm", [4]),
        ("model", [0, 1, 2, 4]),
        ("layers weight", [0, 1]),
        ("weight !layers", [3]),
        ("!weight", [2, 4]),
        ("layers.1", [0, 1]),
        ("layers.1.", [0]),
        ("~mlqw", [0, 1]),
        ("!~mlqw", [2, 3, 4]),
        (r"/layers\.\d\./", [0, 2]),
        (r"!/layers\.\d+\./", [3, 4]),
        (r"/LM_HEAD", []),
        (r"/lm_HEAD/", []),
        ("!", [0, 1, 2, 3, 4]),
        ("~", []),
    ],
)
def test_filters_keep_what_they_say(typed: str, kept: list[int]) -> None:
    wanted = parse(typed)
    assert not wanted.problem
    assert [i for i, name in enumerate(NAMES) if wanted.empty or wanted.matches(name)] == kept


@pytest.mark.parametrize("typed", ["q_proj", "layers.1", "!weight", "layers weight", "~mlqw", r"/layers\.\d\./", "Norm"])
def test_a_table_of_patterns_answers_as_the_names_would(typed: str) -> None:
    builder = TableBuilder()
    for name in NAMES:
        builder.add(name, Facts("float32", (2,), 8, "", ("a",)))
    table = builder.build()
    wanted = parse(typed)
    found = [table.name(i) for i in table.matching(wanted, range(len(table)))]
    assert sorted(found) == sorted(name for name in NAMES if wanted.matches(name))


def test_half_a_regular_expression_is_no_error_while_it_is_typed() -> None:
    wanted = parse("/layers.(")
    assert wanted.problem.startswith("not a regular expression yet")
    assert wanted.matches("anything")


def test_a_very_long_regular_expression_is_refused() -> None:
    assert parse("/" + "a" * 300).problem == "at most 200 characters"
