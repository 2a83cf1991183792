"""Requests that do not fit what is there: strangers among the folders, steps that are not, and folders that are closed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shardyard.discover import find, open_checkpoint
from shardyard.errors import CheckpointError, UsageError
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.folder import Folder
from shardyard.library import merge
from shardyard.operations.inspect.report import report
from support.checkpoints import fixture_root

ZERO2 = "z2_w2_bf16"


def split(tmp_path: Path, case: str = ZERO2) -> tuple[Path, Path]:
    """The case as two nodes left it: rank 0's files and rank 1's."""
    nodes = tmp_path / "node0", tmp_path / "node1"
    source = fixture_root() / "deepspeed" / case
    for node, ranks in zip(nodes, ("rank_0_mp mp_rank latest", "rank_1_mp"), strict=True):
        ignored = [f"*{n}*" for n in ("rank_0_mp", "rank_1_mp") if n not in ranks]
        shutil.copytree(source, node, ignore=shutil.ignore_patterns("expected*", *ignored))
    (nodes[1] / "latest").unlink()
    for file in nodes[1].rglob("mp_rank*"):
        file.unlink()
    return nodes


def test_every_folder_must_add_to_the_checkpoint(tmp_path: Path) -> None:
    one, two = split(tmp_path)
    assert open_checkpoint([one, two]).complete and open_checkpoint([two, one]).complete
    assert open_checkpoint([one / "global_step3", two / "global_step3"]).complete
    model = fixture_root() / "files" / "a1_llama_safetensors"
    other_run = fixture_root() / "deepspeed" / "z2_w2_tags"
    (tmp_path / "empty").mkdir()
    for stranger in (model, tmp_path / "empty"):
        with pytest.raises(UsageError, match=f"{stranger.name} holds no file of the checkpoint"):
            open_checkpoint([one, two, stranger])
    with pytest.raises((UsageError, CheckpointError)):
        merge(one, two, other_run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_step_is_not_mixed_in_unsaid(tmp_path: Path) -> None:
    one, two = split(tmp_path)
    later = tmp_path / "later"
    shutil.copytree(fixture_root() / "deepspeed" / ZERO2 / "global_step3", later / "global_step9")
    with pytest.raises(UsageError, match=r"later holds no file of the checkpoint .*global_step3"):
        open_checkpoint([one, two, later])


@pytest.mark.parametrize("case", ["files/a1_llama_safetensors", "dcp/dcp_fsdp2_adamw/ckpt", "files/a4_npz/plain.npz"])
def test_a_tag_is_not_ignored(case: str) -> None:
    path = fixture_root() / case
    if not path.exists():
        path = next(p for p in path.parent.iterdir() if p.suffix == ".npz")
    with pytest.raises(UsageError, match="leave --tag global_step7 out"):
        open_checkpoint(path, OpenOptions(tag="global_step7"))


def test_an_empty_latest_is_told_as_empty(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(fixture_root() / "deepspeed" / ZERO2, root, ignore=shutil.ignore_patterns("expected*"))
    (root / "latest").write_text("\n")
    with pytest.raises(CheckpointError, match=r"`latest` is empty.*steps here: global_step3.*--tag global_step3"):
        merge(root, out=tmp_path / "out")
    with pytest.raises(UsageError, match="There is no step other; steps here: global_step3"):
        open_checkpoint(root, OpenOptions(tag="other"))


def test_a_closed_step_folder_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    shutil.copytree(fixture_root() / "files" / "a1_llama_safetensors", root)
    (root / "global_step7").mkdir()
    assert find(root).path == root  # empty, and that can be seen
    scandir = os.scandir

    def closed(path: str | os.PathLike[str]) -> object:
        if os.fspath(path).endswith("global_step7"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert Folder(root / "global_step7").entries == {}
    with pytest.raises(UsageError, match=r"global_step7 cannot be listed.*give the path of .*safetensors itself"):
        find(root)
    assert find(next(root.glob("*.safetensors"))).files


def test_a_report_of_a_step_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    shutil.copytree(fixture_root() / "deepspeed" / "z2_w2_tags", tmp_path / "run", ignore=shutil.ignore_patterns("expected*"))
    shutil.copytree(fixture_root() / "files" / "a1_llama_safetensors", tmp_path / "model")
    with pytest.raises(UsageError, match=r"no step nope in .*steps here: final-α, global_step2, global_step3"):
        report(tmp_path, tag="nope")
    with pytest.raises(UsageError, match="nothing here has steps"):
        report(tmp_path / "model", tag="nope")
    tags = {c["path"]: c["tag"] for c in report(tmp_path, tag="global_step3")["checkpoints"]}
    assert tags["run"] == "global_step3" and tags["model"] is None
