"""A tree drawn as a list: open nodes are laid out flat, so it costs what is seen, not what there is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from textual.binding import BindingType
from textual.message import Message

from shardyard_tui.filters import Filter
from shardyard_tui.glyphs import CLOSED, OPEN
from shardyard_tui.keys import bindings
from shardyard_tui.widgets.row_list import Column, RowList

V = TypeVar("V")


@dataclass(slots=True, eq=False)
class Node(Generic[V]):
    """A place in the tree."""

    key: str
    """What it is known by, now and after the tree was read again."""
    value: V
    parent: Node[V] | None = None
    children: list[Node[V]] = field(default_factory=list)
    is_open: bool = False
    can_open: bool = False
    """Whether there is, or may be, something inside."""
    depth: int = 0

    def add(self, child: Node[V]) -> Node[V]:
        """Put `child` last among the children."""
        child.parent, child.depth = self, self.depth + 1
        self.children.append(child)
        self.can_open = True
        return child

    @property
    def indent(self) -> str:
        """What stands before its name: its depth, and whether it is open."""
        sign = (OPEN if self.is_open else CLOSED) if self.can_open else " "
        return "  " * self.depth + sign + " "


class TreeList(RowList[Node[V]], Generic[V]):
    """The tree. The nodes are the caller's; `lay_out` after changing them."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(("expand", "collapse", "parent"), "tree")]

    class Opened(Message):
        """A node was opened; whoever owns the tree may fill it now."""

        def __init__(self, tree: TreeList[Any], node: Node[Any]) -> None:
            super().__init__()
            self.tree = tree
            self.node = node

        @property
        def control(self) -> TreeList[Any]:
            return self.tree

    def __init__(
        self,
        columns: Sequence[Column[Node[V]]],
        words: Callable[[Node[V]], str],
        title: str = "",
        *,
        empty: str = "Nothing here.",
        id: str | None = None,
    ) -> None:
        super().__init__(columns, words, title, empty=empty, id=id)
        self.roots: list[Node[V]] = []

    def mark_of(self, position: int) -> Hashable:
        return self.all[position].key

    @property
    def chosen(self) -> list[Node[V]]:
        """The marked nodes, also those inside closed ones; without marks, the one under the cursor."""
        if self.marked:
            return [node for node in self.walk() if node.key in self.marked]
        return [] if self.current is None else [self.current]

    def walk(self) -> Iterable[Node[V]]:
        """Every node, parents first."""
        stack = self.roots[::-1]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def lay_out(self) -> None:
        """Flatten the tree again; the cursor stays on the node it was on."""
        here = self.current.key if self.current is not None else None
        flat: list[Node[V]] = []
        stack = self.roots[::-1]
        everything = not self.filter.empty
        while stack:
            node = stack.pop()
            flat.append(node)
            if node.is_open or everything:
                stack.extend(reversed(self._in_order(node.children)))
        self.all = flat
        self.arrange_tree(here)

    def arrange_tree(self, here: str | None) -> None:
        """Apply the filter to the flat rows and find the cursor's node again."""
        self.shown = self.matching(self.filter, range(len(self.all)))
        for at, i in enumerate(self.shown):
            if self.all[i].key == here:
                self.cursor = at
                break
        self.clamp()
        self.moved()
        self.refresh()
        self.post_message(self.Moved(self))

    def rearrange(self) -> None:
        self.lay_out()

    def set_filter(self, text: str) -> None:
        """Show the nodes that match; with no filter any more, the cursor's node stays in sight."""
        node = self.current.parent if self.current is not None and not text.strip() and not self.filter.empty else None
        while node is not None:
            node.is_open, node = True, node.parent
        super().set_filter(text)

    def matching(self, wanted: Filter, among: Iterable[int]) -> Sequence[int]:
        if wanted.empty:
            return among if isinstance(among, range) else list(among)
        # A match is shown with the folders above it, so that it can be told where it is.
        keep: set[int] = set()
        position = {id(self.all[i]): i for i in among}
        for i in position.values():
            node: Node[V] | None = self.all[i]
            if node is not None and wanted.matches(self.words(node)):
                while node is not None and id(node) in position:
                    keep.add(position[id(node)])
                    node = node.parent
        return sorted(keep)

    def _in_order(self, nodes: list[Node[V]]) -> list[Node[V]]:
        if self.sorted_by is None:
            return nodes[::-1] if self.falling else nodes
        text = self.sorted_by.text
        return sorted(nodes, key=self.sorted_by.key or text, reverse=self.falling)

    def reverse(self) -> None:
        self.falling = not self.falling
        self.lay_out()

    # Opening and closing

    def action_tree(self, name: str) -> None:
        node = self.current
        if node is None:
            return
        if name == "expand":
            self.open_node(node)
        elif name == "collapse" and node.is_open and node.can_open:
            self.close_node(node)
        elif node.parent is not None:
            self.go_to(node.parent.key)
            if name == "parent":
                self.close_node(node.parent)
        elif name == "parent":
            self.close_node(node)

    def open_node(self, node: Node[V]) -> None:
        """Open it; on an open one, step inside."""
        if node.is_open and node.children:
            self.action_go("down")
        elif node.can_open:
            node.is_open = True
            self.post_message(self.Opened(self, node))
            self.lay_out()

    def close_node(self, node: Node[V]) -> None:
        """Close it."""
        node.is_open = False
        self.lay_out()

    def go_to(self, key: str) -> bool:
        """Put the cursor on the node of that key, if it is shown."""
        for at, i in enumerate(self.shown):
            if self.all[i].key == key:
                self.move_to(at)
                return True
        return False
