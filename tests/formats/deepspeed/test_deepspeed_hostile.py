"""Whatever stands in a DeepSpeed file: nothing stumbles, and nothing wrong is believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardyard.checkpoint import Checkpoint
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed import FORMAT
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import write_torch
from support.truth import differences
from support.zero_runs import ZeroRun, dictionary

GROUPS: list[dict[str, tuple[int, ...]]] = [{"a.weight": (7, 5), "b.weight": (3,), "c.weight": (1,)}, {"a.bias": (11,), "d": ()}]


def open_root(folder: Path, options: OpenOptions) -> Checkpoint:
    (candidate,) = FORMAT.recognise(Folder(folder), {})
    return candidate.open(options)


JUNK: list[object] = [
    None,
    0,
    -1,
    1 << 70,
    "x",
    b"x",
    [],
    [None],
    [[]],
    [-1],
    (1, "2"),
    1.5,
    True,
    dictionary(),
    dictionary(a=None),
]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_nothing_in_a_file_makes_the_reader_stumble_or_believe(stage: int, tmp_path: Path) -> None:
    run = ZeroRun(stage, 2, GROUPS, frozen={"f": (5,)}, buffers={"positions": (3,)}, aliases={"tied": "d"})
    tag = run.write(tmp_path)
    truth, options = run.answers(), OpenOptions()
    for file, make, key in junk_places(run):
        for junk in JUNK:
            root = make()
            spoil(root, key, junk)
            write_torch(tag / file, root)
            found = open_root(tmp_path, options=options)
            if found.mergeable:
                assert differences(found.tensors, truth, options.handles) == [], (file, key, junk)
            for part in found.parts.values():
                assert isinstance(part.tensors, dict)
        write_torch(tag / file, make())


def junk_places(run: ZeroRun) -> list[tuple[str, Callable[[], Dict], str]]:
    """(file, how to make it, key) of all that can be spoilt."""
    parts = run._columns() if run.stage == 3 else run._partitions()
    model = "mp_rank_00_model_states.pt" if run.stage < 3 else "zero_pp_rank_0_mp_rank_00_model_states.pt"
    found: list[tuple[str, Callable[[], Dict], str]] = []
    for key, _ in run._model_file(0, 7).pairs:
        found.append((model, lambda: run._model_file(0, 7), str(key)))

    def optimizer() -> Dict:
        return run._optimizer_file([p[1] for p in parts], 1)

    state = optimizer().pairs[0][1]
    assert isinstance(state, Dict)
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    return found + [(name, optimizer, key) for key in ["", *(str(k) for k, _ in state.pairs)]]


def spoil(root: Dict, key: str, junk: object) -> None:
    """Give a key of the file, or of the optimizer state in it, another value."""
    inner = root.pairs[0][1]
    if root.pairs[0][0] == "optimizer_state_dict" and key:
        assert isinstance(inner, Dict)
        inner.pairs[:] = [(k, junk if k == key else v) for k, v in inner.pairs]
    else:
        root.pairs[:] = [(k, junk if k in (key, "optimizer_state_dict") else v) for k, v in root.pairs]
