"""Rank files that were exchanged or copied over one another: alike in shape, so only the name inside the archive tells."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path

import pytest

import shardyard
from shardyard.discover import open_checkpoint
from shardyard.errors import CheckpointError, IncompleteError
from shardyard.findings import Blocks
from support.checkpoints import fixture_root

CASES = ["deepspeed/z3_w2_bf16", "deepspeed/z3_w11_fp16", "deepspeed/moe_w2_ep2_z0", "deepspeed/pp2_dp1_z1_bf16opt"]
CASES += ["dcp/verl_fsdp2_1d_w3", "dcp/verl_fsdp2_hsdp", "dcp/acc_fsdp2_rankfiles_w2"]


def rank_files(folder: Path) -> list[tuple[Path, Path]]:
    """Pairs of files in one folder that stand in one line: equal but for the numbers in their names."""
    read = re.compile(r".*zero_pp_rank_\d+_mp_rank_\d+_optim_states.*|mp_rank.*|layer.*|model_world.*|pytorch_model_fsdp.*")
    files = sorted(p for p in folder.rglob("*") if read.fullmatch(p.name))
    pairs = itertools.combinations(files, 2)
    return [(a, b) for a, b in pairs if a.parent == b.parent and a.name[:6] == b.name[:6]]


@pytest.mark.parametrize("case", CASES)
def test_exchanged_and_doubled_files_are_refused(case: str, tmp_path: Path) -> None:
    folder = tmp_path / case.replace("/", "_")
    shutil.copytree(fixture_root() / case, folder, ignore=shutil.ignore_patterns("expected*"))
    pairs = rank_files(folder)
    assert pairs
    for one, other in pairs[:6]:
        kept, aside = other.read_bytes(), folder / "aside"
        os.rename(one, aside), os.rename(other, one), os.rename(aside, other)
        refused(folder, one.name)
        os.rename(one, aside), os.rename(other, one), os.rename(aside, other)
        shutil.copy(one, other)
        refused(folder, other.name)
        other.write_bytes(kept)
    assert not any(f.code == "renamed-file" for f in open_checkpoint(folder).findings)


def refused(folder: Path, name: str) -> None:
    found = {f.paths[0].rpartition("/")[2]: f for f in open_checkpoint(folder).findings if f.code == "renamed-file"}
    assert found[name].blocks is Blocks.MERGE and "was saved as" in found[name].message


def test_an_archive_that_was_written_without_a_name_is_not_judged(tmp_path: Path) -> None:
    case = fixture_root() / "deepspeed" / "z3_w2_legacyser"
    assert not any(f.code == "renamed-file" for f in open_checkpoint(case).findings)


@pytest.mark.parametrize("nameless", [False, True])
def test_one_file_under_two_ranks_names_is_refused(nameless: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    folder = tmp_path / "case"
    case = "z3_w2_bf16" if nameless else "z3_w2_legacyser"
    shutil.copytree(fixture_root() / "deepspeed" / case, folder, ignore=shutil.ignore_patterns("expected*"))
    first, second = sorted(folder.rglob("*optim_states.pt"))
    if nameless:
        state = torch.load(first, weights_only=False)
        with first.open("wb") as file:
            torch.save(state, file)
    shutil.copy(first, second)
    (finding,) = (f for f in open_checkpoint(folder).findings if f.code == "duplicate-copy")
    assert finding.blocks is Blocks.MERGE and "over again" in finding.message and first.name in finding.message


def test_ranks_of_nothing_but_padding_are_alike_and_whole() -> None:
    for case in ("z3_w11_fp16", "z2_w11_bf16", "z2_w4_3groups_tiny", "z3_w2_legacyser"):
        opened = open_checkpoint(fixture_root() / "deepspeed" / case)
        assert opened.complete and not any(f.code == "duplicate-copy" for f in opened.findings)


def test_an_expert_file_holds_its_own_expert(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = tmp_path / "case"
    shutil.copytree(fixture_root() / "deepspeed" / "moe_w2_ep2_z0", folder, ignore=shutil.ignore_patterns("expected*"))
    expert, other = sorted(folder.rglob("layer_0_expert_*"))[:2]
    state = torch.load(other, weights_only=False)
    with expert.open("wb") as file:  # a stream has no name, so the archive has none
        torch.save(state, file)
    other.unlink()
    (finding,) = (f for f in open_checkpoint(folder).findings if "is not of expert" in f.message)
    assert finding.blocks is Blocks.MERGE and expert.name in finding.message


def test_a_model_file_without_weights_is_not_the_whole_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = tmp_path / "case"
    shutil.copytree(fixture_root() / "deepspeed" / "moe_w2_ep2_z0", folder, ignore=shutil.ignore_patterns("expected*"))
    with next(folder.rglob("mp_rank_00_model_states.pt")).open("wb") as file:
        torch.save({"num_experts": [2]}, file)
    with pytest.raises(CheckpointError, match=r"mp_rank_00_model_states\.pt"):
        shardyard.merge(folder, out=tmp_path / "out")


@pytest.mark.parametrize("case", ["old_0_5_10_z1", "old_0_3_16_z2_1group"])
def test_masters_without_their_model_file_are_not_the_whole_model(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(fixture_root() / "deepspeed" / case, folder, ignore=shutil.ignore_patterns("expected*"))
    next(folder.rglob("mp_rank_00_model_states.pt")).unlink()
    with pytest.raises(IncompleteError, match="buffers, frozen weights and ties are not known"):
        shardyard.merge(folder, out=tmp_path / "out")
    assert shardyard.merge(folder, out=tmp_path / "out", allow_incomplete=True)["complete"] is False
