"""What is told of a model's tensors: ties, bloat, precision, names, placeholders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import Storage, tensor, write_torch
from shardyard.health.patterns import fold
from support.model_files import llama, write_config, write_safetensors, write_sharded
from support.reports import codes, finding, only

FLOAT = BY_NAME["float32"]


def state(**tensors: object) -> Dict:
    """A state dict; `__` in a keyword stands for a dot."""
    found = Dict()
    found.pairs.extend((name.replace("__", "."), value) for name, value in tensors.items())
    return found


def storage(numel: int) -> Storage:
    return Storage(FLOAT, np.arange(numel, dtype="float32").tobytes())


# Ties


def tied_model(folder: Path, *, flip: bool = False) -> None:
    """Head and embedding equal, stored twice, and config.json ties them."""
    names = llama()
    names["lm_head.weight"] = names["model.embed_tokens.weight"].copy()
    if flip:
        names["lm_head.weight"].view(np.uint32)[3, 3] ^= 1
    write_safetensors(folder / "model.safetensors", names)
    write_config(folder, tie_word_embeddings=True)


def test_a_tied_pair_that_is_stored_twice_is_a_likely_waste_and_a_sure_one_once_compared(tmp_path: Path) -> None:
    tied_model(tmp_path)
    guessed, compared = finding(only(tmp_path), "duplicate-copy"), finding(only(tmp_path, deep=True), "duplicate-copy")
    assert guessed["certainty"] == "likely" and compared["certainty"] == "sure"
    assert guessed["bytes"] == compared["bytes"] == 16 * 8 * 4
    assert set(compared["tensors"]) == {"lm_head.weight", "model.embed_tokens.weight"}


def test_one_bit_makes_the_tie_a_disagreement(tmp_path: Path) -> None:
    tied_model(tmp_path, flip=True)
    report = only(tmp_path, deep=True)
    assert finding(report, "tie-disagrees")["severity"] == "warning" and "duplicate-copy" not in codes(report)


@pytest.mark.parametrize("tied", [True, False])
def test_an_absent_head_is_missing_only_if_nothing_ties_it(tmp_path: Path, tied: bool) -> None:
    write_safetensors(tmp_path / "model.safetensors", llama(head=False))
    write_config(tmp_path, tie_word_embeddings=tied)
    report = only(tmp_path)
    if tied:
        assert report["findings"] == []
    else:
        found = finding(report, "tie-missing")
        assert "output head" in found["message"] and found["severity"] == "warning"
        assert report["verdict"].startswith("Probably not the whole model")


def test_a_tie_in_the_file_that_config_denies_is_told(tmp_path: Path) -> None:
    shared = storage(64)
    write_torch(
        tmp_path / "pytorch_model.bin",
        state(model__embed_tokens__weight=tensor(shared, (8, 8)), lm_head__weight=tensor(shared, (8, 8))),
    )
    write_config(tmp_path, tie_word_embeddings=False)
    report = only(tmp_path)
    assert "tie_word_embeddings is false" in finding(report, "tie-disagrees")["message"]
    assert report["tied"] == [["model.embed_tokens.weight", "lm_head.weight"]] and report["parameters"] == 64


def test_config_ties_two_tensors_of_different_shapes(tmp_path: Path) -> None:
    names = llama()
    names["lm_head.weight"] = np.ones((20, 8), "float32")
    write_safetensors(tmp_path / "model.safetensors", names)
    write_config(tmp_path, tie_word_embeddings=True)
    assert "shapes differ" in finding(only(tmp_path), "tie-disagrees")["message"]


def test_disjoint_views_of_one_buffer_are_no_ties(tmp_path: Path) -> None:
    flat = storage(420)
    views = {f"layers__{i}__weight": tensor(flat, (4, 5), 20 * i) for i in range(20)}
    views["embed"] = tensor(flat, (20,), 400)
    views["head"] = tensor(flat, (20,), 400)
    write_torch(tmp_path / "pytorch_model.bin", state(**views))
    report = only(tmp_path)
    assert report["tied"] == [["embed", "head"]] and report["tensors"] == 22 and "bloat" not in codes(report)


# Bloat


def test_views_of_one_buffer_in_three_shards_are_bloat_in_exact_bytes(tmp_path: Path) -> None:
    weight_map = {}
    for i in range(3):
        name = f"pytorch_model-{i + 1:05d}-of-00003.bin"
        flat = storage(30_000)
        write_torch(tmp_path / name, state(**{f"layers__{i}__weight": tensor(flat, (100, 100), 10_000 * i)}))
        weight_map[f"layers.{i}.weight"] = name
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    report = only(tmp_path)
    bloat = [f for f in report["findings"] if f["code"] == "bloat"]
    assert [f["bytes"] for f in bloat] == [80_000] * 3 and report["bytes"]["wasted"] == 240_000
    assert report["bytes"]["weights"] == 120_000 and all("39.1 KiB" in f["remedy"] for f in bloat)


@pytest.mark.parametrize(
    ("shape", "offset", "strides", "touched"),
    [
        ((1000,), 999_000, None, 4000),  # one row of a matrix
        ((1000, 100), 300, (1000, 1), 400_000),  # a chunk of columns
        ((1000, 1000), 0, (0, 1), 4000),  # expanded
        ((500,), 0, (2000,), 2000),  # strided
    ],
)
def test_bytes_that_a_view_needs_follow_its_layout(
    tmp_path: Path, shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None, touched: int
) -> None:
    write_torch(tmp_path / "model.pt", state(w=tensor(storage(1_000_000), shape, offset, strides)))
    report = only(tmp_path)
    assert finding(report, "bloat")["bytes"] == 4_000_000 - touched == report["bytes"]["wasted"]


# Precision


def test_weights_wider_than_config_say_what_a_cast_would_save(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", llama())
    write_config(tmp_path, dtype="bfloat16")
    report = only(tmp_path)
    found = finding(report, "wider-than-config")
    assert found["bytes"] == sum(v.nbytes for v in llama().values()) // 2 and found["severity"] == "warning"
    assert "config.json says bfloat16" in found["message"] and report["dtypes"] == {"float32": 9}


def test_a_router_kept_in_float32_is_not_wider_than_config(tmp_path: Path) -> None:
    names = llama(dtype="float16")
    names["model.layers.0.gate.weight"] = np.ones((4, 8), "float32")
    write_safetensors(tmp_path / "model.safetensors", names)
    write_config(tmp_path, torch_dtype="float16", dtype=None)
    assert "wider-than-config" not in codes(only(tmp_path))


def test_quantised_weights_are_named(tmp_path: Path) -> None:
    names = {"model.layers.0.mlp.up_proj.qweight": np.ones((4, 8), "int32"), "model.norm.weight": np.ones(8, "float16")}
    write_safetensors(tmp_path / "model.safetensors", names)
    write_config(tmp_path, quantization_config={"quant_method": "gptq"}, num_hidden_layers=1, architectures=[])
    assert "gptq" in finding(only(tmp_path), "quantised")["message"]


# Names


def test_nested_wrappers_are_named_with_what_they_hide(tmp_path: Path) -> None:
    names = {f"_orig_mod.{n.replace('self_attn', '_fsdp_wrapped_module.self_attn')}": v for n, v in llama().items()}
    write_safetensors(tmp_path / "model.safetensors", names)
    write_config(tmp_path)
    found = finding(only(tmp_path), "wrapper-prefix")
    assert "_orig_mod." in found["message"] and "_fsdp_wrapped_module." in found["message"] and found["severity"] == "warning"


def test_wrappers_whose_removal_would_join_two_names_are_not_offered(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "model.safetensors", {"_orig_mod.w.weight": np.ones(2, "float32"), "w.weight": np.ones(2, "float32")}
    )
    found = finding(only(tmp_path), "wrapper-prefix")
    assert "would be the same as others" in found["message"] and "refused" in found["remedy"]


def test_a_wrapper_at_the_head_counts_only_if_every_name_has_it(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"module.a": np.ones(2, "float32"), "b": np.ones(2, "float32")})
    assert "wrapper-prefix" not in codes(only(tmp_path))


def test_peft_names_in_a_model_folder_are_not_loadable(tmp_path: Path) -> None:
    names: dict[str, np.ndarray] = {}
    for name, value in llama().items():
        base = f"base_model.model.{name}"
        if "q_proj" in name:
            stem = base.removesuffix(".weight")
            names |= {f"{stem}.base_layer.weight": value, f"{stem}.lora_A.default.weight": np.ones((2, 8), "float32")}
        else:
            names[base] = value
    write_sharded(tmp_path, [names])
    write_config(tmp_path)
    found = finding(only(tmp_path), "lora-unmerged")
    assert found["severity"] == "warning" and found["bytes"] == 2 * 2 * 8 * 4


# Placeholders and values


def test_placeholders_point_to_the_step_that_must_not_be_deleted(tmp_path: Path) -> None:
    empty = Storage(FLOAT, b"")
    tensors = {name.replace(".", "__"): tensor(empty, (0,)) for name in llama()}
    tensors["model__norm__weight"] = tensor(storage(8), (8,))
    write_torch(tmp_path / "pytorch_model.bin", state(**tensors))
    (tmp_path / "global_step200").mkdir()
    report = only(tmp_path)
    found = finding(report, "placeholder")
    assert found["severity"] == "error" and "8 of 9 tensors" in found["message"]
    assert "global_step200" in found["remedy"] and "do not delete it" in found["remedy"]
    assert report["verdict"].startswith("Not a model yet") and not report["mergeable"]


def test_many_matrices_of_zeros_are_told_when_values_are_read(tmp_path: Path) -> None:
    names = llama(layers=4)
    zeroed = [n for n in names if "up_proj" in n]
    for name in zeroed:
        names[name][:] = 0
    write_safetensors(tmp_path / "model.safetensors", names)
    found = finding(only(tmp_path, deep=True), "all-zero")
    assert set(found["tensors"]) == set(zeroed) and found["severity"] == "warning"


def test_values_that_are_not_finite_are_told_when_values_are_read(tmp_path: Path) -> None:
    names = llama()
    names["model.norm.weight"][2] = np.nan
    names["lm_head.weight"][0, :3] = np.inf
    write_safetensors(tmp_path / "model.safetensors", names)
    report = only(tmp_path, deep=True)
    assert finding(report, "nan")["tensors"] == ["model.norm.weight"] and finding(report, "inf")["tensors"] == ["lm_head.weight"]


def test_what_was_not_read_is_not_said_to_be_checked(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", llama())
    assert "values" in only(tmp_path)["not_checked"] and "values" in only(tmp_path, deep=True)["checked"]


# The report


def test_layers_fold_into_patterns_and_the_report_is_stable(tmp_path: Path) -> None:
    write_sharded(tmp_path, [llama(layers=32)])
    write_config(tmp_path, num_hidden_layers=32)
    report = only(tmp_path, tensors=True)
    patterns = fold(report["tensor_list"])
    assert [p.count for p in patterns] == [1, 32, 32, 32, 1, 1]
    assert patterns[1].name == "model.layers.#.self_attn.q_proj.weight" and patterns[1].nbytes == 32 * 256
    assert json.dumps(report) == json.dumps(only(tmp_path, tensors=True))


def test_hashes_are_of_row_major_values(tmp_path: Path) -> None:
    import hashlib

    values = np.arange(12, dtype="float32").reshape(3, 4)
    write_torch(tmp_path / "model.pt", state(w=tensor(Storage(FLOAT, values.T.tobytes()), (3, 4), 0, (1, 3))))
    row = only(tmp_path, tensors=True, hashes=True)["tensor_list"][0]
    assert row["sha256"] == hashlib.sha256(values.tobytes()).hexdigest()
