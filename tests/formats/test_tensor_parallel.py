"""Megatron's and Meta's sets: one checkpoint of pieces, and a piece that never passes for a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.findings import Blocks
from shardyard.formats import tensor_parallel
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import Call, Global
from shardyard.formats.torch.writer import write_torch
from support.truth import Answer, differences
from support.zero_runs import dictionary, whole


def codes(checkpoint: Checkpoint, blocks: Blocks) -> set[str]:
    return {f.code for f in checkpoint.findings if f.blocks is blocks}


def open_set(folder: Path, options: OpenOptions | None = None) -> Checkpoint:
    (candidate,) = tensor_parallel.FORMAT.recognise(Folder(folder), dict.fromkeys(Folder(folder).entries))
    return candidate.open(options)


def write_megatron(folder: Path, names: list[str], *, tensor: int, pipeline: int = 1) -> None:
    args = Call("REDUCE", Global("argparse", "Namespace"), ())
    args.later.append(("BUILD", dictionary(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)))
    layers = dictionary([("layers.0.weight", whole(np.ones((2, 4), np.float32)))])
    model = dictionary(language_model=dictionary(encoder=layers))
    for name in names:
        (folder / name).mkdir(parents=True)
        write_torch(folder / name / "model_optim_rng.pt", dictionary(args=args, model=model, iteration=500))


def test_megatron_folders_are_one_set_of_pieces(tmp_path: Path) -> None:
    write_megatron(tmp_path, ["mp_rank_00", "mp_rank_01"], tensor=2)
    options = OpenOptions()
    found = open_set(tmp_path, options)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and found.complete and not found.mergeable
    assert (found.world_size, found.step) == (2, 500)
    ones = Answer("F32", (2, 4), np.ones((2, 4), np.float32).tobytes())
    truth = {f"mp_rank_0{r}/language_model.encoder.layers.0.weight": ones for r in range(2)}
    assert differences(found.tensors, truth, options.handles) == []


def test_a_megatron_member_says_that_it_is_a_piece(tmp_path: Path) -> None:
    write_megatron(tmp_path, ["mp_rank_02_001"], tensor=4, pipeline=2)
    for folder in (tmp_path, tmp_path / "mp_rank_02_001"):
        found = open_set(folder)
        assert codes(found, Blocks.MERGE) == {"piece"} and "of 8" in found.findings[0].message


def test_a_megatron_model_of_one_rank_is_whole(tmp_path: Path) -> None:
    write_megatron(tmp_path, ["mp_rank_00"], tensor=1)
    found = open_set(tmp_path)
    assert found.kind is CheckpointKind.TORCH and found.mergeable
    assert found.files[0].path == "mp_rank_00/model_optim_rng.pt"


def write_meta(folder: Path, ranks: int, of: int) -> None:
    for rank in range(ranks):
        tensors = {"layers.0.attention.wo.weight": np.ones((8, 8 // of), np.float16), "norm.weight": np.ones(8, np.float16)}
        write_torch(folder / f"consolidated.{rank:02d}.pth", dictionary((n, whole(v)) for n, v in tensors.items()))


def test_metas_files_are_one_set_of_pieces(tmp_path: Path) -> None:
    write_meta(tmp_path, 2, 2)
    found = open_set(tmp_path)
    assert found.kind is CheckpointKind.TENSOR_PARALLEL and found.complete and found.merge_note
    assert "consolidated.01/norm.weight" in found.tensors


def test_one_of_metas_files_is_whole_only_if_its_shapes_are(tmp_path: Path) -> None:
    for folder in ("whole", "piece", "two"):
        (tmp_path / folder).mkdir()
    write_meta(tmp_path / "whole", 1, 1)
    assert open_set(tmp_path / "whole").kind is CheckpointKind.TORCH
    write_meta(tmp_path / "piece", 1, 8)
    piece = open_set(tmp_path / "piece")
    assert codes(piece, Blocks.MERGE) == {"piece"} and "piece 1 of 8" in piece.findings[0].message
    write_meta(tmp_path / "two", 2, 4)
    assert codes(open_set(tmp_path / "two"), Blocks.MERGE) == {"missing-rank"}
