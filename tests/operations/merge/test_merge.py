"""Merging: real checkpoints bit for bit, outputs that the reference libraries open, and every option's meaning."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest
from safetensors import safe_open

from shardyard.checkpoint import Checkpoint, CheckpointKind, Part, Role, Tensor, Tie
from shardyard.dtypes import BY_NAME
from shardyard.errors import (
    AmbiguousError,
    CheckpointError,
    DamagedError,
    IncompleteError,
    JobError,
    NoRoomError,
    OutputExistsError,
    ShardyardError,
    UnsupportedError,
    UsageError,
)
from shardyard.findings import Blocks, Finding, Severity
from shardyard.operations.merge import run as operation
from shardyard.operations.merge.options import MergeOptions, parse_size
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.merge.run import merge
from support.checkpoints import cases
from support.damage import damage_of

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")

from safetensors.torch import load_file, save_file  # noqa: E402

STATE = {
    "model.embed_tokens.weight": torch.randn(32, 8),
    "model.layers.0.up.weight": torch.randn(16, 8),
    "model.layers.0.norm.weight": torch.randn(8).to(torch.bfloat16),
    "model.layers.0.count": torch.arange(3),
    "model.layers.10.up.weight": torch.randn(16, 8).to(torch.float16),
    "model.layers.2.mask": torch.tensor([True, False, True]),
    "model.empty": torch.zeros(0, 4),
    "lm_head.weight": torch.randn(32, 8),
}


def run(source: Path | Checkpoint, out: Path, **options: object) -> dict:
    given = source if isinstance(source, Checkpoint) else [source]
    return merge(plan_merge(given, out, MergeOptions.parse(options)))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b)


def _bytes(t: torch.Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def load(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of an output, by the reference libraries."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(out.iterdir()) if out.is_dir() else [out]:
        if path.suffix == ".safetensors":
            found.update(load_file(path))
        elif path.suffix in (".bin", ".pt", ".pth"):
            found.update(torch.load(path, weights_only=True, mmap=True))
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(STATE, folder / "model.safetensors")
    return folder


ZERO = [c for prefix in ("z1_", "z2_", "z3_", "trainer_") for c in cases("deepspeed", prefix)]


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_zero_folders_merge_bit_for_bit(kind: str, tmp_path: Path) -> None:
    wrong = []
    for case in ZERO:
        if case.name == "z2_w2_tags":
            continue  # several steps, each with a truth of its own: the sweep has them
        out = tmp_path / case.name
        result = run(case, out, tied="both", format=kind)
        want, got = load_file(case / "expected.safetensors"), load(out)
        if got.keys() != want.keys() or not all(same(got[n], want[n]) for n in want):
            wrong.append(case.name)
        assert result["complete"], case.name
    assert len(ZERO) > 40
    assert not wrong


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "safetensors"), ("float16", "torch")])
def test_casts_of_real_checkpoints_equal_torch(dtype: str, kind: str, tmp_path: Path) -> None:
    for case in [c for c in ZERO if c.name.startswith("z3_")]:
        run(case, tmp_path / case.name, tied="both", dtype=dtype, format=kind)
        want, got = load_file(case / "expected.safetensors"), load(tmp_path / case.name)
        target = getattr(torch, dtype)
        assert all(same(got[n], t.to(target) if t.is_floating_point() else t) for n, t in want.items()), case.name


def test_weights_that_were_left_out_on_purpose_are_no_fault(tmp_path: Path) -> None:
    for case in [c for c in ZERO if c.name.endswith("_frozen_excl")]:
        result = run(case, tmp_path / case.name)
        assert result["complete"]
        assert any(f["code"] == "partial" for f in result["findings"])


BROKEN = [c for c in cases("deepspeed", "broken_") if c.name != "broken_latest_missing"]


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.name)
def test_broken_folders_are_refused_by_name(case: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(case, tmp_path / "out")
    damage = damage_of(case)
    touched = [Path(path).name for path in (*damage.gone, *damage.added, *damage.changed)]
    names = [(case / "latest").read_text()] if touched == ["latest"] else touched or [p.name for p in case.rglob("*_states.pt")]
    assert any(name in caught.value.message for name in names)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.shardyard-partial").exists()


def test_a_flipped_bit_is_found_by_its_crc(tmp_path: Path) -> None:
    case = next(c for c in BROKEN if c.name == "broken_flipped")
    with pytest.raises(DamagedError, match="CRC-32") as caught:
        run(case, tmp_path / "out")
    assert "optim_states.pt" in caught.value.message


def test_a_single_file_equals_the_library_s_own(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out")
    save_file(STATE, tmp_path / "reference.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "reference.safetensors").read_bytes()


def test_a_torch_file_opens_everywhere(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole.bin"
    run(source, out)
    for options in ({}, {"mmap": True}, {"weights_only": True}, {"weights_only": False}):
        found = torch.load(out, **options)
        assert list(found) == list(load_file(source / "model.safetensors"))
        assert all(same(found[n], STATE[n]) for n in STATE)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        assert not [n for n in archive.namelist() if n.endswith(".format_version")]
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-tq", str(out)], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_shards_are_split_as_the_hub_splits_them(source: Path, tmp_path: Path, kind: str) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards

    result = run(source, tmp_path / "out", max_shard_size="1KB", format=kind)
    # The hub's function sees tensors in the order of the source file, as the merge does.
    state = load_file(source / "model.safetensors")
    pattern = {"safetensors": "model{suffix}.safetensors", "torch": "pytorch_model{suffix}.bin"}[kind]
    reference = split_torch_state_dict_into_shards(state, max_shard_size="1KB", filename_pattern=pattern)
    index = json.loads(next((tmp_path / "out").glob("*.index.json")).read_text())
    assert index["weight_map"] == dict(sorted(reference.tensor_to_filename.items()))
    assert index["metadata"]["total_size"] == reference.metadata["total_size"]
    assert {f["name"] for f in result["files"] if f["tensors"]} == set(reference.filename_to_tensors)
    assert all(same(load(tmp_path / "out")[n], t) for n, t in state.items())


def test_sizes_are_read_as_a_person_writes_them() -> None:
    assert parse_size("5GB") == 5 * 10**9
    assert parse_size("1.5 mb") == 1_500_000
    assert parse_size("none") is None
    for bad in ("5 apples", "GB", "-1KB", "0"):
        with pytest.raises(UsageError):
            parse_size(bad)


def test_every_pair_of_floating_types_is_cast_as_torch_casts(tmp_path: Path) -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int32).view(torch.float32)
    doubles = torch.randn(4096, dtype=torch.float64) * 10.0 ** torch.randint(-12, 12, (4096,))
    half = torch.arange(-32768, 32767, 7, dtype=torch.int16)
    state = {"d": doubles, "f": bits, "h": half.view(torch.float16), "b": half.clone().view(torch.bfloat16), "i": torch.arange(9)}
    save_file(state, tmp_path / "in.safetensors")
    for dtype in ("float32", "bfloat16", "float16"):
        run(tmp_path / "in.safetensors", tmp_path / dtype, dtype=dtype, allow_overflow=True)
        got = load(tmp_path / dtype)
        for name, t in state.items():
            want = t.to(getattr(torch, dtype)) if t.is_floating_point() else t
            assert got[name].dtype == want.dtype
            # Which payload a NaN gets depends on the machine's instructions.
            assert torch.equal(got[name].nan_to_num(nan=0.5), want.nan_to_num(nan=0.5)) or not t.is_floating_point()
            assert torch.equal(got[name].isnan(), want.isnan())


def test_overflow_publishes_nothing_and_names_the_tensors(tmp_path: Path) -> None:
    save_file({"fine": torch.ones(4), "huge": torch.tensor([1.0, 70000.0, float("inf")])}, tmp_path / "in.safetensors")
    with pytest.raises(CheckpointError, match="huge") as caught:
        run(tmp_path / "in.safetensors", tmp_path / "out", dtype="float16")
    assert caught.value.code == "overflow"
    assert caught.value.tensors == ("huge",)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.safetensors"]
    run(tmp_path / "in.safetensors", tmp_path / "out", dtype="float16", keep_dtype=["hu*"])
    assert load(tmp_path / "out")["huge"].dtype == torch.float32
    run(tmp_path / "in.safetensors", tmp_path / "all", dtype="float16", allow_overflow=True)
    assert torch.isinf(load(tmp_path / "all")["huge"][1])


# ------------------------------------------------------------------ ties


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A torch file whose head is its input embedding, as storage and by config.json."""
    folder = tmp_path / "tied"
    folder.mkdir()
    weight = torch.randn(16, 4)
    torch.save({"model.embed_tokens.weight": weight, "b": torch.ones(2), "lm_head.weight": weight}, folder / "pytorch_model.bin")
    return folder


def config(folder: Path, **values: object) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **values}))


def test_ties_are_stored_once_where_a_loader_restores_them(tied: Path, tmp_path: Path) -> None:
    run(tied, tmp_path / "no-config")
    assert set(load(tmp_path / "no-config")) == {"model.embed_tokens.weight", "b", "lm_head.weight"}
    config(tied, tie_word_embeddings=True)
    run(tied, tmp_path / "auto")
    with safe_open(tmp_path / "auto" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == {"model.embed_tokens.weight", "b"}
        assert file.metadata() == {"format": "pt", "lm_head.weight": "model.embed_tokens.weight"}
    run(tied, tmp_path / "both", tied="both")
    assert "lm_head.weight" in load(tmp_path / "both")
    config(tied, tie_word_embeddings=False)
    run(tied, tmp_path / "untied")
    assert "lm_head.weight" in load(tmp_path / "untied")
    run(tied, tmp_path / "once", tied="once")
    assert "lm_head.weight" not in load(tmp_path / "once")


def test_a_torch_file_keeps_every_name_on_one_storage(tied: Path, tmp_path: Path) -> None:
    run(tied, tmp_path / "one.bin")
    found = torch.load(tmp_path / "one.bin")
    assert found["lm_head.weight"].data_ptr() == found["model.embed_tokens.weight"].data_ptr()
    assert list(found) == ["model.embed_tokens.weight", "b", "lm_head.weight"]
    run(tied, tmp_path / "two.bin", tied="both")
    found = torch.load(tmp_path / "two.bin")
    assert found["lm_head.weight"].data_ptr() != found["model.embed_tokens.weight"].data_ptr()


def test_copies_are_dropped_only_if_they_are_equal(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    config(folder, tie_word_embeddings=True)
    weight = torch.randn(700, 1000)
    state = {"model.embed_tokens.weight": weight, "lm_head.weight": weight.clone()}
    save_file(state, folder / "model.safetensors")
    for name, dtype in (("plain", "keep"), ("cast", "bfloat16")):
        run(folder, tmp_path / name, dtype=dtype)
        assert set(load(tmp_path / name)) == {"model.embed_tokens.weight"}
    state["lm_head.weight"][-1, -1] += 1
    save_file(state, folder / "model.safetensors")
    for dtype in ("keep", "bfloat16"):
        with pytest.raises(DamagedError) as caught:
            run(folder, tmp_path / "differs", dtype=dtype)
        assert caught.value.code == "tie-disagrees"
        assert not (tmp_path / "differs.shardyard-partial").exists()
    run(folder, tmp_path / "both", tied="both")
    assert all(same(load(tmp_path / "both")[n], t) for n, t in state.items())


def test_the_index_counts_ties_once_and_the_owner_s_shard_records_them(tied: Path, tmp_path: Path) -> None:
    run(tied, tmp_path / "out", tied="once", max_shard_size="100")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 16 * 4 * 4 + 8
    assert "lm_head.weight" not in index["weight_map"]
    with safe_open(tmp_path / "out" / index["weight_map"]["model.embed_tokens.weight"], "pt") as file:
        assert file.metadata()["lm_head.weight"] == "model.embed_tokens.weight"
    run(tied, tmp_path / "torch", format="torch", max_shard_size="100")
    index = json.loads((tmp_path / "torch" / "pytorch_model.bin.index.json").read_text())
    assert index["weight_map"]["lm_head.weight"] == index["weight_map"]["model.embed_tokens.weight"]


# ------------------------------------------------------------------ names and selection


def test_wrapper_prefixes_go_and_collisions_stop(tmp_path: Path) -> None:
    state = {
        "module._orig_mod.layers.0._checkpoint_wrapped_module.up.weight": torch.ones(2),
        "module._orig_mod.layers.1._fsdp_wrapped_module._orig_mod.up.weight": torch.ones(3),
        "module.module_list.weight": torch.ones(4),
    }
    save_file(state, tmp_path / "in.safetensors")
    run(tmp_path / "in.safetensors", tmp_path / "auto")
    assert set(load(tmp_path / "auto")) == {"layers.0.up.weight", "layers.1.up.weight", "module_list.weight"}
    run(tmp_path / "in.safetensors", tmp_path / "none", strip_prefix=["none"])
    assert set(load(tmp_path / "none")) == set(state)
    result = plan_merge(
        [tmp_path / "in.safetensors"], tmp_path / "more", MergeOptions(strip_prefix=("auto", "layers."))
    ).to_json()
    assert result["without_prefix"] == ["module.module_list.weight"]
    state["module._orig_mod.module_list.weight"] = torch.ones(5)
    save_file(state, tmp_path / "in.safetensors")
    with pytest.raises(UsageError, match="both become module_list"):
        run(tmp_path / "in.safetensors", tmp_path / "collide")


def test_a_head_prefix_goes_only_if_every_name_has_it(tmp_path: Path) -> None:
    save_file({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "in.safetensors")
    run(tmp_path / "in.safetensors", tmp_path / "out")
    assert set(load(tmp_path / "out")) == {"module.a", "b"}


def test_select_and_exclude(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", select=["model.layers.*"], exclude=["*count", "*mask"])
    assert set(load(tmp_path / "out")) == {n for n in STATE if "layers" in n and "count" not in n and "mask" not in n}
    with pytest.raises(UsageError, match="matches no tensor"):
        run(source, tmp_path / "typo", select=["model.layer.*"])
    with pytest.raises(UsageError, match="leave no tensor"):
        run(source, tmp_path / "nothing", exclude=["*"])


def test_trainable_only(tmp_path: Path) -> None:
    case = next(c for c in ZERO if c.name == "z2_w2_frozen")
    everything = load_file(case / "expected.safetensors")
    run(case, tmp_path / "out", trainable_only=True, tied="both")
    got = load(tmp_path / "out")
    frozen = set(everything) - set(got)
    assert frozen and all(same(got[n], everything[n]) for n in got)
    save_file({"a": torch.ones(1)}, tmp_path / "in.safetensors")
    with pytest.raises(UsageError, match="does not record"):
        run(tmp_path / "in.safetensors", tmp_path / "none", trainable_only=True)


# ------------------------------------------------------------------ what cannot be


def test_what_safetensors_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "z": torch.ones(2, dtype=torch.complex128)}, tmp_path / "in.pt")
    with pytest.raises(UnsupportedError, match=r"z \(complex128\)") as caught:
        run(tmp_path / "in.pt", tmp_path / "out")
    assert "--exclude" in caught.value.message and "--format torch" in caught.value.message
    run(tmp_path / "in.pt", tmp_path / "without", exclude=["z"])
    assert set(load(tmp_path / "without")) == {"w"}
    run(tmp_path / "in.pt", tmp_path / "all.pt")
    assert torch.load(tmp_path / "all.pt")["z"].dtype == torch.complex128


def test_types_without_a_storage_class_survive_a_torch_file(tmp_path: Path) -> None:
    state = {
        "u16": torch.tensor([0, 1, 40000], dtype=torch.uint16),
        "f8": torch.randn(6).to(torch.float8_e4m3fn),
        "c64": torch.randn(3, dtype=torch.complex64),
        "scalar": torch.tensor(3.5),
        "bool": torch.tensor([True, False]),
    }
    save_file(state, tmp_path / "in.safetensors")
    run(tmp_path / "in.safetensors", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert all(same(found[n].view(torch.uint8), t.view(torch.uint8)) for n, t in state.items() if t.ndim)
    assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in state.items()}


def test_incomplete_checkpoints_are_refused_unless_allowed(tmp_path: Path) -> None:
    checkpoint = in_memory({"a": torch.ones(2)})
    checkpoint.parts["model"].tensors["gone"] = Tensor("gone", BY_NAME["float32"], (4,), None, note="its rank is missing")
    with pytest.raises(IncompleteError, match="gone cannot be rebuilt: its rank is missing"):
        run(checkpoint, tmp_path / "out")
    result = run(checkpoint, tmp_path / "out", allow_incomplete=True)
    assert result["complete"] is False and result["missing"] == ["gone"]
    marker = json.loads((tmp_path / "out" / ".shardyard.json").read_text())
    assert marker["complete"] is False and marker["missing"] == ["gone"]


@pytest.mark.parametrize("blocks", [Blocks.UNLESS_ALLOWED, Blocks.MERGE])
def test_findings_that_block(blocks: Blocks, tmp_path: Path) -> None:
    checkpoint = in_memory({"a": torch.ones(2)})
    checkpoint.findings.append(Finding("missing-rank", Severity.ERROR, "Rank 3 is missing.", "Fetch it.", blocks=blocks))
    with pytest.raises(CheckpointError, match=r"Rank 3 is missing\. Fetch it\.") as caught:
        run(checkpoint, tmp_path / "out")
    assert caught.value.code == "missing-rank"
    if blocks is Blocks.MERGE:
        with pytest.raises(CheckpointError):
            run(checkpoint, tmp_path / "out", allow_incomplete=True)
    else:
        assert run(checkpoint, tmp_path / "out", allow_incomplete=True)["complete"] is False


def test_several_models_need_a_choice(tmp_path: Path) -> None:
    checkpoint = in_memory({"a": torch.ones(2)})
    checkpoint.parts["ema"] = Part("ema", dict(in_memory({"a": torch.zeros(2)}).tensors), model=True)
    checkpoint.part = None
    with pytest.raises(AmbiguousError) as caught:
        run(checkpoint, tmp_path / "out")
    assert caught.value.candidates == ("model", "ema")
    run(checkpoint, tmp_path / "out", part="ema")
    assert torch.equal(load(tmp_path / "out")["a"], torch.zeros(2))
    with pytest.raises(UsageError, match="no part optimizer"):
        run(checkpoint, tmp_path / "other", part="optimizer")


def test_quantised_weights_are_not_cast(source: Path, tmp_path: Path) -> None:
    config(source, quantization_config={"quant_method": "gptq"})
    with pytest.raises(UnsupportedError, match="gptq"):
        run(source, tmp_path / "out", dtype="bfloat16")
    run(source, tmp_path / "out")


def test_an_aliased_name_without_data_takes_its_owner_s(tmp_path: Path) -> None:
    checkpoint = in_memory({"embed.weight": torch.randn(4, 2)})
    checkpoint.ties.append(Tie(("embed.weight", "head.weight"), "recorded"))
    run(checkpoint, tmp_path / "both", tied="both")
    found = load(tmp_path / "both")
    assert same(found["head.weight"], found["embed.weight"])
    run(checkpoint, tmp_path / "once", tied="once")
    assert set(load(tmp_path / "once")) == {"embed.weight"}


def in_memory(state: dict[str, torch.Tensor]) -> Checkpoint:
    from support.arrays import tensor

    tensors = {n: tensor(n, t.numpy()) for n, t in state.items()}
    return Checkpoint(Path("memory"), CheckpointKind.SAFETENSORS, [], {"model": Part("model", tensors, model=True)}, "model")


# ------------------------------------------------------------------ stored copies that must agree


def with_copy(state: torch.Tensor, copy: torch.Tensor) -> Checkpoint:
    from support.arrays import tensor

    checkpoint = in_memory({"w": state})
    other = tensor("w", copy.view(torch.int16).numpy(), "bfloat16")
    checkpoint.tensors["w"].copy16 = other
    return checkpoint


def test_masters_must_round_to_their_16_bit_copy(tmp_path: Path) -> None:
    weights = torch.randn(500_000)
    rounded = weights.to(torch.bfloat16)
    run(with_copy(weights, rounded), tmp_path / "good")
    bad = rounded.clone()
    bad[0] += 1
    with pytest.raises(DamagedError, match="do not round") as caught:
        run(with_copy(weights, bad), tmp_path / "bad")
    assert caught.value.code == "copy-disagrees"
    run(with_copy(weights, bad), tmp_path / "unchecked", verify="none")
    hidden = rounded.clone()
    hidden[100_000] += 1  # between the windows of a sample
    run(with_copy(weights, hidden), tmp_path / "sampled")
    with pytest.raises(DamagedError, match="do not round"):
        run(with_copy(weights, hidden), tmp_path / "full", verify="full")


def test_replicas_must_be_equal(tmp_path: Path) -> None:
    from support.arrays import tensor

    weights = torch.randn(100)
    checkpoint = in_memory({"w": weights})
    same_again, other = tensor("w", weights.numpy()), tensor("w", weights.numpy()[::-1])
    assert same_again.layout is not None and other.layout is not None
    checkpoint.tensors["w"].replicas = (same_again.layout,)
    run(checkpoint, tmp_path / "good")
    checkpoint.tensors["w"].replicas = (same_again.layout, other.layout)
    with pytest.raises(DamagedError) as caught:
        run(checkpoint, tmp_path / "bad")
    assert caught.value.code == "duplicate-copy"


# ------------------------------------------------------------------ places


def test_missing_parents_are_made_and_modes_follow_the_umask(source: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run(source, tmp_path / "a" / "b" / "out")
    finally:
        os.umask(before)
    made = tmp_path / "a" / "b" / "out"
    assert stat.S_IMODE(made.stat().st_mode) == 0o750
    assert {stat.S_IMODE(p.stat().st_mode) for p in made.iterdir()} == {0o640}
    assert [p.name for p in made.parent.iterdir()] == ["out"]


def test_an_output_that_is_there_is_not_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file.safetensors").write_text("mine")
    (tmp_path / "plain").write_text("mine")
    for out in ("full", "file.safetensors", "plain"):
        with pytest.raises(OutputExistsError):
            run(source, tmp_path / out)
    with pytest.raises(OutputExistsError, match=r"mine\.txt"):
        run(source, tmp_path / "full", overwrite=True)
    (tmp_path / "empty").mkdir()
    run(source, tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").exists()


def test_overwrite_replaces_what_was_written_here(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out)
    with pytest.raises(OutputExistsError, match="--overwrite"):
        run(source, out)
    run(source, out, overwrite=True, format="torch")
    assert {p.name for p in out.iterdir()} == {"pytorch_model.bin", ".shardyard.json"}
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"notes\.txt"):
        run(source, out, overwrite=True)
    assert not list(tmp_path.glob("*.shardyard-*"))


def test_a_source_is_never_replaced(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "first")
    with pytest.raises(UsageError, match="holds what is to be read"):
        run(tmp_path / "first", tmp_path / "first", overwrite=True)
    with pytest.raises(UsageError, match="holds what is to be read"):
        run(source / "model.safetensors", source / "model.safetensors", overwrite=True)
    run(source, tmp_path / "sharded", max_shard_size=600)
    beside = tmp_path / "sharded" / "scheduler.pt"
    beside.write_bytes(b"PK\x03\x04 the training's own")
    with pytest.raises(UsageError, match="lies in what is to be read"):
        run(tmp_path / "sharded", beside, overwrite=True)
    assert beside.read_bytes().endswith(b"own")


def test_a_file_that_holds_no_weights_is_never_replaced(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged.safetensors"
    out.write_text("a diary")
    with pytest.raises(OutputExistsError, match="no weights"):
        run(source, out, overwrite=True)
    assert out.read_text() == "a diary"
    out.unlink()
    run(source, out)
    run(source, out, overwrite=True)


def test_a_crash_between_the_renames_of_an_overwrite_is_healed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out)
    os.rename(out, tmp_path / "out.shardyard-old")
    with pytest.raises(OutputExistsError):
        run(source, out)
    result = run(source, out, overwrite=True, format="torch")
    assert (out / "pytorch_model.bin").exists() and result["format"] == "torch"
    run(source, tmp_path / "second")
    shutil.copytree(tmp_path / "second", tmp_path / "second.shardyard-old")
    run(source, tmp_path / "second", overwrite=True)
    assert not list(tmp_path.glob("*.shardyard-*"))


def test_a_place_that_cannot_be_written_is_refused_before_reading(source: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        run(source, tmp_path / "plain" / "out")
    with pytest.raises(NoRoomError):
        run(source, Path("/proc/self/out"))


def test_endings_choose_the_format(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "x.pth")["format"] == "torch"
    assert run(source, tmp_path / "x.safetensors")["format"] == "safetensors"
    with pytest.raises(UsageError, match="ends like a torch file"):
        plan_merge([source], tmp_path / "y.bin", MergeOptions(format="safetensors"))


def test_a_plan_reads_no_tensor_data(source: Path, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    save_file({"w": torch.zeros(1 << 20)}, big / "model.safetensors")
    from shardyard.files import FileHandles

    reads: list[int] = []
    original = FileHandles.read

    def counted(self: FileHandles, path: str, offset: int, nbytes: int) -> bytes:
        reads.append(nbytes)
        return original(self, path, offset, nbytes)

    FileHandles.read = counted  # type: ignore[method-assign]
    try:
        plan = plan_merge([big], tmp_path / "out")
    finally:
        FileHandles.read = original  # type: ignore[method-assign]
    assert sum(reads) < 128 << 10
    facts = plan.to_json()
    assert facts["bytes_written"] == sum(f["bytes"] for f in facts["files"])
    assert facts["tensors"] == 1 and facts["bytes_read"] == 4 << 20
    assert json.dumps(facts)
    assert not list(tmp_path.glob("out*"))


def test_files_are_what_the_plan_said(source: Path, tmp_path: Path) -> None:
    plan = plan_merge([source], tmp_path / "out", MergeOptions(max_shard_size=1000))
    merge(plan)
    assert {f["name"]: f["bytes"] for f in plan.to_json()["files"]} == {
        p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()
    }


def test_equal_merges_give_equal_bytes(source: Path, tmp_path: Path) -> None:
    for out in ("a/out", "b/out"):
        run(source, tmp_path / out, max_shard_size="1KB")
    for path in (tmp_path / "a" / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "out" / path.name).read_bytes()


def test_a_writer_that_writes_nothing_is_noticed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardyard.operations.merge import transfer

    monkeypatch.setattr(transfer, "write_at", lambda fd, data, offset: None)
    for verify in ("none", "sample", "full"):
        with pytest.raises(JobError):
            run(source, tmp_path / "out", verify=verify)
        assert not (tmp_path / "out").exists()


def test_options_refuse_what_they_do_not_know() -> None:
    for bad in ({"dtype": "int8"}, {"tied": "maybe"}, {"colour": "red"}, {"verify": "a bit"}):
        with pytest.raises(UsageError):
            MergeOptions.parse(bad)
    options = MergeOptions.parse({"dtype": "bf16", "select": ["a*"], "max_shard_size": "none", "strip_prefix": "x."})
    assert MergeOptions.parse(options.to_json()) == options
    assert options.dtype == "bfloat16"


def test_names_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    for name in ("__metadata__", "lone \ud800 surrogate"):
        with pytest.raises(UnsupportedError):
            run(in_memory({name: torch.ones(1)}), tmp_path / "out")


def test_publishing_needs_all_units(source: Path, tmp_path: Path) -> None:
    plan = plan_merge([source], tmp_path / "out")
    operation.staging.prepare(plan)
    with pytest.raises(JobError, match="not done yet"):
        operation.publish(plan, operation.Context())


def test_roles_do_not_change_what_is_written(tmp_path: Path) -> None:
    checkpoint = in_memory({"w": torch.ones(2), "running_mean": torch.ones(2)})
    checkpoint.tensors["running_mean"].role = Role.BUFFER
    run(checkpoint, tmp_path / "out", dtype="bf16")
    assert {t.dtype for t in load(tmp_path / "out").values()} == {torch.bfloat16}


def test_errors_are_one_sentence_without_control_characters(tmp_path: Path) -> None:
    with pytest.raises(ShardyardError) as caught:
        run(in_memory({"evil\x1b[31m": torch.ones(1)}), tmp_path / "out", select=["evil*"], exclude=["evil*"])
    assert caught.value.message.isprintable()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_quantised_and_nested_values_survive_a_torch_file(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 1.5, 0.0], [2.5, 0.0, 0.0]])
    quantised = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 3, torch.qint8)
    channels = torch.quantize_per_channel(
        torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2]), 0, torch.qint8
    )
    nested = torch.nested.nested_tensor([torch.arange(3.0), torch.arange(5.0)])
    state = {
        "first": torch.ones(2),
        "coo": dense.to_sparse_coo(),
        "csr": dense.to_sparse_csr(),
        "per_tensor": quantised,
        "per_channel": channels,
        "nested": nested,
        "last": torch.ones(3),
    }
    torch.save(state, tmp_path / "in.pt")
    with pytest.raises(UnsupportedError, match=r"coo, csr.*--format torch"):
        run(tmp_path / "in.pt", tmp_path / "out")
    run(tmp_path / "in.pt", tmp_path / "out", exclude=["c*", "per_*", "nested*"])
    for options in ({}, {"max_shard_size": "100"}):
        out = tmp_path / f"torch{len(options)}"
        run(tmp_path / "in.pt", out, format="torch", **options)
        found = load(out)
        assert set(found) == set(state)
        assert torch.equal(found["coo"].to_dense(), dense) and torch.equal(found["csr"].to_dense(), dense)
        assert found["csr"].layout is torch.sparse_csr and found["coo"].is_coalesced()
        for name in ("per_tensor", "per_channel"):
            assert torch.equal(found[name].int_repr(), state[name].int_repr())
            assert torch.equal(found[name].dequantize(), state[name].dequantize())
        assert all(torch.equal(a, b) for a, b in zip(found["nested"].unbind(), nested.unbind(), strict=True))
    run(tmp_path / "in.pt", tmp_path / "cast.pt", dtype="bfloat16")
    assert torch.load(tmp_path / "cast.pt")["coo"].dtype == torch.bfloat16
    assert torch.equal(torch.load(tmp_path / "cast.pt")["per_channel"].q_per_channel_scales(), channels.q_per_channel_scales())
