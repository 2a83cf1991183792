"""Model folders: shards and index against each other, what is stale, missing, empty or not what its name says."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from shardyard.discover import open_checkpoint
from support.model_files import llama, safetensors_bytes, write_config, write_index, write_safetensors, write_sharded
from support.reports import codes, finding, looked_at, only


def parts(count: int) -> list[dict[str, np.ndarray]]:
    """A tiny Llama cut into so many shards."""
    names = llama()
    keys = list(names)
    return [{k: names[k] for k in keys[i::count]} for i in range(count)]


def test_a_healthy_sharded_model_has_no_findings(tmp_path: Path) -> None:
    write_sharded(tmp_path, parts(3))
    write_config(tmp_path)
    report = only(tmp_path)
    assert report["findings"] == [] and report["complete"] and report["mergeable"]
    assert report["kind"] == "safetensors-sharded" and report["path"] == "."
    assert report["verdict"].startswith("The whole model in float32: 9 tensors")
    assert {f["role"] for f in report["files"]} == {"weights", "index", "config"}


def test_left_over_shards_of_another_save_are_stale(tmp_path: Path) -> None:
    write_sharded(tmp_path, parts(2))
    stale = tmp_path / "model-00001-of-00003.safetensors"
    write_safetensors(stale, parts(3)[0])
    found = finding(only(tmp_path), "stale-file")
    assert found["paths"] == [stale.name] and found["bytes"] == stale.stat().st_size and found["severity"] == "warning"
    assert only(tmp_path)["tensors"] == 9


def test_without_an_index_the_complete_numbering_is_the_set(tmp_path: Path) -> None:
    write_sharded(tmp_path, parts(2))
    (tmp_path / "model.safetensors.index.json").unlink()
    report = only(tmp_path)
    assert report["complete"] and codes(report, serious=True) == set()
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    report = only(tmp_path)
    assert not report["complete"] and finding(report, "missing-shard")["paths"] == ["model-00002-of-00002.safetensors"]


def test_a_missing_shard_is_an_error_that_names_file_and_tensors(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, parts(4))
    (tmp_path / "model-00001-of-00004.safetensors").unlink()
    report = only(tmp_path)
    found = finding(report, "missing-shard")
    assert found["severity"] == "error" and found["paths"] == ["model-00001-of-00004.safetensors"]
    assert set(found["tensors"]) == {n for n, f in weight_map.items() if f == "model-00001-of-00004.safetensors"}
    assert not report["complete"] and not report["mergeable"] and report["verdict"].startswith("Not the whole model")


def test_an_index_larger_than_what_is_there_says_so_beside_the_missing_shard(tmp_path: Path) -> None:
    shards = parts(4)
    total = sum(v.nbytes for s in shards for v in s.values())
    write_sharded(tmp_path, shards, total=total)
    (tmp_path / "model-00001-of-00004.safetensors").unlink()
    report = only(tmp_path)
    assert f"{total:,} bytes of tensors" in finding(report, "index-mismatch")["message"]
    assert "missing-shard" in codes(report)


def test_a_tensor_that_only_the_index_has_is_missing(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, parts(2))
    write_index(tmp_path, {**weight_map, "ghost.weight": "model-00002-of-00002.safetensors"}, total=0)
    report = only(tmp_path)
    found = next(f for f in report["findings"] if f["severity"] == "error")
    assert found["code"] == "index-mismatch" and found["tensors"] == ["ghost.weight"] and not report["complete"]


def test_tensors_of_an_oddly_named_shard_that_the_index_omits_are_counted(tmp_path: Path) -> None:
    whole = llama(layers=12)
    first = {n: v for n, v in whole.items() if "layers.1" not in n}
    write_sharded(tmp_path, [first])
    write_safetensors(tmp_path / "rest.safetensors", {n: v for n, v in whole.items() if n not in first})
    reports = [r for r in looked_at(tmp_path) if r["path"] == "."]
    found = next(f for f in reports[0]["findings"] if f["code"] == "index-mismatch")
    assert f"holds {len(whole) - len(first)} tensors that the index does not mention" in found["message"]


def test_one_name_in_two_shards_is_told_and_kept_as_a_copy_to_check(tmp_path: Path) -> None:
    shards = parts(2)
    shards[1]["model.norm.weight"] = shards[0].get("model.norm.weight", llama()["model.norm.weight"])
    shards[0]["model.norm.weight"] = shards[1]["model.norm.weight"]
    write_sharded(tmp_path, shards)
    assert finding(only(tmp_path), "duplicate-copy")["tensors"] == ["model.norm.weight"]
    assert len(open_checkpoint(tmp_path).tensors["model.norm.weight"].replicas) == 1


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9876543210\n",
            "lfs-pointer",
            "9,876,543,210 bytes. Fetch it with git lfs pull.",
        ),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "truncated", "18,446,744,073,709,551,615"),
        (struct.pack("<Q", 5000) + b'{"a":1}', "truncated", "5,000 bytes"),
        (b"", "empty-file", "empty (0 bytes)"),
        (b"<!DOCTYPE html><html><title>Sign in</title>" + b" " * 200, "wrong-type", "a web page (Sign in)"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_named_for_what_it_is(
    tmp_path: Path, content: bytes, code: str, words: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    report = only(tmp_path)
    assert report["kind"] == "unreadable" and not report["complete"]
    found = finding(report, code)
    assert words in f"{found['message']} {found['remedy']}"


def test_a_truncated_file_lists_its_tensors_and_marks_those_beyond_the_end(tmp_path: Path) -> None:
    whole = safetensors_bytes(llama())
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) * 8 // 10])
    report = only(tmp_path, tensors=True)
    found = finding(report, "truncated")
    assert report["tensors"] == 9 and found["bytes"] == len(whole) - len(whole) * 8 // 10
    assert "lm_head.weight" in found["tensors"] and "model.embed_tokens.weight" not in found["tensors"]
    rows = {r["name"]: r["files"] for r in report["tensor_list"]}
    assert rows["lm_head.weight"] == [] and rows["model.embed_tokens.weight"] == ["model.safetensors"]


def test_two_sets_of_weights_in_one_folder_compete(tmp_path: Path) -> None:
    write_sharded(tmp_path, parts(2))
    write_safetensors(tmp_path / "model.safetensors", llama())
    reports = looked_at(tmp_path)
    assert [r["path"] for r in reports] == [".", "model.safetensors.index.json"]
    found = finding(reports[0], "competing-weights")
    assert found["paths"][0] == "model.safetensors" and "loaders take model.safetensors" in found["message"]
    assert open_checkpoint(tmp_path).kind.value == "safetensors"


def test_unknown_dtypes_are_shown_by_name_and_length(tmp_path: Path) -> None:
    tensors = {
        "a": ("F8_E8M0", (4,), bytes(4)),
        "b": ("F4", (2, 4), bytes(4)),
        "c": ("F6_E2M3", (4,), bytes(3)),
        "d": ("C64", (2,), bytes(16)),
        "e": ("X9", (3,), bytes(7)),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    report = only(tmp_path, tensors=True)
    rows = {r["name"]: (r["dtype"], r["shape"], r["bytes"]) for r in report["tensor_list"]}
    assert rows["a"] == ("float8_e8m0fnu", [4], 4) and rows["b"] == ("float4_e2m1fn_x2", [2, 2], 4)
    assert rows["c"] == ("float6_e2m3", [4], 3) and rows["d"] == ("complex64", [2], 16) and rows["e"] == ("X9", [3], 7)
    assert "X9" in finding(report, "unsupported")["message"] and report["complete"]


def test_a_header_over_the_reference_limit_is_read_and_said(tmp_path: Path) -> None:
    tensors = {f"t{i}": ("U8", (1,), b"\1") for i in range(20)}
    content = safetensors_bytes(tensors)
    length = int.from_bytes(content[:8], "little")
    padded = 100_000_001
    raw = struct.pack("<Q", padded) + content[8 : 8 + length] + b" " * (padded - length) + content[8 + length :]
    (tmp_path / "model.safetensors").write_bytes(raw)
    found = finding(only(tmp_path), "unsupported")
    assert "over the reference library's limit" in found["message"] and "1,073,741,824" in found["message"]


def test_an_empty_adapter_points_to_the_training_step(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "adapter_model.safetensors", {})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    (tmp_path / "global_step100").mkdir()
    report = only(tmp_path)
    found = finding(report, "placeholder")
    assert report["kind"] == "lora-adapter" and "empty adapter" in found["message"] and "global_step100" in found["remedy"]
    assert report["verdict"].startswith("Not a model yet") and not report["mergeable"]


def test_an_adapters_alpha_is_never_made_up(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "adapter_model.safetensors", {"base_model.model.q.lora_A.weight": np.ones((2, 4), "float32")})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    assert "alpha not recorded" in only(tmp_path)["verdict"]


def test_a_staging_sibling_that_holds_the_other_half_is_found(tmp_path: Path) -> None:
    final, staging = tmp_path / "checkpoint-100", tmp_path / "tmp-checkpoint-100"
    write_sharded(final, parts(2))
    staging.mkdir()
    (final / "model-00002-of-00002.safetensors").rename(staging / "model-00002-of-00002.safetensors")
    report = next(r for r in looked_at(tmp_path) if r["path"] == "checkpoint-100")
    found = finding(report, "staging-sibling")
    assert "tmp-checkpoint-100" in found["message"] and "model-00002-of-00002.safetensors" in found["message"]


def test_layers_that_are_not_there_are_doubted(tmp_path: Path) -> None:
    write_config(tmp_path, num_hidden_layers=4)
    write_safetensors(tmp_path / "model.safetensors", llama(layers=2))
    assert "config.json says 4" in finding(only(tmp_path), "missing-tensor")["message"]
    whole = llama(layers=4)
    write_safetensors(tmp_path / "model.safetensors", {n: v for n, v in whole.items() if "layers.2." not in n})
    assert "lacks layer 2 of 4" in finding(only(tmp_path), "missing-tensor")["message"]
