"""`shardyard compare` and `shardyard stats` as scripts and people use them: exit codes, JSON, a short table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardyard.cli import main
from shardyard.dtypes import BY_NAME
from shardyard.formats.torch.writer import Storage, ordered_dict, tensor, write_torch
from support.checkpoints import cases

BASE = {f"layers.{i}.weight": np.random.default_rng(i).standard_normal((8, 8)).astype(np.float32) for i in range(3)}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    save_file(BASE, tmp_path / "a.safetensors")
    save_file({name: array.astype(np.float16) for name, array in BASE.items()}, tmp_path / "half.safetensors")
    changed = {**BASE, "layers.1.weight": BASE["layers.1.weight"] * 2}
    save_file(changed, tmp_path / "changed.safetensors")
    return tmp_path


def compare(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str]:
    code = main(["compare", *map(str, args)])
    return code, capsys.readouterr().out


def test_exit_codes_are_those_of_diff(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = files / "a.safetensors"
    assert compare(capsys, a, a)[0] == 0
    assert compare(capsys, a, files / "half.safetensors")[0] == 0
    assert compare(capsys, a, files / "half.safetensors", "--require", "equal")[0] == 1
    assert compare(capsys, a, files / "changed.safetensors")[0] == 1
    assert compare(capsys, a, files / "changed.safetensors", "--rtol", "1")[0] == 0


def test_what_cannot_be_compared_has_codes_and_one_sentence(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(files / "a.safetensors")
    assert main(["compare", a, str(files / "none.safetensors")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (case,) = (c for c in cases("deepspeed", "broken_rank_missing") if c.name == "broken_rank_missing")
    assert main(["compare", a, str(case)]) == 3
    assert "cannot be compared" in capsys.readouterr().err


def test_one_of_several_models_is_chosen_by_its_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def values(*numbers: float) -> object:
        storage = Storage(BY_NAME["float32"], np.asarray(numbers, np.float32).tobytes())
        return ordered_dict((name, tensor(storage, (2,))) for name in ("w.weight", "w.bias"))

    both = tmp_path / "both.pt"
    write_torch(both, ordered_dict([("model", values(1, 2)), ("ema", values(1, 3))]))
    save_file({name: np.asarray([1, 3], np.float32) for name in ("w.weight", "w.bias")}, tmp_path / "ema.safetensors")
    assert main(["compare", str(both), str(both)]) == 2
    listed = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in listed[:2]] == ["model", "ema"] and listed[-1].endswith("choose one with --part.")
    assert compare(capsys, both, both, "--part", "ema")[0] == 0
    assert compare(capsys, both, both, "--part", "model", "--part", "ema")[0] == 1
    assert compare(capsys, both, tmp_path / "ema.safetensors", "--part", "ema", "--part", "model")[0] == 0
    assert main(["compare", str(both), str(both), "--part", "adam"]) == 2
    assert "its parts: model, ema" in capsys.readouterr().err


def test_json_is_one_object_of_the_contract_s_shape(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = compare(capsys, files / "a.safetensors", files / "changed.safetensors", "--json")
    result = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert code == 1
    assert {"schema", "equal", "worst", "verdict", "a", "b", "only_in_a", "only_in_b", "prefix_hint", "tensors"} <= result.keys()
    assert {
        "name", "relation", "dtype_a", "dtype_b", "shape_a", "shape_b",
        "max_abs", "mean_abs", "max_rel", "differing", "nan_a", "nan_b",
    } <= result["tensors"][0].keys()  # fmt: skip
    assert (result["schema"], result["equal"], result["worst"]) == (1, False, "different")


def test_a_person_sees_the_verdict_and_what_differs_most(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = compare(capsys, files / "a.safetensors", files / "changed.safetensors")
    lines = out.splitlines()
    assert lines[0].startswith("Identical except layers.1.weight: 64 of 64 values differ")
    assert [line.split()[0] for line in lines if "layers." in line][1:] == ["different"]
    _, out = compare(capsys, files / "a.safetensors", files / "changed.safetensors", "--all")
    assert [line.split()[0] for line in out.splitlines() if "layers." in line][1:] == ["different", "identical", "identical"]


def test_escape_sequences_in_names_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "evil\x1b[2J\u202ename"
    save_file({name: np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    save_file({name: np.zeros(2, np.float32)}, tmp_path / "b.safetensors")
    for args in (["compare", "a", "b"], ["stats", "a"]):
        main([args[0], *(str(tmp_path / f"{side}.safetensors") for side in args[1:])])
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\u202e" not in out and "evil" in out


def test_stats_as_json_and_for_people(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files / "a.safetensors")
    assert main(["stats", path, "--select", "*.1.weight", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tensors"]
    values = BASE["layers.1.weight"].astype(np.float64)
    assert row["name"] == "layers.1.weight" and row["max"] == values.max()
    assert math.isclose(row["mean"], values.mean(), rel_tol=1e-12)
    assert main(["stats", path]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(BASE)
    assert main(["stats", path, "--select", "layers.1.weight", "--slice", "0, :2"]) == 0
    out = capsys.readouterr().out
    assert "[0, :2] [2]: " in out and "sha256" in out


def test_stats_of_nothing_is_wrong_use(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files / "a.safetensors")
    assert main(["stats", path, "--select", "no.such"]) == 2
    assert main(["stats", path, "--part", "optimizer"]) == 2
    assert main(["stats", path, "--select", "layers.1.weight", "--slice", "9"]) == 2
    assert "no slice" in capsys.readouterr().err
