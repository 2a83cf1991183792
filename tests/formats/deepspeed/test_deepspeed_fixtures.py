"""Every DeepSpeed folder that real runs left: names, types, shapes and all bytes, or a refusal that names its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shardyard.checkpoint import Checkpoint, CheckpointKind, Role
from shardyard.findings import Blocks, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import FORMAT
from shardyard.formats.folder import Folder
from support.checkpoints import cases
from support.damage import damage_of
from support.truth import answers, contents, differences

PLAIN_FILES = ("z1_bloat", "z2_bloat", "z3_export16")
"""Cases that are torch files without any DeepSpeed layout."""
ALL = [case for case in cases("deepspeed") if not case.name.startswith(PLAIN_FILES)]
WHOLE = [case for case in ALL if not case.name.startswith("broken_")]
RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states")
BROKEN = [case for case in ALL if case.name.startswith("broken_")]


def facts(case: Path) -> dict[str, object]:
    found = json.loads((case / "expected.json").read_text())
    assert isinstance(found, dict)
    return found


def root(case: Path) -> Path:
    """The DeepSpeed root: the case itself, or the Trainer's folder in it."""
    inner = facts(case).get("checkpoint")
    return case / inner if isinstance(inner, str) else case


def open_case(case: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = FORMAT.recognise(Folder(root(case)), {})
    return candidate.open(options)


def aliases(known: dict[str, object]) -> set[str]:
    """Names that are another name's weight: a universal folder holds their 16-bit copies."""
    groups = known["tied_groups"]
    assert isinstance(groups, list)
    return {name for group in groups for name in group[1:]}


def ids(case: Path) -> str:
    return case.name


def blocking(checkpoint: Checkpoint) -> set[str]:
    return {f.code for f in checkpoint.findings if f.blocks is not Blocks.NOTHING}


@pytest.mark.parametrize("case", WHOLE, ids=ids)
def test_the_masters_of_each_run_come_out_bit_for_bit(case: Path) -> None:
    options = OpenOptions()
    found, known = open_case(case, options), facts(case)
    truth = answers(case / "expected.safetensors")
    lost = known.get("aliases_without_owner_on_disk")
    if known.get("group_membership_not_on_disk"):
        assert "missing-metadata" in blocking(found)
        assert not any(t.layout for t in found.tensors.values() if t.role is Role.MASTER)
        truth = {n: a for n, a in truth.items() if found.tensors[n].layout is not None}
        assert differences({n: found.tensors[n] for n in truth}, truth, options.handles) == []
    elif isinstance(lost, list):
        assert blocking(found) == {"missing-tensor"}
        assert sorted(differences(found.tensors, truth, options.handles)) == [f"no data for {n}" for n in lost]
    elif case.name.startswith("universal") and isinstance(known["mismatch"], dict) and set(known["mismatch"]) - aliases(known):
        assert blocking(found) == {"corrupt"} and not found.mergeable
    elif known["zero_stage"] == 0 and "pp" in known:
        assert differences(found.tensors, answers(case / "expected_layers.safetensors"), options.handles) == []
    else:
        assert blocking(found) == set() and found.mergeable
        assert differences(found.tensors, truth, options.handles) == []


@pytest.mark.parametrize("case", WHOLE, ids=ids)
def test_kind_world_and_step_are_told(case: Path) -> None:
    found, known = open_case(case), facts(case)
    stage = known["zero_stage"]
    if "pp" in known:
        assert found.kind is CheckpointKind.PIPELINE
    elif "num_experts" in known:
        assert found.kind is CheckpointKind.MOE
    elif case.name.startswith("universal"):
        assert found.kind is CheckpointKind.UNIVERSAL
    else:
        assert found.kind.value == f"deepspeed-zero{stage}"
    assert found.world_size == known["world_size"]
    (latest,) = root(case).glob("latest*")
    assert found.tag == latest.read_text() and found.step is not None
    assert found.metadata.get("ds_version", "0.3.16") == known.get("ds_version", "0.19.8")


@pytest.mark.parametrize("case", WHOLE, ids=ids)
def test_buffers_frozen_weights_and_ties_are_marked(case: Path) -> None:
    found, known = open_case(case), facts(case)
    buffers, frozen, tied = known.get("buffers"), known.get("frozen"), known.get("tied_groups")
    left_out = known.get("deliberately_not_in_checkpoint", [])
    if isinstance(buffers, list):
        assert {n for n, t in found.tensors.items() if t.role is Role.BUFFER} == set(buffers)
    if isinstance(frozen, list) and known["zero_stage"] != 0:
        marked = {n for n, t in found.tensors.items() if t.trainable is False}
        assert isinstance(left_out, list)
        assert marked - aliases(known) == set(frozen) - set(left_out)
    if isinstance(tied, list) and not known.get("aliases_without_owner_on_disk"):
        assert sorted(sorted(t.names) for t in found.ties) == sorted(sorted(g) for g in tied)
    partial = [f for f in found.findings if f.code == "partial"]
    assert len(partial) == bool(left_out) and all(f.blocks is Blocks.NOTHING for f in partial)


@pytest.mark.parametrize("case", [c for c in WHOLE if c.name.startswith(("z1", "z2", "old", "pp", "moe", "universal"))], ids=ids)
def test_the_16_bit_copy_is_at_hand_to_check_against(case: Path) -> None:
    import ml_dtypes
    import numpy as np

    options = OpenOptions()
    found = open_case(case, options)
    if facts(case)["zero_stage"] in (0, 3) or not found.mergeable:
        pytest.skip("this kind has no second copy")
    checked = 0
    for tensor in found.tensors.values():
        copy = tensor.copy16
        if copy is None:
            continue
        values = np.frombuffer(contents(tensor, options.handles).data, np.float32)
        dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}[copy.dtype.name]
        assert values.astype(dtype).tobytes() == contents(copy, options.handles).data, tensor.name
        checked += 1
    assert checked >= sum(t.role is Role.MASTER and t.numel > 0 for t in found.tensors.values())


def expected_finding(case: Path) -> tuple[str, list[str]] | None:
    """(code, files of which one is named), from what was done to the case; None where the folder opens as a whole one."""
    damage = damage_of(case)
    if damage.added:
        return "stale-file", damage.added
    if damage.changed:
        ((path, (_, size)),) = damage.changed.items()
        return ("dangling-latest" if path == "latest" else "truncated" if size else "empty-file"), [path]
    lost = [path for path in damage.gone if path != "latest"]
    return ("missing-rank" if any("zero_pp_rank" in path for path in lost) else "missing-metadata", lost) if lost else None


@pytest.mark.parametrize("case", BROKEN, ids=ids)
def test_a_damaged_folder_is_shown_and_the_file_is_named(case: Path) -> None:
    expected = expected_finding(case)
    found = open_case(case)
    if expected is None:
        assert found.mergeable
        return
    code, names = expected
    (finding,) = [f for f in found.findings if f.blocks is not Blocks.NOTHING]
    assert finding.code == code and finding.severity is Severity.ERROR
    # Where the model file is lost, the folder does not say under which step's name it was.
    told = {path.rpartition("/")[2] for path in finding.paths}
    assert told & {path.rpartition("/")[2] for path in names}
    assert finding.message.endswith(".") and finding.remedy
    assert not found.mergeable and found.files


def test_the_damaged_cases_show_every_kind_of_damage() -> None:
    codes = {found[0] for case in BROKEN if (found := expected_finding(case))}
    assert codes == {"empty-file", "dangling-latest", "missing-metadata", "missing-rank", "stale-file", "truncated"}


def test_a_missing_rank_leaves_the_rest() -> None:
    lost = [(case, m[1]) for case in BROKEN for path in damage_of(case).gone if (m := RANK.search(path))]
    assert lost
    for case, rank in lost:
        found = open_case(case)
        gone = {n for n, t in found.tensors.items() if t.layout is None}
        assert gone and gone < set(found.tensors)
        assert all(f"rank {rank}" in found.tensors[n].note for n in gone)


def test_each_step_of_a_root_can_be_chosen() -> None:
    case = next(c for c in WHOLE if c.name == "z2_w2_tags")
    assert open_case(case).tag == "global_step2"
    for path in case.glob("expected-*.safetensors"):
        tag = next(
            t.name for t in case.iterdir() if t.is_dir() and t.name.startswith(path.stem[9:12]) and _names(t, path.stem[9:])
        )
        options = OpenOptions(tag=tag)
        found = open_case(case, options)
        assert found.tag == tag and differences(found.tensors, answers(path), options.handles) == []
        assert set(found.tags) == {t.name for t in case.iterdir() if t.is_dir()}


def _names(tag: Path, shown: str) -> bool:
    return tag.name.replace("α", "alpha") == shown


@pytest.mark.parametrize("name", ["z2_w2_bf16", "z3_w2_bf16", "universal_z2", "moe_w2_ep2_z2"])
def test_a_step_folder_can_be_given_by_itself(name: str) -> None:
    case = next(c for c in WHOLE if c.name == name)
    step = next(p for p in case.iterdir() if p.is_dir())
    (candidate,) = FORMAT.recognise(Folder(step), {})
    found = candidate.open()
    assert found.path == step and found.tag == step.name and found.mergeable
    assert set(found.tensors) == set(open_case(case).tensors)
    assert all(not f.path.startswith(step.name) for f in found.files)


@pytest.mark.parametrize("name", ["z0_w2_bf16", "z0_w2_fp16"])
def test_stage_0_masters_are_named_where_the_disk_tells(name: str) -> None:
    case = next(c for c in WHOLE if c.name == name)
    options = OpenOptions(part="masters")
    found = open_case(case, options)
    assert found.part == "masters"
    weights = {n: t for n, t in found.tensors.items() if t.role is not Role.BUFFER}
    truth = answers(case / "expected_fp32_master.safetensors")
    aliases = {a: t.names[0] for t in found.ties for a in t.names[1:]}
    truth |= {a: truth[o] for a, o in aliases.items()}
    assert differences(weights, truth, options.handles) == []


@pytest.mark.parametrize("name", ["moe_w2_ep2_z2", "moe_w4_ep2_z1_fp16"])
def test_the_16_bit_experts_are_a_part_of_their_own(name: str) -> None:
    case = next(c for c in WHOLE if c.name == name)
    options = OpenOptions(part="module")
    found = open_case(case, options)
    assert differences(found.tensors, answers(case / "expected_16bit.safetensors"), options.handles) == []


@pytest.mark.parametrize("name", ["pp2_dp1_z1_bf16opt", "pp2_dp2_z1_fp16"])
def test_layer_files_are_a_part_of_their_own(name: str) -> None:
    case = next(c for c in WHOLE if c.name == name)
    options = OpenOptions(part="module")
    found = open_case(case, options)
    assert differences(found.tensors, answers(case / "expected_layers.safetensors"), options.handles) == []


@pytest.mark.parametrize("name", ["old_0_3_16_z2", "broken_truncated", "broken_rank_missing"])
def test_the_16_bit_weights_can_be_had_where_masters_cannot(name: str) -> None:
    case = next(c for c in ALL if c.name == name)
    assert not open_case(case).mergeable
    assert open_case(case, OpenOptions(part="module")).mergeable


@pytest.mark.parametrize("case", [c for c in WHOLE if c.name.startswith(("z1", "z2", "z3", "old"))], ids=ids)
def test_reading_the_masters_touches_no_moment(case: Path) -> None:
    found = open_case(case)
    moments = found.parts["optimizer"].tensors
    places = {(r.path, r.start) for t in moments.values() if t.layout for r in t.layout.records() if r.nbytes}
    assert places or not found.mergeable
    for tensor in found.tensors.values():
        if tensor.layout is not None:
            assert not places & {(r.path, r.start) for r in tensor.layout.records() if r.nbytes}
