"""A short run of every fuzz target, unguided and repeatable; `readers.py` runs longer ones."""

from __future__ import annotations

import random

import pytest

from fuzz.readers import TARGETS, mutate, seeds


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutated_inputs_end_in_our_own_errors(target: str) -> None:
    chance = random.Random(20)
    known = seeds(target)
    assert known
    for data in known:
        TARGETS[target](data)
    for _ in range(150):
        TARGETS[target](mutate(chance.choice(known), chance))
