"""Every folder that torch.distributed.checkpoint and its users wrote: each tensor right, or a finding that names the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from shardyard.checkpoint import Checkpoint, CheckpointKind, Role, Tensor
from shardyard.files import FileHandles
from shardyard.findings import Blocks
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.dcp import hugging_face as hf_dcp
from shardyard.formats.dcp import opening as dcp
from shardyard.formats.folder import Folder
from shardyard.formats.rank_files import opening as rank_files
from shardyard.operations.gather import blocks
from support.checkpoints import cases
from support.damage import damage_of

FORMATS = (dcp.FORMAT, hf_dcp.FORMAT, rank_files.FORMAT)
OTHER_KINDS = ("torch-save", "hf-safetensors", "verl-ranks-bf16")
"""Parts that other readers open, and a truth that is a cast of another."""
OPENED_BY = {
    "dcp": CheckpointKind.DCP,
    "dcp-safetensors-shards": CheckpointKind.HF_DCP,
    "rank-files": CheckpointKind.FSDP_RANKS,
    "verl-ranks": CheckpointKind.FSDP_RANKS,
}


@dataclass
class SavedPart:
    """A part of a case, and the truth about it."""

    case: str
    folder: Path
    kind: str
    prefix: str
    tensors: dict[str, Any]
    objects: dict[str, Any]


def saved_parts(prefix: str = "") -> Iterator[SavedPart]:
    for case in cases("dcp", prefix):
        for part in json.loads((case / "expected.json").read_text())["parts"]:
            if part["kind"] not in OTHER_KINDS:
                path = case / part["path"]
                folder = path.parent if "*" in path.name else path
                yield SavedPart(case.name, folder, part["kind"], part["strip_prefix"], part["tensors"], part["bytes"])


WHOLE = [part for part in saved_parts() if not part.case.startswith("broken_") and part.case != "acc_fsdp1_local_w2"]


def candidates(folder: Path) -> list[Candidate]:
    listing = Folder(folder)
    unclaimed = dict.fromkeys(listing.entries)
    return [c for reader in FORMATS for c in reader.recognise(listing, unclaimed)]


def open_folder(folder: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = candidates(folder)
    return candidate.open(options)


def by_full_name(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Tensors of all parts under the names that the saved state gave them, and under their own."""
    found: dict[str, Tensor] = {}
    for part in checkpoint.parts.values():
        for name, tensor in part.tensors.items():
            found[name] = found[f"{part.name}.{name}"] = tensor
    return found


def sha256(tensor: Tensor, handles: FileHandles) -> str:
    digest = hashlib.sha256()
    for _, block in blocks(tensor, handles):
        digest.update(block)
    return digest.hexdigest()


@pytest.mark.parametrize("part", WHOLE, ids=lambda p: f"{p.case}:{p.folder.name}")
def test_every_tensor_has_its_name_type_shape_and_bytes(part: SavedPart) -> None:
    options = OpenOptions()
    checkpoint = open_folder(part.folder, options)
    assert checkpoint.kind is OPENED_BY[part.kind]
    assert checkpoint.complete, checkpoint.findings
    found = by_full_name(checkpoint)
    for name, truth in part.tensors.items():
        tensor = found.get(name) or found[part.prefix + name]
        assert (tensor.dtype.name, list(tensor.shape)) == (truth["dtype"], truth["shape"]), name
        assert tensor.layout is not None, tensor.note
        for layout in (tensor.layout, *tensor.replicas):
            layout.prove(tensor.nbytes)
            assert sha256(replace(tensor, layout=layout), options.handles) == truth["sha256"], name
    count = sum(len(p.tensors) for p in checkpoint.parts.values() if part.kind == "dcp" or p.model)
    assert count == len(part.tensors)
    assert {o.name.removeprefix(part.prefix) for o in checkpoint.objects} >= set(part.objects)


@pytest.mark.parametrize(
    ("case", "path", "parts", "default", "step"),
    [
        ("acc_fsdp2_tiny_w3", "checkpoint-2000", ["model", "optimizer"], "model", 2000),
        ("broken_parent_folder", "checkpoint-2000", ["model", "optimizer"], "model", 2000),
        ("acc_fsdp2_tiny_w3", "checkpoint-2000/pytorch_model_fsdp_0", ["model"], "model", 2000),
        ("acc_fsdp2_tiny_w3", "checkpoint-2000/optimizer_0", ["optimizer"], None, 2000),
        ("dcp_fsdp_tp_2d", "ckpt", ["extra", "model", "optim"], "model", None),
        ("titan_step2_w3", "checkpoint/step-2", ["model", "optimizer"], "model", 2),
        ("lightning_trainer_w2", "ckpt", ["model", "optimizer_0"], "model", 2),
        ("megatron_core_tp_pp", "iter_0000100", ["model", "optimizer"], "model", 100),
        ("dcp_zoo", "ckpt", ["model"], "model", None),
        ("verl_fsdp2_1d_w3", "global_step_2/actor", ["model", "optimizer"], "model", 2),
        ("hf_sharded_w3", "ckpt", ["model"], "model", None),
    ],
)
def test_parts_step_and_world_size(case: str, path: str, parts: list[str], default: str | None, step: int | None) -> None:
    folder = cases("dcp", case)[0]
    checkpoint = open_folder(folder / path)
    assert sorted(checkpoint.parts) == parts
    assert (checkpoint.part, checkpoint.step) == (default, step)
    assert checkpoint.world_size == json.loads((folder / "expected.json").read_text())["world_size"]


def test_both_folders_of_accelerate_are_one_checkpoint_called_after_their_parent() -> None:
    folder = cases("dcp", "acc_fsdp2_tiny_w3")[0] / "checkpoint-2000"
    (candidate,) = candidates(folder)
    assert candidate.path == folder
    assert candidate.folders == ("pytorch_model_fsdp_0", "optimizer_0")
    assert {"pytorch_model_fsdp_0/.metadata", "optimizer_0/__2_0.distcp", "scheduler.bin"} <= set(candidate.files)
    assert candidate.nbytes == sum(f.nbytes for f in candidate.open().files)
    roles = {f.path: f.role for f in candidate.open().files}
    assert roles["pytorch_model_fsdp_0/__0_0.distcp"] == "weights"
    assert roles["optimizer_0/__0_0.distcp"] == "masters+optimizer"


def expected_finding(case: Path) -> tuple[str, str, Blocks] | None:
    """(code, the file it names, what it blocks), from what was done to the case; None where opening shows nothing."""
    damage = damage_of(case)
    grown = [path for path, (before, after) in damage.changed.items() if after > before]
    if grown:
        return "corrupt", grown[0], Blocks.MERGE
    path = next(iter((*damage.added, *damage.gone, *damage.changed)), None)
    if path is None:
        return None
    if ".metadata" in path:
        return "missing-metadata" if damage.gone else "truncated", path, Blocks.MERGE
    return "missing-shard" if damage.gone else "truncated", path, Blocks.UNLESS_ALLOWED


BROKEN = [(case, found) for case in cases("dcp", "broken_") if (found := expected_finding(case)) is not None]


@pytest.mark.parametrize(("case", "expected"), BROKEN, ids=lambda value: value.name if isinstance(value, Path) else "")
@pytest.mark.parametrize("inner", [True, False], ids=["own folder", "parent"])
def test_damage_blocks_a_merge_and_names_the_file(case: Path, expected: tuple[str, str, Blocks], inner: bool) -> None:
    code, path, blocks_ = expected
    parent, folder, name = path.split("/")
    checkpoint = open_folder(case / parent / folder if inner else case / parent)
    finding = next(f for f in checkpoint.findings if f.code == code and f.blocks is blocks_)
    where = name if inner else f"{folder}/{name}"
    assert where in finding.paths
    assert where in finding.message
    assert not checkpoint.complete


def test_what_a_missing_file_does_not_hold_is_still_whole() -> None:
    lost = [(case, path) for case, (code, path, _) in BROKEN if code == "missing-shard"]
    assert lost
    for case, path in lost:
        options = OpenOptions()
        part = next(p for p in saved_parts(case.name) if p.folder == (case / path).parent)
        tensors = open_folder(part.folder, options).tensors
        whole = [name for name, tensor in tensors.items() if tensor.layout is not None]
        assert whole
        assert all(sha256(tensors[name], options.handles) == part.tensors[name]["sha256"] for name in whole)
        assert all(Path(path).name in tensor.note for tensor in tensors.values() if tensor.layout is None)


def test_a_damaged_optimizer_does_not_keep_the_model_from_being_merged(tmp_path: Path) -> None:
    case = cases("dcp", "acc_fsdp2_tiny_w2")[0] / "checkpoint-2000"
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        (tmp_path / name).mkdir()
        for file in (case / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "optimizer_0" / "__1_0.distcp").unlink()
    checkpoint = open_folder(tmp_path)
    assert checkpoint.mergeable
    assert [f.code for f in checkpoint.findings] == ["missing-shard"]
    assert any(t.layout is None for t in checkpoint.parts["optimizer"].tensors.values())


def test_the_checksum_of_flipped_bytes_comes_with_the_record() -> None:
    import zlib

    options = OpenOptions()
    part = next(p for p in saved_parts("broken_flipped_bytes") if p.folder.name == "pytorch_model_fsdp_0")
    wrong = set()
    for name, tensor in open_folder(part.folder, options).tensors.items():
        for piece in tensor.pieces(0, tensor.nbytes):
            record = piece.record
            data = options.handles.read(record.path, record.locate(options.handles), record.nbytes)
            assert record.crc32 is not None
            if zlib.crc32(data) != record.crc32:
                wrong.add(name)
    assert wrong == {"layers.0.out.weight"}


def test_stale_files_of_an_earlier_save_are_named_and_not_read() -> None:
    checkpoint = open_folder(cases("dcp", "dcp_async_overwritten")[0] / "ckpt")
    (finding,) = (f for f in checkpoint.findings if f.code == "stale-file")
    assert set(finding.paths) == {"__0_1.distcp", "__0_2.distcp", "__1_1.distcp", "__1_2.distcp"}
    assert checkpoint.usage.wasted == finding.nbytes > 0
    read = {path for part in checkpoint.parts.values() for t in part.tensors.values() for path in t.files}
    assert {Path(p).name for p in read} == {"__0_0.distcp", "__1_0.distcp"}


def test_opening_and_reading_the_model_touches_no_optimizer_slice() -> None:
    options = OpenOptions()
    checkpoint = open_folder(cases("dcp", "dcp_fsdp2_adamw")[0] / "ckpt", options)
    opened = options.handles.bytes_read
    slices = {
        (place.file, place.start, place.start + place.nbytes)
        for tensor in checkpoint.parts["optim"].tensors.values()
        for place in (chunk.place for chunk in tensor.layout.chunks)
    }
    reads: list[tuple[str, int, int]] = []
    watched = WatchedHandles(options.handles, reads)
    for tensor in checkpoint.tensors.values():
        tensor.layout.handles = watched
        sha256(tensor, watched)
    assert reads
    assert not [r for r in reads for s in slices if r[0] == s[0] and r[1] < s[2] and s[1] < r[1] + r[2]]
    # Opening read the metadata, the small values and a few bytes of each file.
    sizes = {f.path: f.nbytes for f in checkpoint.files}
    assert opened < sizes[".metadata"] + len(checkpoint.objects) * 2000 + 3 * 30


class WatchedHandles(FileHandles):
    """Handles that remember what was read."""

    def __init__(self, inner: FileHandles, reads: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.reads = reads

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        self.reads.append((Path(path).name, offset, nbytes))
        return super().read(path, offset, nbytes)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        self.reads.append((Path(path).name, offset, len(buffer)))
        super().read_into(path, offset, buffer)


def test_values_are_shown_and_never_run() -> None:
    shown = {o.name: o.text for o in open_folder(cases("dcp", "dcp_zoo")[0] / "ckpt").objects}
    assert shown["values.int"] == "7"
    assert shown["values.bigint"] == "1180591620717411303424"
    assert shown["values.str"] == "'pépère'"
    assert shown["values.tuple"] == "(1, 'a', (2.5,))"
    assert shown["values.dtype"] == "torch.bfloat16"
    assert shown["values.size"] == "torch.Size([1, 2])"
    assert shown["values.custom"].startswith("__mp_main__.Note(")
    assert "tensor float32 [2]" in shown["values.tuple_with_tensor"]


def test_frameworks_side_files_are_shown() -> None:
    lightning = {o.name: o.text for o in open_folder(cases("dcp", "lightning_fabric_w2")[0] / "ckpt").objects}
    assert lightning["meta.pt: iteration"] == "2"
    megatron = open_folder(cases("dcp", "megatron_core_tp_pp")[0] / "iter_0000100")
    assert megatron.metadata["sharded_backend"] == "torch_dist"
    assert any(o.name == "common.pt: args" and "argparse.Namespace" in o.text for o in megatron.objects)


def test_tensor_roles() -> None:
    checkpoint = open_folder(cases("dcp", "dcp_fsdp_tp_2d")[0] / "ckpt")
    roles = {name: {t.role for t in part.tensors.values()} for name, part in checkpoint.parts.items()}
    assert roles == {"model": {Role.WEIGHT}, "optim": {Role.OPTIMIZER}, "extra": {Role.OTHER}}


def test_fsdp1_flat_shards_are_explained_and_not_merged() -> None:
    checkpoint = open_folder(cases("dcp", "acc_fsdp1_local_w2")[0] / "checkpoint-7")
    assert checkpoint.kind is CheckpointKind.FSDP_LOCAL
    assert not checkpoint.mergeable
    assert "without their names" in checkpoint.merge_note
    assert checkpoint.tensors["layers.0._flat_param"].shape == (90,)


def test_ties_of_verl_are_those_of_the_model() -> None:
    tied = 0
    for case in cases("dcp", "verl_fsdp2"):
        groups = json.loads((case / "expected.json").read_text())["tied_groups"]
        found = [tie.names for tie in open_folder(case / "global_step_2/actor").ties]
        assert sorted(map(sorted, found)) == sorted(map(sorted, groups)), case.name
        tied += len(found)
    assert tied


def test_unmerged_lora_is_told() -> None:
    checkpoint = open_folder(cases("dcp", "verl_fsdp2_lora_w2")[0] / "global_step_2/actor")
    assert "lora-unmerged" in {f.code for f in checkpoint.findings}
    assert checkpoint.mergeable


def test_the_config_is_found_beside_above_and_in_huggingface() -> None:
    checkpoint = open_folder(cases("dcp", "verl_fsdp2_1d_w3")[0] / "global_step_2/actor")
    assert checkpoint.config is not None and checkpoint.config["model_type"] == "qwen2"
    assert checkpoint.config_folder is not None and checkpoint.config_folder.name == "huggingface"


@pytest.mark.parametrize("part", [p for p in saved_parts("hf_") if p.kind == "dcp-safetensors-shards"], ids=lambda p: p.case)
def test_no_choice_of_the_hugging_face_shards_passes_for_the_whole_model(part: SavedPart, tmp_path: Path) -> None:
    shards = sorted(p.name for p in part.folder.glob("shard-*"))
    for number, chosen in enumerate(n for k in range(1, len(shards)) for n in combinations(shards, k)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in chosen:
            (folder / name).symlink_to(part.folder / name)
        assert not open_folder(folder).complete, chosen
