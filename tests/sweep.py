"""`python -m tests.sweep`: every fixture opened, every tensor compared, everything mergeable merged; one table a family.

A tensor counts when name, dtype, shape and the hash of its values are right; a merge when the output, read back by the
reference library, has exactly the expected names and bytes.  What is refused is listed with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checkpoints import FAMILIES, fixture_root

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.discover import open_checkpoint
from shardyard.dtypes import BY_SAFETENSORS
from shardyard.errors import CheckpointError, ShardyardError, UsageError
from shardyard.files import FileHandles
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.safetensors.file import torch_type
from shardyard.operations import gather
from shardyard.operations.merge.options import MergeOptions
from shardyard.operations.merge.planning import plan_merge
from shardyard.operations.merge.run import merge

Fact = tuple[str, tuple[int, ...], str]
"""dtype, shape and the first 16 hex digits of the values' SHA-256."""


@dataclass(slots=True)
class Trial:
    """One thing to open, and the truth about it."""

    name: str
    paths: list[Path]
    truth: dict[str, Fact]
    options: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    """The truth does not list everything (numpy arrays, buffers): names beyond it are not wrong."""


@dataclass(slots=True)
class Outcome:
    """What came of a trial."""

    opened: bool = False
    matched: int = 0
    expected: int = 0
    merged: str = ""
    """`exact`, `refused: …`, or what is wrong."""
    notes: list[str] = field(default_factory=list)


def facts_of_file(path: Path) -> dict[str, Fact]:
    """The truth in a safetensors file, read by this project's own reader of headers and plain reads."""
    checkpoint = open_checkpoint([path], OpenOptions())
    with FileHandles() as handles:
        return {name: fact(tensor, handles) for name, tensor in checkpoint.tensors.items()}


def fact(tensor: Tensor, handles: FileHandles) -> Fact:
    """Name, dtype and hash of a tensor's values."""
    digest = hashlib.sha256()
    for _, block in gather.blocks(tensor, handles):
        digest.update(block)
    return tensor.dtype.name, tensor.shape, digest.hexdigest()[:16]


def trials(family: str) -> Iterator[Trial]:
    """All trials of a family."""
    make = {"deepspeed": _deepspeed, "dcp": _dcp, "files": _files}[family]
    for case in sorted((fixture_root() / family).iterdir()):
        if (case / "expected.json").exists():
            yield from make(case)


_PARTS = {"16bit": "module", "fp32_master": "masters", "layers": "module"}


def _deepspeed(case: Path) -> Iterator[Trial]:
    main = case / "expected.safetensors"
    layers = case / "expected_layers.safetensors"
    stage = json.loads((case / "expected.json").read_text()).get("zero_stage")
    if stage == 0 and layers.exists():
        # Without ZeRO the layer files are all there is; a tied layer's second name is on no disk.
        main = layers
    yield Trial(case.name, [case], facts_of_file(main) if main.exists() else {})
    for path in sorted(case.glob("expected[-_]*.safetensors")):
        which = path.stem[len("expected") :]
        if path == main:
            continue
        options = {"tag": _tag(case, which[1:])} if which[0] == "-" else {"part": _PARTS[which[1:]]}
        if stage == 0 and options.get("part") == "module":
            options = {}
        yield Trial(case.name + which, [case], facts_of_file(path), options, partial="master" in which)


def _tag(case: Path, name: str) -> str:
    """The step's real name; truth files are named in ASCII."""
    return next((p.name for p in case.iterdir() if p.is_dir() and p.name[:6] == name[:6] and not p.name.isascii()), name)


def _dcp(case: Path) -> Iterator[Trial]:
    for part in json.loads((case / "expected.json").read_text()).get("parts", []):
        path = case / part["path"]
        if "*" in path.name:
            path = path.parent
        truth = facts_of_file(case / part["truth"])
        # The rounded truth of a checkpoint is what a cast gives.
        options = {"dtype": "bfloat16"} if part["kind"].endswith("bf16") else {}
        if "optim" in part["truth"]:
            options["part"] = "optimizer"
        yield Trial(f"{case.name}:{part['path']}", [path], truth, options)


def _files(case: Path) -> Iterator[Trial]:
    files = json.loads((case / "expected.json").read_text()).get("files", {})
    rows = {name: found for name, found in files.items() if "tensors" in found}
    if len(rows) > 1 and any(name.endswith(".index.json") for name in (p.name for p in case.iterdir())):
        truth = {name: f for found in rows.values() for name, f in _facts(found["tensors"])}
        yield Trial(case.name, [case], truth)
        return
    for name, found in rows.items():
        yield Trial(f"{case.name}:{name}", [case / name], dict(_facts(found["tensors"])), partial=case.name == "a3_numpy")


def _facts(rows: Any) -> Iterator[tuple[str, Fact]]:
    for row in rows:
        if "parts" in row:
            yield from _facts(row["parts"])
        elif "sha256_16" in row:
            # Headers of safetensors files name and count some types in their own way.
            dtype, shape = (row["dtype"], tuple(row["shape"]))
            if dtype in BY_SAFETENSORS:
                known, shape = torch_type(dtype, shape)
                dtype = known.name
            yield row["name"], (dtype, shape, row["sha256_16"])


def try_one(trial: Trial, work: Path) -> Outcome:
    """Open, compare and merge."""
    outcome = Outcome(expected=len(trial.truth))
    options = MergeOptions(tied="both", strip_prefix=("none",)).but(**trial.options)
    try:
        checkpoint = open_checkpoint(trial.paths, OpenOptions(tag=options.tag, part=options.part))
    except ShardyardError as error:
        outcome.merged = f"refused: {error.message}"
        return outcome
    outcome.opened = True
    if options.dtype is None:
        outcome.matched = _compare(checkpoint, trial.truth, outcome)
    else:
        outcome.expected = 0
    if trial.truth:
        outcome.merged = _merge(checkpoint, trial, options, work)
    return outcome


def _compare(checkpoint: Checkpoint, truth: dict[str, Fact], outcome: Outcome) -> int:
    """How many of the true tensors are in the catalogue, in any part, with the right values."""
    found: dict[str, Tensor] = {}
    for part in checkpoint.parts.values():
        for name, tensor in part.tensors.items():
            found.setdefault(f"{part.name}.{name}", tensor)
    found.update(checkpoint.tensors)
    for part in checkpoint.parts.values():
        for name, tensor in part.tensors.items():
            found.setdefault(name, tensor)
    owners = {name: tie.names[0] for tie in checkpoint.ties for name in tie.names[1:]}
    matched = 0
    with FileHandles() as handles:
        for name, want in truth.items():
            tensor = found.get(name)
            if tensor is None or tensor.layout is None:
                tensor = found.get(owners.get(name, ""))
            try:
                got = fact(tensor, handles) if tensor is not None and tensor.layout is not None else None
            except ShardyardError as error:
                outcome.notes.append(f"{name}: {error.message}")
                continue
            if got == want:
                matched += 1
            else:
                outcome.notes.append(f"{name}: {got} instead of {want}")
    return matched


def _merge(checkpoint: Checkpoint, trial: Trial, options: MergeOptions, work: Path) -> str:
    out = work / str(len(list(work.iterdir())))
    try:
        merge(plan_merge(checkpoint, out, options))
    except (CheckpointError, UsageError) as error:
        return f"refused: {error.message}"
    got: dict[str, Fact] = {}
    for path in sorted(out.glob("*.safetensors")):
        got.update(facts_of_file(path))
    part = options.part or checkpoint.part
    truth = {name if name in got else name.removeprefix(f"{part}."): f for name, f in trial.truth.items()}
    wrong = [name for name, f in got.items() if truth.get(name) != f and not (trial.partial and name not in truth)]
    if wrong:
        return f"WRONG: {wrong[0]} is {got[wrong[0]]}, not {truth.get(wrong[0])}"
    lacking = truth.keys() - got.keys()
    others = [p for p in checkpoint.parts.values() if p.name != part]
    other = {name for p in others for n in p.tensors for name in (n, f"{p.name}.{n}")}
    lost = sorted(name for name in lacking if name not in other)
    return f"WRONG: {lost[0]} is missing" if lost else "exact"


def main() -> int:
    """Print the tables; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("families", nargs="*", default=[f for f in FAMILIES if f != "hostile"])
    parser.add_argument("--case", default="", help="only cases whose name begins so")
    args = parser.parse_args()
    bad = 0
    for family in args.families:
        with tempfile.TemporaryDirectory() as work:
            rows = [(t, try_one(t, Path(work))) for t in trials(family) if t.name.startswith(args.case)]
        bad += _table(family, rows)
    return 1 if bad else 0


def _table(family: str, rows: list[tuple[Trial, Outcome]]) -> int:
    merges = [o for t, o in rows if o.merged]
    exact = sum(o.merged == "exact" for o in merges)
    opened = sum(o.opened for _, o in rows)
    matched, expected = sum(o.matched for _, o in rows), sum(o.expected for _, o in rows)
    print(f"{family}: {opened} of {len(rows)} open, {matched} of {expected} tensors match, {exact} of {len(merges)} merges exact")
    wrong = 0
    for trial, outcome in rows:
        if outcome.merged not in ("", "exact"):
            print(f"  {trial.name}: {outcome.merged}")
        if outcome.matched != outcome.expected and outcome.opened:
            print(f"  {trial.name}: {outcome.matched} of {outcome.expected} tensors; {'; '.join(outcome.notes[:2])}")
        wrong += outcome.merged.startswith("WRONG")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
