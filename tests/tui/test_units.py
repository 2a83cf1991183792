"""Numbers as people read them."""

from __future__ import annotations

import pytest

from shardyard_tui import units


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (6_120_000_000, "5.7 GiB"),
        (152 * 2**30, "152 GiB"),
        (2**20 - 1, "1.0 MiB"),
        (3.4 * 2**40, "3.4 TiB"),
        (5 * 2**70, "5120.0 EiB"),
    ],
)
def test_sizes_have_three_figures_and_their_right_unit(nbytes: float, text: str) -> None:
    assert units.size(nbytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(434, "434"), (9_999, "9999"), (10_000, "10 K"), (3_090_000_000, "3.09 B"), (999_999, "1000 K"), (1e12, "1 T")],
)
def test_counts_are_shortened_by_thousands(number: float, text: str) -> None:
    assert units.short_count(number) == text


def test_counts_are_grouped_by_thousands() -> None:
    assert units.count(31_077) == "31,077"
    assert units.plural(1, "file") == "1 file"
    assert units.plural(2, "copy", "copies") == "2 copies"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (3, "0:03"), (124, "2:04"), (3723, "1:02:03"), (-5, "0:00")])
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "just now"), (300, "5 min"), (7200, "2 h"), (86_400 * 12, "12 d"), (86_400 * 800, "2 y")]
)
def test_ages(seconds: float, text: str) -> None:
    assert units.age(seconds) == text


def test_layer_two_comes_before_layer_ten() -> None:
    names = ["layers.10.w", "layers.2.w", "layers.2.a", "embed", "10", "9"]
    assert sorted(names, key=units.natural) == ["9", "10", "embed", "layers.2.a", "layers.2.w", "layers.10.w"]
