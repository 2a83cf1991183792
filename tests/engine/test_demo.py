"""The demo tree is made of real checkpoints: the libraries that define the formats read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardyard import demo
from support.command import last_line, shardyard


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "tree"
    demo.write(root)
    return root


def test_it_is_small(tree: Path) -> None:
    assert sum(p.stat().st_size for p in tree.rglob("*") if p.is_file()) < 10_000_000


def test_torch_reads_its_files(tree: Path) -> None:
    torch = pytest.importorskip("torch")
    shards = [torch.load(p, weights_only=True) for p in sorted((tree / "bloated-bins").glob("*.bin"))]
    assert sum(map(len, shards)) == 30
    flat = shards[1]["model.norm.weight"] if "model.norm.weight" in shards[1] else next(iter(shards[1].values()))
    assert flat.untyped_storage().nbytes() > 2 * flat.nbytes


def test_torch_reads_its_distributed_checkpoint(tree: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(tree / "fsdp" / "checkpoint-2000" / "pytorch_model_fsdp_0", tmp_path / "all.pt")
    model = torch.load(tmp_path / "all.pt", weights_only=True)["model"]
    assert torch.equal(model["lm_head.weight"], model["model.embed_tokens.weight"])


@pytest.mark.interop
@pytest.mark.parametrize("run", ["zero3/checkpoint-2000", "zero2/checkpoint-500"])
def test_deepspeed_reads_its_zero_folders(tree: Path, run: str) -> None:
    torch = pytest.importorskip("torch")
    converter = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    state = converter.get_fp32_state_dict_from_zero_checkpoint(str(tree / run))
    flat = demo.DemoModel().float32
    assert len(state) == 30
    for name, data in flat.items():
        assert torch.equal(state[name].flatten(), torch.frombuffer(bytearray(data), dtype=torch.float32)), name


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    done = shardyard("demo", tmp_path, "--no-app")
    assert done.returncode == 5
    assert "not empty" in last_line(done)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_without_a_folder_the_tree_goes_to_the_cache_and_is_made_anew(tmp_path: Path) -> None:
    for _ in range(2):
        done = shardyard("demo", "--no-app", XDG_CACHE_HOME=str(tmp_path))
        assert done.returncode == 0
    assert (Path(done.stdout.strip()) / "zero3" / "checkpoint-2000" / "latest").is_file()


def test_without_a_terminal_it_says_what_inspect_says(tmp_path: Path) -> None:
    done = shardyard("demo", tmp_path / "tree")
    assert done.returncode == 0
    assert "zero3/checkpoint-2000" in done.stdout
