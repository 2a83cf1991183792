"""Element types by the names that files give them."""

from __future__ import annotations

from shardyard.dtypes import unknown


def test_the_name_of_an_unknown_type_is_safe_to_show_and_kept_for_the_file() -> None:
    found = unknown("F\x1b[31m5")
    assert found.name == r"F\x1b[31m5" and found.safetensors == "F\x1b[31m5"
