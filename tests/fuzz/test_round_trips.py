"""The safetensors reader against the reference library: it reads what that writes, and refuses what that refuses."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.findings import Severity
from shardyard.formats.safetensors.file import SafetensorsFile, open_safetensors
from shardyard.operations.gather import blocks

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda n: n != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
KINDS = st.sampled_from(["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])


def read(content: bytes) -> SafetensorsFile | None:
    """Our reader's view of a file; None if it refuses it or blocks a merge of it."""
    with tempfile.TemporaryDirectory() as folder, FileHandles(2) as handles:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        with contextlib.suppress(DamagedError):
            file = open_safetensors(handles, str(path))
            unknown = any(f.code == "unsupported" for f in file.findings)
            if not unknown and not any(f.severity is Severity.ERROR for f in file.findings):
                return file
    return None


def accepted(content: bytes) -> bool:
    """Whether the reference library takes a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        try:
            with safe_open(path, framework="np") as file:
                file.keys()
        except (SafetensorError, OSError):
            return False
        return True


@QUICK
@given(st.dictionaries(NAMES, st.tuples(KINDS, SHAPES, st.integers(0, 2**32 - 1)), max_size=5))
def test_what_the_reference_writes_is_read_bit_for_bit(wanted: dict[str, tuple[str, tuple[int, ...], int]]) -> None:
    arrays = {}
    for name, (kind, shape, seed) in wanted.items():
        raw = np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(kind).itemsize)
        values = np.frombuffer(raw, "uint8") > 9 if kind == "bool" else np.frombuffer(raw, kind)
        arrays[name] = values.reshape(shape)
    content = save(arrays)
    with tempfile.TemporaryDirectory() as folder, FileHandles(2) as handles:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        file = open_safetensors(handles, str(path))
        assert not file.findings and set(file.tensors) == set(arrays)
        for name, array in arrays.items():
            tensor = file.tensors[name]
            assert tensor.shape == array.shape and tensor.dtype.name == array.dtype.name
            assert b"".join(bytes(b) for _, b in blocks(tensor, handles)) == array.tobytes()


ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 40), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3)
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(["F32", "U8", "F4", "F6_E2M3", "I64", "f32", "F7"]), ODD),
        "shape": st.one_of(st.lists(st.one_of(st.integers(-1, 5), st.just(2**62)), max_size=3), ODD),
        "data_offsets": st.one_of(st.lists(st.integers(-4, 40), min_size=2, max_size=2), st.lists(ODD, max_size=3)),
    },
    optional={"more": ODD},
)
HEADERS = st.one_of(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "__metadata__"]), st.one_of(ENTRY, ODD, st.dictionaries(st.text(max_size=2), ODD))
    ),
    ODD,
    st.lists(ODD, max_size=2),
)


@settings(QUICK, max_examples=600)
@given(HEADERS, st.integers(0, 40), st.sampled_from([b"", b" ", b"\n\t", b"\0", b"x"]), st.booleans())
def test_odd_headers_are_taken_exactly_when_the_reference_takes_them(
    header: object, data: int, tail: bytes, ascii_only: bool
) -> None:
    text = json.dumps(header, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + tail
    content = struct.pack("<Q", len(text)) + text + bytes(data)
    assert (read(content) is not None) == accepted(content)


@settings(QUICK, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 70))
def test_random_bytes_are_refused_without_a_fault(noise: bytes, length: int) -> None:
    for content in (noise, struct.pack("<Q", length) + noise, struct.pack("<Q", len(noise)) + noise):
        assert read(content) is None or accepted(content)
