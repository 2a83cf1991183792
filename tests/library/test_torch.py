"""The torch extra: lazily read state dicts, loading into a model, saving that cannot bloat."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardyard import demo
from shardyard.errors import OutputExistsError, UnsupportedError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
from safetensors.torch import load_file  # noqa: E402

from shardyard.torch import consolidate, load_into, save, state_dict  # noqa: E402


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("torch") / "tree"
    demo.write(root)
    return root


class Tied(torch.nn.Module):
    """An embedding and a head that share one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 3)
        self.head = torch.nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.arange(4))


def test_a_state_dict_is_read_when_it_is_asked_for(tree: Path) -> None:
    state = state_dict(tree / "zero3" / "checkpoint-2000")
    before = state._handles.bytes_read
    assert len(state) == 30
    norm = state["model.norm.weight"]
    assert norm.numpy().tobytes() == demo.DemoModel().float32["model.norm.weight"]
    assert state._handles.bytes_read - before < 10_000


def test_tied_names_share_one_tensor(tree: Path) -> None:
    state = dict(state_dict(tree / "zero3" / "checkpoint-2000", dtype="bf16"))
    assert state["lm_head.weight"] is state["model.embed_tokens.weight"]
    assert state["lm_head.weight"].dtype == torch.bfloat16


def test_an_incomplete_checkpoint_gives_no_state_dict(tree: Path) -> None:
    with pytest.raises(Exception, match=r"rank_2|rank 3"):
        state_dict(tree / "damaged" / "checkpoint-100")


def test_weights_are_copied_into_a_model_in_its_own_dtype(tmp_path: Path) -> None:
    source, target = Tied(), Tied().to(torch.bfloat16)
    save(source, tmp_path / "out")
    load_into(target, tmp_path / "out")
    assert torch.equal(target.embed.weight, source.embed.weight.to(torch.bfloat16))
    assert target.head.weight is target.embed.weight


def test_a_model_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    save({"embed.weight": torch.zeros(7, 4)}, tmp_path / "out")
    model = Tied()
    before = model.embed.weight.clone()
    with pytest.raises(UsageError, match=r"count.*embed\.weight"):
        load_into(model, tmp_path / "out")
    assert torch.equal(model.embed.weight, before)


def test_views_of_one_buffer_are_saved_without_the_buffer(tmp_path: Path) -> None:
    flat = torch.randn(1_000_000)
    views = {f"layer.{i}": flat[i * 10 : i * 10 + 10] for i in range(5)}
    (path,) = save(views, tmp_path / "out")
    assert path.stat().st_size < 2_000
    loaded = load_file(path)
    assert all(torch.equal(loaded[name], value) for name, value in views.items())


def test_tied_weights_are_written_once_and_recorded(tmp_path: Path) -> None:
    model = Tied()
    (path,) = save(model, tmp_path / "out")
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {"embed.weight", "count"}
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}


def test_transposed_and_conjugated_values_are_written_as_they_look(tmp_path: Path) -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    state = {
        "t": matrix.t(),
        "c": torch.randn(3, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }
    (path,) = save(state, tmp_path / "out")
    loaded = load_file(path)
    assert all(torch.equal(loaded[name], value.resolve_conj()) for name, value in state.items())


def test_large_models_are_split_with_an_index(tmp_path: Path) -> None:
    state = {f"w{i}": torch.full((250,), float(i)) for i in range(4)}
    files = save(state, tmp_path / "out", max_shard_size="2KB")
    assert [f.name for f in files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    reread = dict(state_dict(tmp_path / "out"))
    assert all(torch.equal(reread[name], value) for name, value in state.items())


def test_integers_stay_and_floats_are_cast(tmp_path: Path) -> None:
    (path,) = save({"w": torch.tensor([1.0 + 2**-9]), "n": torch.tensor([2**40 + 1])}, tmp_path / "out", dtype="bfloat16")
    loaded = load_file(path)
    assert loaded["w"].dtype == torch.bfloat16 and loaded["n"].item() == 2**40 + 1


def test_what_cannot_be_held_is_refused_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="bad"):
        save({"bad": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "out")
    with pytest.raises(UsageError, match="epoch"):
        save({"epoch": 3}, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        save({"w": torch.zeros(1)}, tmp_path)


def test_a_plain_model_is_consolidated_with_ties_and_buffers() -> None:
    model = Tied()
    state = consolidate(model, dtype="bfloat16")
    assert state is not None
    assert state["head.weight"] is state["embed.weight"]
    assert state["embed.weight"].dtype == torch.bfloat16
    assert state["count"].dtype == torch.int64
