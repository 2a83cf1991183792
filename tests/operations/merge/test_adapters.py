"""LoRA weights in a checkpoint: kept, split off as PEFT saves them, or folded in as PEFT merges them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from shardyard.errors import UnsupportedError, UsageError
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.merge.run import merge
from support.checkpoints import cases, fixture_root

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")

from safetensors.torch import load_file, save_file  # noqa: E402

HEAD = "base_model.model."


def run(source: Path, out: Path, **options: object) -> dict:
    return merge(plan_merge([source], out, MergeOptions.parse(options)))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A wrapped model as a trainer saves it: two LoRA layers, an embedding, a module trained whole, and plain weights."""
    torch.manual_seed(1)
    state = {
        HEAD + "model.embed.base_layer.weight": torch.randn(20, 6),
        HEAD + "model.embed.lora_embedding_A.default": torch.randn(2, 20),
        HEAD + "model.embed.lora_embedding_B.default": torch.randn(6, 2),
        HEAD + "model.up.base_layer.weight": torch.randn(300, 6),
        HEAD + "model.up.base_layer.bias": torch.randn(300),
        HEAD + "model.up.lora_A.default.weight": torch.randn(4, 6),
        HEAD + "model.up.lora_B.default.weight": torch.randn(300, 4),
        HEAD + "model.down.base_layer.weight": torch.randn(6, 8).to(torch.bfloat16),
        HEAD + "model.down.lora_A.default.weight": torch.randn(4, 8),
        HEAD + "model.down.lora_B.default.weight": torch.randn(6, 4),
        HEAD + "model.norm.weight": torch.randn(6),
        HEAD + "score.original_module.weight": torch.zeros(3, 6),
        HEAD + "score.modules_to_save.default.weight": torch.ones(3, 6),
    }
    folder = tmp_path / "trained"
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    return folder / "model.safetensors"


def settings(trained: Path, **more: object) -> None:
    known = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"embed": 2}, "target_modules": ["up", "down"]}
    (trained.parent / "adapter_config.json").write_text(json.dumps({**known, **more}))


BASE = {"model.embed.weight", "model.up.weight", "model.up.bias", "model.down.weight", "model.norm.weight", "score.weight"}


def test_adapters_are_kept_unless_told_otherwise(trained: Path, tmp_path: Path) -> None:
    run(trained, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(load_file(trained))


def test_an_adapter_is_split_off_under_peft_s_names(trained: Path, tmp_path: Path) -> None:
    settings(trained)
    result = run(trained, tmp_path / "out", lora="split")
    stored = load_file(trained)
    base = load_file(tmp_path / "out" / "model.safetensors")
    assert set(base) == BASE
    assert torch.equal(base["score.weight"], torch.zeros(3, 6))
    assert torch.equal(base["model.up.weight"], stored[HEAD + "model.up.base_layer.weight"])
    adapter = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert set(adapter) == {
        HEAD + "model.embed.lora_embedding_A",
        HEAD + "model.embed.lora_embedding_B",
        HEAD + "model.up.lora_A.weight",
        HEAD + "model.up.lora_B.weight",
        HEAD + "model.down.lora_A.weight",
        HEAD + "model.down.lora_B.weight",
        HEAD + "score.weight",
    }
    assert torch.equal(adapter[HEAD + "score.weight"], torch.ones(3, 6))
    assert json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())["lora_alpha"] == 8
    assert {f["name"] for f in result["files"]} >= {"adapter/adapter_model.safetensors", "adapter/adapter_config.json"}


def test_alpha_is_never_invented(trained: Path, tmp_path: Path) -> None:
    run(trained, tmp_path / "out", lora="split")
    assert not (tmp_path / "out" / "adapter" / "adapter_config.json").exists()
    with pytest.raises(UnsupportedError, match="alpha is not known"):
        run(trained, tmp_path / "folded", lora="fold")
    assert not (tmp_path / "folded").exists()


@pytest.mark.parametrize("rank_stabilised", [False, True])
def test_folding_adds_the_scaled_product(trained: Path, tmp_path: Path, rank_stabilised: bool) -> None:
    settings(trained, use_rslora=rank_stabilised, alpha_pattern={"down": 2})
    run(trained, tmp_path / "out", lora="fold")
    s, got = load_file(trained), load_file(tmp_path / "out" / "model.safetensors")
    assert set(got) == BASE
    root = math.sqrt if rank_stabilised else float

    def change(module: str, a: str, b: str, alpha: float) -> torch.Tensor:
        first, second = s[HEAD + f"model.{module}.{a}"], s[HEAD + f"model.{module}.{b}"]
        return alpha / root(first.shape[0]) * (second @ first)

    up = s[HEAD + "model.up.base_layer.weight"] + change("up", "lora_A.default.weight", "lora_B.default.weight", 8)
    embed = (
        s[HEAD + "model.embed.base_layer.weight"] + change("embed", "lora_embedding_A.default", "lora_embedding_B.default", 8).T
    )
    down = s[HEAD + "model.down.base_layer.weight"].float() + change("down", "lora_A.default.weight", "lora_B.default.weight", 2)
    assert torch.allclose(got["model.up.weight"], up, atol=1e-5)
    assert torch.allclose(got["model.embed.weight"], embed, atol=1e-5)
    assert got["model.down.weight"].dtype == torch.bfloat16
    assert torch.allclose(got["model.down.weight"].float(), down, rtol=0.01, atol=0.01)
    assert torch.equal(got["score.weight"], torch.ones(3, 6))
    assert torch.equal(got["model.norm.weight"], s[HEAD + "model.norm.weight"])


def test_folded_weights_can_be_cast_and_cut_anywhere(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardyard.operations.merge import plan, transfer

    settings(trained)
    run(trained, tmp_path / "whole", lora="fold")
    monkeypatch.setattr(plan, "UNIT", 4096)
    monkeypatch.setattr(transfer, "BLOCK", 512)
    run(trained, tmp_path / "cut", lora="fold", dtype="float16")
    whole, cut = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "cut"))
    assert all(torch.allclose(cut[n].float(), t.float(), rtol=1e-2, atol=1e-2) for n, t in whole.items())


def test_what_cannot_be_folded_is_refused(trained: Path, tmp_path: Path) -> None:
    for more, why in (
        ({"use_dora": True}, "more than LoRA"),
        ({"r": 5}, "has rank 4"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "which is not read"),
        ({"fan_in_fan_out": True}, "do not fit"),
    ):
        settings(trained, **more)
        with pytest.raises(UnsupportedError, match=why):
            run(trained, tmp_path / "out", lora="fold")
    save_file({"w": torch.ones(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(UsageError, match="no LoRA weights"):
        run(tmp_path / "plain.safetensors", tmp_path / "out", lora="fold")
    run(tmp_path / "plain.safetensors", tmp_path / "out", lora="split")


def test_a_real_rank_checkpoint_splits(tmp_path: Path) -> None:
    case = next(c for c in cases("dcp") if c.name == "verl_fsdp2_lora_w2")
    run(case / "global_step_2" / "actor", tmp_path / "out", lora="split", tied="both")
    truth = load_file(case / "expected.safetensors")
    base = load_file(tmp_path / "out" / "model.safetensors")
    adapter = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert len(base) + len(adapter) == len(truth)
    assert all("lora" not in n and "base_layer" not in n and not n.startswith(HEAD) for n in base)
    for name, t in truth.items():
        clean = name.replace(".default", "")
        found = adapter[clean] if "lora" in name else base[name.removeprefix(HEAD).replace(".base_layer", "")]
        assert torch.equal(found, t)


def test_a_real_adapter_folds_into_its_base_as_peft_merges_it(tmp_path: Path) -> None:
    files = fixture_root() / "files"
    reference = files / "a4_peft_merged_reference"
    source = files / "a4_peft_lora"
    run(source, tmp_path / "out", lora="fold", like=str(reference / "base.safetensors"), tied="both")
    got, want = load_file(tmp_path / "out" / "model.safetensors"), load_file(reference / "merged.safetensors")
    assert set(got) == set(want)
    assert all(torch.allclose(got[n], t, atol=1e-6) for n, t in want.items())
    with pytest.raises(UsageError, match="an adapter alone"):
        run(source, tmp_path / "alone", lora="fold")
