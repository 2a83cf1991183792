"""Which tensor is which: prefixes, ties, aliases, and what is suggested where names do not tell."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardyard.errors import UsageError
from shardyard.operations.compare.names import strip
from shardyard.operations.compare.run import CompareOptions, compare
from support.arrays import checkpoint

RNG = np.random.default_rng(11)
MODEL = {
    "model.embed.weight": RNG.standard_normal((16, 4)).astype(np.float32),
    "model.layers.0.weight": RNG.standard_normal((4, 4)).astype(np.float32),
    "lm_head.weight": RNG.standard_normal((16, 4)).astype(np.float32),
}


def renamed(names: dict[str, str]) -> dict[str, np.ndarray]:
    return {names.get(name, name): array for name, array in MODEL.items()}


def both(a: dict[str, np.ndarray], b: dict[str, np.ndarray], *prefixes: str, **ties: Any) -> dict[str, Any]:
    sides = checkpoint(a, ties.get("ties_a", ())), checkpoint(b, ties.get("ties_b", ()))
    return compare(*sides, CompareOptions(strip_prefix=prefixes))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_prefix_on_either_side_is_offered_and_then_taken(prefix: str, swapped: bool) -> None:
    wrapped = {prefix + name: array for name, array in MODEL.items()}
    a, b = (wrapped, MODEL) if swapped else (MODEL, wrapped)
    plain = both(a, b)
    assert (plain["prefix_hint"], plain["equal"], plain["tensors"]) == (prefix, False, [])
    assert plain["verdict"].endswith(f"compare with --strip-prefix {prefix}")
    stripped = both(a, b, prefix)
    assert stripped["equal"] and stripped["prefix_hint"] is None
    assert {row["name"] for row in stripped["tensors"]} == set(MODEL)


def test_wrappers_inside_names_are_whole_parts() -> None:
    inner = {name.replace("layers.0.", "layers.0._fsdp_wrapped_module."): a for name, a in MODEL.items()}
    result = both(MODEL, inner)
    assert result["prefix_hint"] == "_fsdp_wrapped_module."
    assert both(MODEL, inner, "_fsdp_wrapped_module.")["equal"]
    assert both(MODEL, inner, "auto")["equal"]
    assert strip("x_orig_mod.weight", "_orig_mod.") == "x_orig_mod.weight"


def test_no_prefix_is_offered_where_all_names_match() -> None:
    assert both(MODEL, MODEL)["prefix_hint"] is None


def test_two_names_that_become_one_are_refused() -> None:
    twice = {**MODEL, "module.lm_head.weight": MODEL["lm_head.weight"]}
    with pytest.raises(UsageError, match=r"two names become one: lm_head.weight and module.lm_head.weight"):
        both(MODEL, twice, "module.")


def test_an_alias_that_one_side_only_records_is_compared_with_its_owner() -> None:
    tied = {**MODEL, "lm_head.weight": MODEL["model.embed.weight"]}
    once = {name: a for name, a in tied.items() if name != "lm_head.weight"}
    ties = [("model.embed.weight", "lm_head.weight")]
    result = both(once, tied, ties_a=ties)
    assert result["equal"] and result["only_in_b"] == []
    (head,) = [row for row in result["tensors"] if row["name"] == "lm_head.weight"]
    assert (head["alias_in"], head["name_a"], head["name_b"]) == ("a", "model.embed.weight", "lm_head.weight")
    other = {**tied, "lm_head.weight": MODEL["lm_head.weight"]}
    result = both(once, other, ties_a=ties)
    assert not result["equal"] and result["worst"] == "different"


def test_equal_bytes_on_one_side_are_a_tie_unless_they_are_one_value() -> None:
    tied = {**MODEL, "lm_head.weight": MODEL["model.embed.weight"]}
    once = {name: a for name, a in MODEL.items() if name != "lm_head.weight"}
    result = both(once, tied)
    assert result["equal"] and result["tied"] == [{"name": "lm_head.weight", "in": "b", "equals": "model.embed.weight"}]
    zeros = np.zeros(4, np.float32)
    result = both({**MODEL, "a.bias": zeros}, {**MODEL, "a.bias": zeros, "b.bias": zeros})
    assert not result["equal"] and result["tied"] == []


def test_a_renamed_tensor_is_suggested_and_not_assumed() -> None:
    result = both(MODEL, renamed({"lm_head.weight": "head.weight"}))
    assert not result["equal"]
    assert (result["only_in_a"], result["only_in_b"]) == (["lm_head.weight"], ["head.weight"])
    assert [(c["a"], c["b"]) for c in result["candidates"]] == [("lm_head.weight", "head.weight")]
    assert "lm_head.weight in A may be head.weight in B" in result["verdict"]


def test_tensors_of_one_value_are_not_suggested_for_each_other() -> None:
    ones = np.ones(8, np.float32)
    assert both({**MODEL, "x.norm": ones}, {**MODEL, "y.norm": ones})["candidates"] == []


def test_a_renamed_tensor_of_another_shape_is_suggested_too() -> None:
    flat = {**MODEL, "lm_head.flat": MODEL["lm_head.weight"].reshape(-1)}
    del flat["lm_head.weight"]
    (candidate,) = both(MODEL, flat)["candidates"]
    assert candidate["reason"] == "another shape and the same bytes"


def test_transposed_and_squeezed_tensors_are_explained() -> None:
    a = {**MODEL, "w": RNG.standard_normal((3000, 700)).astype(ml_dtypes.bfloat16)}
    b = {**a, "w": np.ascontiguousarray(a["w"].T), "model.layers.0.weight": MODEL["model.layers.0.weight"][None]}
    rows = {row["name"]: row for row in both(a, b)["tensors"]}
    assert rows["w"]["note"] == "the same values, transposed"
    assert rows["model.layers.0.weight"]["note"] == "the same values in another shape"
    b["w"][699, 2999] += 1
    rows = {row["name"]: row for row in both(a, b)["tensors"]}
    assert rows["w"]["relation"] == "shape-differs" and "note" not in rows["w"]


def test_permuted_rows_are_different() -> None:
    swapped = {**MODEL, "model.layers.0.weight": MODEL["model.layers.0.weight"][[1, 0, 2, 3]]}
    result = both(MODEL, swapped)
    assert (result["equal"], result["worst"], result["relations"]["different"]) == (False, "different", 1)
