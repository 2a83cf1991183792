"""Exports are opened by the real loaders: nothing missing, unexpected or newly made, and the same answers bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command import last_line, shardyard

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
pytest.importorskip("transformers", reason="transformers is not installed (the interop extra)")

from interop import models, runs  # noqa: E402

pytestmark = pytest.mark.interop

MODELS = ["llama", "llama-tied", "gpt2", "t5", "qwen2", "mixtral"]


def export(source: Path, out: Path, *options: str) -> None:
    done = shardyard("export", source, "-o", out, *options)
    assert done.returncode == 0, done.stderr


def load(folder: Path, model: Any) -> Any:
    """Load as the model's own class; no name may be missing, unexpected, mismatched or newly made."""
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return loaded


def reference(model: Any, weights: dict[str, torch.Tensor] | None, dtype: torch.dtype, folder: Path) -> Any:
    """The source model with these weights, as transformers itself loads it in the dtype that was asked for."""
    if weights is not None:
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
    model.float().save_pretrained(folder)
    return type(model).from_pretrained(folder, dtype=dtype)


def same(loaded: Any, expected: Any) -> None:
    ours, theirs = loaded.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name
    assert torch.equal(models.logits(loaded), models.logits(expected))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_sharded_bins_exports_and_loads(name: str, dtype: str, tmp_path: Path) -> None:
    model = models.build(name)
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    export(source, tmp_path / "out", "--dtype", dtype)
    same(load(tmp_path / "out", model), reference(model, None, getattr(torch, dtype), tmp_path / "reference"))


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "t5", "qwen2", "mixtral"])
def test_a_zero_3_run_exports_and_loads(name: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (the interop extra)")
    folder = runs.deepspeed(3, "bfloat16" if name in ("llama-tied", "gpt2") else "float32", name)
    export(folder, tmp_path / "out", "--dtype", "bfloat16")
    model = models.build(name)
    same(load(tmp_path / "out", model), reference(model, torch.load(folder / "live.pt"), torch.bfloat16, tmp_path / "reference"))


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "t5", "mixtral"])
def test_an_fsdp_run_exports_and_loads(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed (the interop extra)")
    folder = runs.fsdp(2, name)
    export(folder / "checkpoint-2", tmp_path / "out", "--dtype", "float32")
    model = models.build(name)
    same(load(tmp_path / "out", model), reference(model, torch.load(folder / "live.pt"), torch.float32, tmp_path / "reference"))


@pytest.mark.parametrize(("flag", "stored"), [(True, 1), (None, 2), (False, 2)])
def test_the_tie_follows_what_config_says(flag: bool | None, stored: int, tmp_path: Path) -> None:
    """Qwen2: tied by flag; a flag that is absent means untied for this type; a head that config does not tie is written."""
    model = models.build("qwen2")
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    config = json.loads((source / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    if flag is not None:
        config["tie_word_embeddings"] = flag
    (source / "config.json").write_text(json.dumps(config))
    export(source, tmp_path / "out", "--dtype", "float32")
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        names = {"lm_head.weight", "model.embed_tokens.weight"}.intersection(file.keys())
        assert len(names) == stored
        assert "model.embed_tokens.weight" in names
    loaded = load(tmp_path / "out", model)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_config_says_the_dtype_that_was_written_and_keeps_everything_else(tmp_path: Path) -> None:
    model = models.build("llama")
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    config = {**json.loads((source / "config.json").read_text()), "dtype": "float32", "note": {"dtype": "left alone"}}
    before = json.dumps(config, indent=3)
    (source / "config.json").write_text(before)
    export(source, tmp_path / "out", "--dtype", "float16")
    after = (tmp_path / "out" / "config.json").read_text()
    assert json.loads(after)["dtype"] == "float16"
    assert after == before.replace('"dtype": "float32"', '"dtype": "float16"')


def test_without_a_config_the_export_names_the_option_that_helps(tmp_path: Path) -> None:
    model = models.build("llama")
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    (source / "config.json").rename(tmp_path / "elsewhere.json")
    done = shardyard("export", source, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "--like" in last_line(done)
    base = tmp_path / "base"
    model.save_pretrained(base)
    export(source, tmp_path / "out", "--like", str(base), "--dtype", "float32")
    same(load(tmp_path / "out", model), model)


def test_a_base_model_of_other_shapes_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model, other = models.build("llama"), models.build("mixtral")
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    other.save_pretrained(tmp_path / "base")
    done = shardyard("export", source, "-o", tmp_path / "out", "--like", tmp_path / "base")
    assert done.returncode == 3
    assert "block_sparse_moe" in last_line(done)
    assert not list(tmp_path.glob("out*"))


def test_values_that_overflow_publish_nothing(tmp_path: Path) -> None:
    model = models.build("llama")
    with torch.no_grad():
        model.model.norm.weight[3] = 70000.0
    source = tmp_path / "source"
    source.mkdir()
    runs.sharded_bins(model, source)
    done = shardyard("export", source, "-o", tmp_path / "out", "--dtype", "float16")
    assert done.returncode == 3
    assert "model.norm.weight" in last_line(done)
    assert not (tmp_path / "out").exists()
    export(source, tmp_path / "out", "--dtype", "float16", "--keep-dtype", "*norm*")


def test_a_quantised_model_is_copied_and_never_cast(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tmp_path / "source"
    source.mkdir()
    weight = torch.randn(8, 16).to(torch.float8_e4m3fn)
    state = {"model.layers.0.mlp.up_proj.weight": weight, "model.layers.0.mlp.up_proj.weight_scale_inv": torch.rand(1, 1)}
    save_file(state, source / "model.safetensors", {"format": "pt"})
    config = {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    (source / "config.json").write_text(json.dumps(config))
    export(source, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(written[n].view(torch.uint8), v.view(torch.uint8)) for n, v in state.items())
    assert (tmp_path / "out" / "config.json").read_text() == (source / "config.json").read_text()
    done = shardyard("export", source, "-o", tmp_path / "cast", "--dtype", "bfloat16")
    assert done.returncode == 3
    assert "quantised" in last_line(done)
