"""Every field of every comparison fixture, computed there in float64 by other code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shardyard.discover import open_checkpoint
from shardyard.operations.compare.run import CompareOptions, compare
from support.checkpoints import cases

FIELDS = {
    "n_different": "differing",
    "n_compared_finite": "finite",
    "max_abs_diff": "max_abs",
    "mean_abs_diff": "mean_abs",
    "rms_diff": "rms",
    "nan_a": "nan_a",
    "nan_b": "nan_b",
    "inf_a": "inf_a",
    "inf_b": "inf_b",
    "max_abs_diff_over_max_abs_a": "max_rel",
    "argmax_flat_index": "argmax",
    "first_different_flat_index": "first",
    "dtype_a": "dtype_a",
    "dtype_b": "dtype_b",
    "shape_a": "shape_a",
    "shape_b": "shape_b",
}
ROUNDINGS = {
    f"{x}_is_{y}_rounded_to_{short}": (f"{x}_is_{y}_rounded_to", kind)
    for x, y in (("a", "b"), ("b", "a"))
    for short, kind in (("bf16", "bfloat16"), ("fp16", "float16"))
}


def _pairs(case: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(expected, result) as stored, and once more without the prefix where the case has one."""
    truth = json.loads((case / "expected.json").read_text())
    a, b = (open_checkpoint(case / truth[side]) for side in "ab")
    plain = compare(a, b)
    found = [(truth["literal_names"], plain)]
    if "after_prefix_matching" in truth:
        assert plain["prefix_hint"], "the prefix is offered"
        found.append((truth["after_prefix_matching"], compare(a, b, CompareOptions(strip_prefix=(plain["prefix_hint"],)))))
    return found


def _relation(expected: dict[str, Any]) -> set[str]:
    """The contract's relations that a case's status allows."""
    rounded = {f"rounded-{kind}" for flag, (_, kind) in ROUNDINGS.items() if expected.get(flag)}
    narrow = {d for d in (expected["dtype_a"], expected["dtype_b"]) if d.startswith("float8")}
    return {
        "identical": {"identical"},
        "equal_values": {"equal"},
        "shape_mismatch": {"shape-differs"},
        "different": rounded or {f"rounded-{kind}" for kind in narrow} or {"different"},
    }[expected["status"]]


@pytest.mark.parametrize("case", cases("files", "a5"), ids=lambda case: case.name)
def test_every_field_is_as_computed_in_float64(case: Path) -> None:
    for expected, result in _pairs(case):
        assert result["only_in_a"] == expected["only_in_a"]
        assert result["only_in_b"] == expected["only_in_b"]
        rows = {row["name"]: row for row in result["tensors"]}
        assert rows.keys() == expected["tensors"].keys()
        for name, fields in expected["tensors"].items():
            row = rows[name]
            assert row["relation"] in _relation(fields)
            for field, value in fields.items():
                if field in FIELDS:
                    found = row[FIELDS[field]]
                    assert found == value or math.isclose(found, value, rel_tol=1e-12), (name, field)
                elif field in ROUNDINGS:
                    key, kind = ROUNDINGS[field]
                    assert (kind in row[key]) == value, (name, field)
                else:
                    assert field == "status"


EQUAL = {
    "a5_bf16_vs_fp32",
    "a5_dtype_mismatch",
    "a5_empty_and_scalar",
    "a5_fp32_vs_bf16",
    "a5_fp32_vs_bf16_widened",
    "a5_fp32_vs_fp16",
    "a5_identical",
    "a5_identical_pt_vs_safetensors",
    "a5_nan_in_both",
    "a5_negative_zero",
    "a5_tied_missing_one_side",
    "a5_tied_pt_vs_untied",
}
"""Of the cases that are kept here; an a5_prefix_* is equal once the prefix is taken off."""


@pytest.mark.parametrize("case", cases("files", "a5"), ids=lambda case: case.name)
def test_equal_means_what_a_person_would_call_equal(case: Path) -> None:
    results = [result for _, result in _pairs(case)]
    assert results[0]["equal"] == (case.name in EQUAL)
    for stripped in results[1:]:
        assert stripped["equal"]


def test_a_tie_that_one_side_stores_twice_is_named() -> None:
    case = next(c for c in cases("files", "a5_tied_missing_one_side"))
    result = _pairs(case)[0][1]
    assert result["tied"] == [{"name": "lm_head.weight", "in": "a", "equals": "model.embed_tokens.weight"}]


def test_zero3_against_its_own_16_bit_export_is_one_rounding() -> None:
    for step in (2, 4):
        folder = next(iter(cases("deepspeed", "trainer_z3_llama"))) / f"checkpoint-{step}"
        result = compare(open_checkpoint(folder / f"global_step{step}"), open_checkpoint(folder / "model.safetensors"))
        assert {row["relation"] for row in result["tensors"]} == {"rounded-bfloat16"}
        assert result["verdict"] == (
            f"B is A rounded to bfloat16, exactly, in all {len(result['tensors'])} tensors; nothing is lost but precision."
        )


def test_a_universal_folder_equals_the_merged_weights() -> None:
    case = next(c for c in cases("deepspeed", "universal_z2") if c.name == "universal_z2")
    truth = open_checkpoint(case / "expected.safetensors")
    folder = next(p for p in sorted(case.rglob("*")) if p.is_dir() and (p / "zero").is_dir())
    result = compare(open_checkpoint(folder), truth)
    assert (result["equal"], result["worst"]) == (True, "identical")


def test_a_compressed_container_is_compared_as_any_other() -> None:
    case = next(c for c in cases("dcp", "dcp_zstd") if c.name == "dcp_zstd")
    folder = next(p.parent for p in sorted(case.rglob(".metadata")))
    result = compare(open_checkpoint(folder), open_checkpoint(case / "expected.safetensors"))
    assert result["worst"] == "identical" and result["tensors"]
