"""A LoRA run's weights: split, PEFT loads the adapter onto the base; folded, they are what PEFT itself merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command import last_line, shardyard

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
peft = pytest.importorskip("peft", reason="peft is not installed (the interop extra)")
pytest.importorskip("transformers", reason="transformers is not installed (the interop extra)")

from interop import models  # noqa: E402

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def trained() -> Any:
    """A Llama with an adapter that has learnt something."""
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], use_rslora=False)
    model = peft.get_peft_model(models.build("llama"), config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.05)
    return model.eval()


@pytest.fixture
def source(trained: Any, tmp_path: Path) -> Path:
    """The whole state dict under the wrapper's names, as a trainer's checkpoint holds it."""
    folder = tmp_path / "source"
    folder.mkdir()
    torch.save(trained.state_dict(), folder / "pytorch_model.bin")
    trained.base_model.model.config.save_pretrained(folder)
    return folder


def with_settings(trained: Any, folder: Path) -> None:
    """adapter_config.json beside it: r and alpha are known."""
    trained.peft_config["default"].save_pretrained(str(folder))


def load(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    model, info = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return model.eval()


def test_the_split_adapter_loads_onto_the_split_base_with_the_same_answers(trained: Any, source: Path, tmp_path: Path) -> None:
    with_settings(trained, source)
    done = shardyard("export", source, "-o", tmp_path / "out", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    base = load(tmp_path / "out")
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "out" / "adapter")).eval()
    assert torch.equal(models.logits(adapted.base_model.model), models.logits(trained.base_model.model))


def test_the_folded_model_is_what_peft_merges(trained: Any, source: Path, tmp_path: Path) -> None:
    with_settings(trained, source)
    done = shardyard("export", source, "-o", tmp_path / "out", "--dtype", "float32", "--lora", "fold")
    assert done.returncode == 0, done.stderr
    import copy

    merged = copy.deepcopy(trained).merge_and_unload().state_dict()
    ours = load(tmp_path / "out").state_dict()
    assert ours.keys() == merged.keys()
    for name, value in merged.items():
        assert torch.allclose(ours[name], value, rtol=1e-6, atol=1e-7), name
    assert not torch.equal(
        ours["model.layers.0.self_attn.q_proj.weight"],
        trained.state_dict()["base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"],
    )


def test_alpha_is_never_invented(source: Path, tmp_path: Path) -> None:
    done = shardyard("export", source, "-o", tmp_path / "out", "--lora", "fold")
    assert done.returncode == 3
    assert "alpha" in last_line(done)
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_is_not_folded_in_is_named_before_and_after(source: Path, tmp_path: Path) -> None:
    before = shardyard("inspect", source)
    assert "LoRA" in before.stdout
    done = shardyard("export", source, "-o", tmp_path / "out", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert "adapter" in done.stderr + done.stdout


def test_comparing_the_split_base_with_the_base_model_says_that_nothing_changed(source: Path, tmp_path: Path) -> None:
    done = shardyard("export", source, "-o", tmp_path / "out", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    models.build("llama").save_pretrained(tmp_path / "base")
    compared = shardyard("compare", tmp_path / "out", tmp_path / "base")
    assert compared.returncode == 0, compared.stdout
