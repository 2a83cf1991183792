"""The inert unpickler: what it builds, what it refuses, and what it never does."""

from __future__ import annotations

import pickle
import struct
import time

import pytest

from shardyard.formats import pickles
from shardyard.formats.pickles import Call, Dict, PickleError, Set, Truncated, load
from shardyard.formats.pickles.globals import Danger, danger_of


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int) -> None:
    value = [None, True, False, 0, 255, 65535, -1, 1 << 40, -(1 << 70), 1.5, "text", "\N{SNOWMAN}", (), (1,), (1, 2, 3, 4), [[]]]
    assert load(pickle.dumps(value, protocol)).root == value


@pytest.mark.parametrize("protocol", range(6))
def test_containers_become_lists_of_pairs_and_items(protocol: int) -> None:
    root = load(pickle.dumps({"a": 1, ("b", 2): {3}}, protocol)).root
    assert isinstance(root, Dict) and root.get("a") == 1
    key, value = root.pairs[1]
    assert key == ("b", 2)
    assert pickles.sequence(value) == [3] and isinstance(value, (Set, Call))


@pytest.mark.parametrize("protocol", range(6))
def test_every_prefix_of_a_pickle_is_truncated_and_nothing_else(protocol: int) -> None:
    data = pickle.dumps({"key": [1, 2.5, "text" * 40, b"bytes", (300, 70000, 1 << 90)], "other": {1, 2}}, protocol)
    for cut in range(len(data)):
        with pytest.raises(Truncated):
            load(data[:cut], partial=True)


@pytest.mark.parametrize("body", [b"a.", b"0.", b"K\x01s.", b"R.", b"(0u.", b"b."])
def test_an_empty_stack_is_not_a_cut_file(body: bytes) -> None:
    with pytest.raises(PickleError) as caught:
        load(b"\x80\x02" + body + b"N" * 16)
    assert not isinstance(caught.value, Truncated)


def test_several_pickles_in_a_row_are_read_one_by_one() -> None:
    data = pickle.dumps(1, 2) + pickle.dumps("two", 2) + b"tail"
    first = load(data)
    assert (first.root, load(data, first.end).root) == (1, "two")


HOSTILE = {
    "a length of 9 exabytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"x",
    "an integer of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x",
    "a number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "ten million copies": b"\x80\x02N" + b"2" * 10_000_000 + b".",
    "five million dicts": b"\x80\x02" + b"}" * 5_000_000 + b".",
    "a huge memo index": b"\x80\x02Np" + b"9" * 100_000 + b"\n.",
    "a group that was never opened": b"\x80\x02u.",
    "attributes on a class": b"\x80\x02cos\nsystem\n}b.",
    "protocol 9": b"\x80\x09N.",
    "an extension code": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_excess_is_one_clean_error_in_short_time(data: bytes) -> None:
    started = time.process_time()
    with pytest.raises(PickleError):
        load(data)
    assert time.process_time() - started < 8


def test_equal_hashes_and_deep_keys_cost_nothing() -> None:
    collide = (1 << 61) - 1
    many = pickle.dumps([(i * collide) for i in range(30_000)], 2)
    body = many[2:-1]
    assert len(load(b"\x80\x02" + body + b".").root) == 30_000  # type: ignore[arg-type]
    as_keys = b"\x80\x02}(" + b"".join(b"\x8a\x0b" + (i * collide).to_bytes(11, "little") + b"N" for i in range(30_000)) + b"u."
    started = time.process_time()
    root = load(as_keys).root
    assert isinstance(root, Dict) and len(root) == 30_000 and time.process_time() - started < 2
    deep = load(b"\x80\x02)" + b"\x85" * 500_000 + b"Q.").root
    assert sum(1 for _ in pickles.walk(deep)) == 500_002


@pytest.mark.parametrize(
    ("name", "danger"),
    [
        (("os", "system"), Danger.CODE),
        (("__builtin__", "eval"), Danger.CODE),
        (("torch.serialization", "os.system"), Danger.CODE),
        (("numpy.testing._private.utils", "runstring"), Danger.CODE),
        (("pathlib", "Path.touch"), Danger.CODE),
        (("torch.hub", "load"), Danger.CODE),
        (("torch._utils", "_rebuild_tensor_v2"), Danger.DATA),
        (("torch.serialization", "_get_layout"), Danger.DATA),
        (("numpy._core.multiarray", "_reconstruct"), Danger.DATA),
        (("builtins", "getattr"), Danger.DATA),
        (("transformers.training_args", "TrainingArguments"), Danger.UNKNOWN),
        (("oslo.config", "Config"), Danger.UNKNOWN),
    ],
)
def test_names_are_judged_without_importing_them(name: tuple[str, str], danger: Danger) -> None:
    assert danger_of(*name) is danger
