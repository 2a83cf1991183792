"""LoRA as peft itself trains, saves, loads and merges it: what we split or fold must be what peft makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardyard.operations.compare import CompareOptions, compare_paths
from support.command import last_line, shardyard

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
peft = pytest.importorskip("peft", reason="peft is not installed (the interop extra)")

from safetensors.torch import save_file  # noqa: E402

from interop import models  # noqa: E402

pytestmark = pytest.mark.interop

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 6}),
    "conv1d": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "r": 3, "lora_alpha": 12, "fan_in_fan_out": True}),
    "embedding": ("llama", {"target_modules": ["embed_tokens", "o_proj"], "r": 2, "lora_alpha": 8}),
    "rslora": ("llama", {"target_modules": ["gate_proj"], "r": 9, "lora_alpha": 6, "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": ["q_proj", "k_proj"],
            "r": 4,
            "lora_alpha": 8,
            "rank_pattern": {"layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {"k_proj": 5},
        },
    ),
    "whole modules": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "r": 4, "lora_alpha": 8}),
}


def trained(name: str) -> Any:
    """A peft model whose adapter is not the one it started with, in which every B is zero."""
    architecture, settings = SETTINGS[name]
    model = peft.get_peft_model(models.build(architecture), peft.LoraConfig(**settings, lora_dropout=0.0))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def saved(model: Any, folder: Path) -> Path:
    """The whole state, wrappers and all, as a trainer leaves it, with the adapter's settings beside it."""
    folder.mkdir()
    model.base_model.model.config.save_pretrained(folder)
    model.peft_config["default"].save_pretrained(folder)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(folder: Path, like: Any) -> Any:
    loaded, info = type(like).from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return loaded.eval()


@pytest.mark.parametrize("name", SETTINGS)
def test_folding_is_merge_and_unload_within_float32_rounding(name: str, tmp_path: Path) -> None:
    model = trained(name)
    source = saved(model, tmp_path / "source")
    done = shardyard("export", source, "-o", tmp_path / "out", "--lora", "fold")
    assert done.returncode == 0, done.stderr
    before = models.logits(model)
    merged = model.merge_and_unload()
    folded = load(tmp_path / "out", merged)
    ours, theirs = folded.state_dict(), merged.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=2e-6, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")
    torch.testing.assert_close(models.logits(folded), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_peft_loads_what_was_split_off_and_answers_the_same(name: str, tmp_path: Path) -> None:
    model = trained(name)
    source = saved(model, tmp_path / "source")
    done = shardyard("export", source, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    base = load(tmp_path / "out", model.base_model.model)
    (settings,) = (tmp_path / "out").rglob("adapter_config.json")
    assert json.loads(settings.read_text())["r"] == SETTINGS[name][1]["r"]
    again = peft.PeftModel.from_pretrained(base, settings.parent).eval()
    wanted, got = peft.get_peft_model_state_dict(model), peft.get_peft_model_state_dict(again)
    assert wanted.keys() == got.keys()
    assert all(torch.equal(got[key], value) for key, value in wanted.items())
    assert torch.equal(models.logits(again), models.logits(model))


def test_an_export_that_was_never_folded_is_found_out_by_comparing(tmp_path: Path) -> None:
    model = trained("linear")
    source = saved(model, tmp_path / "source")
    base = tmp_path / "base"
    base.mkdir()
    state = models.build("llama").state_dict()
    save_file({name: value.clone() for name, value in state.items()}, base / "model.safetensors", metadata={"format": "pt"})
    assert shardyard("export", source, "-o", tmp_path / "split").returncode == 0
    plain = compare_paths(base, tmp_path / "split" / "model.safetensors")
    assert plain["equal"] and "was never folded in" in plain["verdict"]
    raw = compare_paths(base, source, CompareOptions(strip_prefix=("base_model.model.",)))
    assert raw["worst"] == "identical" and "was never folded in" in raw["verdict"]
    assert shardyard("export", source, "-o", tmp_path / "folded", "--lora", "fold").returncode == 0
    changed = compare_paths(base, tmp_path / "folded")
    assert {row["name"] for row in changed["tensors"] if row["relation"] == "different"} == {
        f"model.layers.{i}.self_attn.{which}_proj.weight" for i in range(2) for which in "qv"
    }


def test_dora_is_split_or_kept_and_never_folded(tmp_path: Path) -> None:
    settings = peft.LoraConfig(target_modules=["q_proj"], r=4, lora_alpha=8, use_dora=True)
    source = saved(peft.get_peft_model(models.build("llama"), settings), tmp_path / "source")
    done = shardyard("export", source, "-o", tmp_path / "out", "--lora", "fold")
    assert done.returncode == 3 and "more than LoRA" in last_line(done)
    assert not (tmp_path / "out").exists()
