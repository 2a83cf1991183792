"""`--part`: the default by its name, and names that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardyard
from shardyard.errors import UsageError
from support.checkpoints import fixture_root


@pytest.mark.parametrize("case", ["deepspeed/z2_w2_bf16", "deepspeed/z3_w2_bf16", "deepspeed/z0_w2_fp16", "dcp/titan_step2_w3"])
def test_the_model_is_what_is_merged_by_default(case: str, tmp_path: Path) -> None:
    named = shardyard.merge(fixture_root() / case, out=tmp_path / "named", part="model")
    plain = shardyard.merge(fixture_root() / case, out=tmp_path / "plain")
    assert named["part"] == plain["part"] and named["tensors"] == plain["tensors"] > 0
    files = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("named", "plain")]
    assert files[0] == files[1]


def test_a_part_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no part ema here.*masters.*module.*optimizer"):
        shardyard.merge(fixture_root() / "deepspeed" / "z2_w2_bf16", out=tmp_path / "out", part="ema")
