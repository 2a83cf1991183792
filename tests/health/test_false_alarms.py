"""Healthy checkpoints get neither errors nor warnings: every undamaged fixture is looked at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import cases
from support.reports import looked_at

TRUE_ALARMS = {
    ("a2_", "bloat"): "made to be bloated",
    ("a3_meta_device", "placeholder"): "its tensor was saved without data",
    ("a3_skip_data", "placeholder"): "its record was reserved and never written",
    ("a3_root_kinds", "duplicate-name"): "two of its tensors have one joined name",
    ("z1_bloat", "bloat"): "made to be bloated",
    ("z2_bloat", "bloat"): "made to be bloated",
    ("z1_bloat_gpt2", "duplicate-copy"): "tied by config.json and stored twice",
    ("trainer_z2_gpt2", "duplicate-copy"): "the trainer gathered a tied pair as two tensors",
    ("z3_export16", "placeholder"): "its `placeholder` folder is one",
    ("old_0_3_16", "missing-metadata"): "that version recorded no group membership",
    ("old_", "missing-tensor"): "aliases were not recorded before shared_params existed",
    ("universal_z2_roundrobin", "corrupt"): "DeepSpeed's converter wrote wrong weights",
    ("a4_mixed_tree", "missing-tensor"): "its model_states file is no file of DeepSpeed: one tensor, no weights",
    ("acc_fsdp1_local", "unknown-layout"): "flat local shards carry no names",
    ("dcp_async_overwritten", "stale-file"): "holds files of the save that was overwritten",
    ("verl_fsdp2_lora", "lora-unmerged"): "holds an adapter that is not merged",
}
"""(beginning of a case's name, code): why it is right there."""


def undamaged(family: str, folder: Path) -> Iterator[Path]:
    """The family's undamaged cases without the answers beside them, by links."""
    for case in cases(family):
        if not case.name.startswith("broken_"):
            mine = folder / case.name
            mine.mkdir()
            for item in case.iterdir():
                if not item.name.startswith("expected"):
                    (mine / item.name).symlink_to(item)
            yield mine


@pytest.mark.parametrize("family", ["files", "deepspeed", "dcp"])
def test_undamaged_fixtures_raise_no_alarm(tmp_path: Path, family: str) -> None:
    seen: list[tuple[str, str, str]] = []
    count = 0
    for case in undamaged(family, tmp_path):
        reports = looked_at(case)
        count += len(reports)
        assert reports, f"{case.name}: nothing was found"
        seen += [(case.name, str(r["path"]), str(f["code"])) for r in reports for f in serious(r)]
    shutil.rmtree(tmp_path)
    false = [(name, path, code) for name, path, code in seen if not allowed(name, code)]
    assert not false
    assert count >= {"files": 100, "deepspeed": 75, "dcp": 40}[family]


def serious(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in report["findings"] if f["severity"] != "info"]


def allowed(name: str, code: str) -> bool:
    return any(name.startswith(head) and code == known for head, known in TRUE_ALARMS)
