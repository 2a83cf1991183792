"""The browser's tree as data."""

from __future__ import annotations

import random
import time

from shardyard_tui.facts import Found, Listed, Listing
from shardyard_tui.places import Places, grouped


def found(path: str, nbytes: int = 10, folder: bool = True) -> Found:
    return Found(path, "torch", nbytes, 1, folder, 5.0)


def names(places: Places) -> list[str]:
    out: list[str] = []

    def walk(node, depth: int) -> None:  # type: ignore[no-untyped-def]
        for child in node.children:
            out.append("  " * depth + child.value.name)
            walk(child, depth + 1)

    walk(places.root, 0)
    return out


def test_folders_come_first_in_natural_order_whatever_comes_first() -> None:
    paths = ["/r/step-10", "/r/step-2", "/r/b/x", "/r/step-2/inner.pt", "/r/a.pt", "/r/b/y"]
    for seed in range(5):
        random.Random(seed).shuffle(paths)
        places = Places("/r")
        for path in paths:
            places.add(found(path, folder=not path.endswith(".pt")), opened=True)
        assert names(places) == ["b", "  x", "  y", "step-2", "  inner.pt", "step-10", "a.pt"]
        assert places.checkpoints == 6
        assert places.root.value.nbytes == 60


def test_the_same_checkpoint_found_again_counts_once_and_is_renewed() -> None:
    places = Places("/r")
    places.add(found("/r/a", 10), opened=True)
    places.add(found("/r/a", 25), opened=True)
    assert places.checkpoints == 1
    assert places.root.children[0].value.nbytes == 25


def test_a_root_that_is_a_checkpoint_has_its_own_row_beside_what_lies_in_it() -> None:
    places = Places("/r/z3")
    places.add(found("/r/z3"), opened=True)
    places.add(found("/r/z3/model.safetensors", folder=False), opened=True)
    assert names(places) == ["z3", "model.safetensors"]
    node = places.at("/r/z3")
    assert node is not None and node.value.found is not None


def test_a_file_that_was_opened_may_be_called_by_its_folder() -> None:
    places = Places("/r/z3/model.safetensors")
    places.add(found("/r/z3"), opened=True)
    assert names(places) == ["z3"]


def test_ranks_are_one_row_and_other_files_their_own() -> None:
    entries = [Listed(f"rank_{n}.pt", f"/r/rank_{n}.pt", False, 5, 1.0) for n in range(9)]
    entries += [Listed("config.json", "/r/config.json", False, 2, 1.0), Listed("a1.txt", "/r/a1.txt", False, 1, 1.0)]
    places = grouped(entries)
    assert [(p.kind, p.name, p.nbytes) for p in places] == [
        ("file", "a1.txt", 1),
        ("file", "config.json", 2),
        ("group", "rank_*.pt  (9)", 45),
    ]


def test_very_many_files_are_counted_not_drawn() -> None:
    entries = [Listed(f"{n:x}-{'a' * (n % 50)}-z", f"/r/{n}", False, 1, 1.0) for n in range(9000)]
    places = grouped(entries)
    assert len(places) <= 2001


def test_files_are_forgotten_and_checkpoints_stay() -> None:
    places = Places("/r")
    node = places.add(found("/r/run/ckpt"), opened=True)
    listing = Listing("/r/run", (Listed("x", "/r/run/x", True, 0, 1.0), Listed("n.txt", "/r/run/n.txt", False, 1, 1.0)))
    run = places.at("/r/run")
    assert run is not None
    places.add_files(run, listing, folders=True)
    assert names(places) == ["run", "  ckpt", "  x", "  n.txt"]
    places.forget_files()
    assert names(places) == ["run", "  ckpt"]
    assert places.at("/r/run/ckpt") is node


def test_five_thousand_saves_in_one_folder_are_added_quickly() -> None:
    places = Places("/r")
    order = list(range(5000))
    random.Random(1).shuffle(order)
    began = time.process_time()
    for n in order:
        places.add(found(f"/r/checkpoint-{n}"), opened=False)
    assert time.process_time() - began < 3
    assert [c.value.name for c in places.root.children[:3]] == ["checkpoint-0", "checkpoint-1", "checkpoint-2"]


def test_a_checkpoint_in_a_folder_that_was_read_in_part_can_be_opened() -> None:
    places = Places("/runs")
    node = places.add(found("/runs/a"), opened=True)
    places.add_unread("/runs/a", "a was listed in part.")
    places.add_unread("/runs/b", "b cannot be listed.")
    assert not node.value.problem
    assert places.unread == 1
    assert [child.value.state for child in places.root.children] == ["", "unreadable"]


def test_folders_hold_what_their_checkpoints_turn_out_to_hold() -> None:
    places = Places("/runs")
    node = places.add(found("/runs/a/b", 10), opened=True)
    places.add(found("/runs/a/c", 5), opened=True)
    places.resize(node, 30)
    places.resize(node, 0)
    assert node.value.nbytes == 30
    assert node.parent is not None and node.parent.value.nbytes == 35
