"""Views of any stride, written as torch files, against a naive model of strided copies in numpy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardyard.discover import open_checkpoint
from shardyard.dtypes import BY_NAME
from shardyard.files import FileHandles
from shardyard.formats.pickles import Dict
from shardyard.formats.torch.writer import Storage, tensor, write_torch
from shardyard.operations.gather import blocks, read_range

KINDS = {"float32": "<f4", "float16": "<f2", "int64": "<i8", "uint8": "u1"}
View = tuple[tuple[int, ...], tuple[int, ...], int]


@st.composite
def views(draw: st.DrawFn, numel: int) -> View:
    """(shape, strides, offset) of a view that stays inside a storage of `numel` elements."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    strides: list[int] = []
    reach = 0
    for n in shape:
        most = (numel - 1 - reach) // max(1, n - 1) if n > 1 else 7
        strides.append(draw(st.integers(0, max(0, min(most, 40)))))
        reach += strides[-1] * max(0, n - 1)
    return shape, tuple(strides), draw(st.integers(0, numel - 1 - reach))


@st.composite
def files(draw: st.DrawFn) -> tuple[str, np.ndarray, list[View]]:
    """A storage and some views of it."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    numel = draw(st.integers(1, 300))
    values = np.frombuffer(np.random.default_rng(numel).bytes(numel * np.dtype(KINDS[kind]).itemsize), KINDS[kind])
    return kind, values, draw(st.lists(views(numel), min_size=1, max_size=4))


def naive(values: np.ndarray, view: View) -> bytes:
    """The row-major bytes of a view."""
    shape, strides, offset = view
    steps = tuple(s * values.itemsize for s in strides)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values[offset:], shape, steps)).tobytes()


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(files(), st.integers(1, 64), st.data())
def test_every_view_has_the_bytes_that_numpy_gives_it(
    made: tuple[str, np.ndarray, list[View]], step: int, data: st.DataObject
) -> None:
    kind, values, wanted = made
    storage = Storage(BY_NAME[kind], values.tobytes())
    state = Dict()
    state.pairs.extend((f"t{i}", tensor(storage, shape, offset, strides)) for i, (shape, strides, offset) in enumerate(wanted))
    with tempfile.TemporaryDirectory() as folder, FileHandles(2) as handles:
        write_torch(Path(folder) / "model.pt", state)
        tensors = open_checkpoint(Path(folder) / "model.pt").tensors
        for i, view in enumerate(wanted):
            found, expected = tensors[f"t{i}"], naive(values, view)
            assert b"".join(bytes(b) for _, b in blocks(found, handles, 16 * step)) == expected
            if found.layout is not None:
                found.layout.prove(len(expected))
            lo = data.draw(st.integers(0, len(expected)))
            hi = data.draw(st.integers(lo, len(expected)))
            part = memoryview(bytearray(hi - lo))
            read_range(found, lo, hi, part, handles)
            assert bytes(part) == expected[lo:hi]
