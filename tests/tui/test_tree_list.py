"""The tree: open and closed, filtered with the way to each match, in any order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from textual.app import App, ComposeResult

from shardyard_tui import units
from shardyard_tui.theme import LOOKS
from shardyard_tui.widgets.row_list import Column
from shardyard_tui.widgets.tree_list import Node, TreeList


class Host(App[None]):
    """A tree alone on a screen."""

    look = LOOKS["dark"]

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tree_list: TreeList[int] = TreeList(
            [
                Column("Name", lambda n: n.indent + n.key, sort="n", key=lambda n: units.natural(n.key)),
                Column("Size", lambda n: str(n.value), 5, sort="s", key=lambda n: n.value, falling=True),
            ],
            lambda n: n.key,
        )

    def compose(self) -> ComposeResult:
        yield self.tree_list

    def on_tree_list_opened(self, event: TreeList.Opened) -> None:
        self.opened.append(event.node.key)


@pytest.fixture
async def shown() -> AsyncIterator[tuple[TreeList[int], Any]]:
    host = Host()
    async with host.run_test(size=(50, 14)) as pilot:
        for name, value in (("a", 1), ("b", 9)):
            root: Node[int] = Node(name, value)
            for n in (2, 10, 1):
                root.add(Node(f"{name}/{n}", n * value)).add(Node(f"{name}/{n}/leaf", n))
            host.tree_list.roots.append(root)
        host.tree_list.lay_out()
        host.tree_list.focus()
        await pilot.pause()
        yield host.tree_list, pilot


def keys(tree: TreeList[int]) -> list[str]:
    return [tree.all[i].key for i in tree.shown]


async def test_right_opens_steps_in_and_left_closes_and_steps_out(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    assert keys(tree) == ["a", "b"]
    await pilot.press("l")
    assert keys(tree) == ["a", "a/2", "a/10", "a/1", "b"]
    assert pilot.app.opened == ["a"]
    await pilot.press("right")
    assert tree.current is not None and tree.current.key == "a/2"
    await pilot.press("left")
    assert tree.current.key == "a"
    await pilot.press("left")
    assert keys(tree) == ["a", "b"]


async def test_minus_goes_up_and_closes(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    await pilot.press("l", "j", "j", "minus")
    assert tree.current is not None and tree.current.key == "a"
    assert keys(tree) == ["a", "b"]


async def test_a_match_in_a_closed_folder_is_shown_with_the_way_to_it(shown: tuple[TreeList[int], Any]) -> None:
    tree, _ = shown
    tree.set_filter("b/10/leaf")
    assert keys(tree) == ["b", "b/10", "b/10/leaf"]
    tree.set_filter("")
    assert keys(tree) == ["a", "b"]


async def test_the_match_under_the_cursor_stays_in_sight_when_the_filter_goes(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    tree.set_filter("b/10/leaf")
    await pilot.press("G")
    tree.set_filter("")
    assert keys(tree) == ["a", "b", "b/2", "b/10", "b/10/leaf", "b/1"]
    assert tree.current is not None and tree.current.key == "b/10/leaf"


async def test_siblings_are_sorted_within_their_folder(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    await pilot.press("l")
    tree.sort_by("n")
    assert keys(tree) == ["a", "a/1", "a/2", "a/10", "b"]
    tree.sort_by("s")
    assert keys(tree) == ["a", "a/10", "a/2", "a/1", "b"]


async def test_the_cursor_stays_on_its_node_while_others_come_and_go(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    await pilot.press("j")
    tree.roots.insert(0, Node("new", 0))
    tree.lay_out()
    assert tree.current is not None and tree.current.key == "b"


async def test_marks_stay_with_their_nodes(shown: tuple[TreeList[int], Any]) -> None:
    tree, pilot = shown
    await pilot.press("l", "j", "space", "k", "k", "left")
    assert tree.marked == {"a/2"}
    assert [node.key for node in tree.chosen] == ["a/2"]
