"""What the end of a run says."""

from __future__ import annotations

from shardyard.cli.panel import result_lines


def test_an_incomplete_result_names_what_is_missing_or_says_where_to_look() -> None:
    lost = {"out": "out", "complete": False, "missing": ["a", "b"]}
    assert "It is NOT complete; missing: a, b." in result_lines(lost)
    assert "It is NOT complete: the plan says why." in result_lines({**lost, "missing": []})
