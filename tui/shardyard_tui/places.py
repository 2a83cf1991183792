"""The browser's tree as plain data: folders that lead to checkpoints, the checkpoints, and, when asked for, everything else."""

from __future__ import annotations

import os
import re
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardyard.text import printable
from shardyard_tui.facts import Found, Listed, Listing, Opened
from shardyard_tui.units import natural
from shardyard_tui.widgets.tree_list import Node

GROUP_FROM = 4
"""This many files whose names differ only in numbers are shown as one row."""
MOST_ROWS = 2_000
"""Files listed in one place; the rest is counted."""


@dataclass(slots=True)
class Place:
    """A row of the tree."""

    kind: str
    """`folder`, `checkpoint`, `file`, `group` or `note`."""
    path: str
    name: str
    """Safe to show."""
    nbytes: int = 0
    mtime: float = 0.0
    found: Found | None = None
    opened: Opened | None = None
    problem: str = ""
    """Why it could not be opened or listed."""
    members: tuple[str, ...] = ()
    """Of a group: its files' names."""
    listed: bool = False
    """Whether its files were read into the tree."""

    @property
    def state(self) -> str:
        """`complete`, `warning`, `incomplete`, `unreadable`, or empty while it is not known."""
        if self.problem:
            return "unreadable"
        return self.opened.state if self.opened is not None else ""


PlaceNode = Node[Place]


@dataclass(slots=True)
class Places:
    """The tree below one folder (or around one file)."""

    root_path: str
    root: PlaceNode = field(init=False)
    by_path: dict[str, PlaceNode] = field(default_factory=dict)
    checkpoints: int = 0
    unread: int = 0
    """Folders that could not be looked at."""
    itself: PlaceNode | None = None
    """The root's own row, where the root is a checkpoint."""

    def __post_init__(self) -> None:
        self.root = Node(self.root_path, Place("folder", self.root_path, printable(os.path.basename(self.root_path)) or "/"))
        self.root.is_open = self.root.can_open = True
        # The root itself is the first line of the screen, not a row.
        self.root.depth = -1
        self.by_path = {self.root_path: self.root}

    def add(self, found: Found, *, opened: bool) -> PlaceNode:
        """A checkpoint, with the folders that lead to it; `opened`: whether new folders are shown open."""
        node = self.at(found.path)
        if node is None or node.value.found is None:
            node = self._new(found, node, opened)
            self.checkpoints += 1
            self._grow(node.parent, found.nbytes)
        place = node.value
        place.found, place.nbytes, place.mtime = found, found.nbytes, found.mtime
        node.can_open = found.is_folder or bool(node.children)
        return node

    def add_unread(self, path: str, problem: str) -> None:
        """A folder that could not be looked at, and why; where a checkpoint was found all the same, opening it tells more."""
        node = self.at(path) or self._folder(path, opened=True)
        if node.value.found is not None:
            return
        self.unread += node is not self.root
        node.value.problem = problem
        node.can_open = bool(node.children)

    def _new(self, found: Found, folder: PlaceNode | None, opened: bool) -> PlaceNode:
        """The row of a checkpoint that was not known; `folder`: the row it had as a mere folder."""
        place = Place("checkpoint", found.path, printable(os.path.basename(found.path)), found=found)
        if folder is not None and folder.parent is not None:
            folder.parent.children.remove(folder)
            folder.value.kind, folder.value.found = "checkpoint", found
            insort(folder.parent.children, folder, key=_order)
            return folder
        if found.path == self.root_path:
            # The folder that was opened is a checkpoint itself: a row of its own, since the root is not one.
            self.itself = Node(found.path, place)
            return self.root.add(self.itself)
        node = self._insert(self._folder(os.path.dirname(found.path), opened), place)
        node.is_open = False
        return node

    def at(self, path: str) -> PlaceNode | None:
        """The row of a path."""
        return self.itself if path == self.root_path else self.by_path.get(path)

    @property
    def nodes(self) -> list[PlaceNode]:
        """Every folder and checkpoint."""
        return [*self.by_path.values(), *([self.itself] if self.itself is not None else [])]

    def _folder(self, path: str, opened: bool) -> PlaceNode:
        node = self.by_path.get(path)
        if node is not None:
            return node
        if not path.startswith(self.root_path.rstrip("/") + "/"):
            return self.root
        node = self._insert(self._folder(os.path.dirname(path), opened), Place("folder", path, printable(os.path.basename(path))))
        node.is_open = opened
        return node

    def _insert(self, above: PlaceNode, place: Place) -> PlaceNode:
        node: PlaceNode = Node(place.path, place, can_open=place.kind == "folder")
        node.parent, node.depth = above, above.depth + 1
        insort(above.children, node, key=_order)
        above.can_open = True
        self.by_path[place.path] = node
        return node

    def resize(self, node: PlaceNode, nbytes: int) -> None:
        """What a checkpoint holds, now that it was opened; the folders above it hold as much more or less."""
        if nbytes:
            self._grow(node.parent, nbytes - node.value.nbytes)
            node.value.nbytes = nbytes

    def _grow(self, node: PlaceNode | None, nbytes: int) -> None:
        while node is not None:
            if node.value.kind == "folder":
                node.value.nbytes += nbytes
            node = node.parent

    def add_files(self, node: PlaceNode, listing: Listing, *, folders: bool) -> None:
        """What lies in the node's folder: its files, many alike as one row; `folders`: those without a checkpoint too."""
        node.value.listed = True
        node.value.problem = listing.problem if not listing.entries else node.value.problem
        known = {child.key for child in node.children}
        files = [entry for entry in listing.entries if not entry.is_folder and entry.path not in known]
        if folders:
            for entry in listing.entries:
                if entry.is_folder and entry.path not in known:
                    self._insert(node, Place("folder", entry.path, printable(entry.name), mtime=entry.mtime)).is_open = False
        for place in grouped(files):
            child: PlaceNode = Node(f"{node.key}//{place.name}", place)
            node.add(child)
        if listing.problem:
            node.add(Node(f"{node.key}//problem", Place("note", node.key, listing.problem)))

    def forget_files(self) -> None:
        """Take away everything that is neither a checkpoint nor leads to one."""
        for node in self.nodes:
            node.value.listed = False
            node.children[:] = [child for child in node.children if leads_somewhere(child)]
        self.by_path = {path: node for path, node in self.by_path.items() if node is self.root or leads_somewhere(node)}


def leads_somewhere(node: PlaceNode) -> bool:
    """Whether it is a checkpoint or a folder above one, or one that could not be looked at."""
    return node.value.kind == "checkpoint" or bool(node.value.problem) or any(leads_somewhere(child) for child in node.children)


def _order(node: PlaceNode) -> tuple[int, object]:
    place = node.value
    folder = place.kind == "folder" or (place.found is not None and place.found.is_folder)
    rank = 0 if folder else {"checkpoint": 1, "note": 3}.get(place.kind, 2)
    return rank, natural(place.name)


_RUN = re.compile(r"\d+")


def grouped(files: Iterable[Listed]) -> list[Place]:
    """Files as rows; names that differ only in their numbers come as one, with `*` for them."""
    alike: dict[str, list[Listed]] = {}
    for entry in files:
        alike.setdefault(_RUN.sub("*", entry.name), []).append(entry)
    places: list[Place] = []
    for pattern, members in alike.items():
        if len(members) >= GROUP_FROM:
            total = sum(m.nbytes for m in members)
            names = tuple(m.name for m in members)
            name = f"{printable(pattern)}  ({len(members)})"
            places.append(Place("group", members[0].path, name, total, max(m.mtime for m in members), members=names))
        else:
            places += [Place("file", m.path, printable(m.name), m.nbytes, m.mtime) for m in members]
    places.sort(key=lambda place: natural(place.name))
    if len(places) > MOST_ROWS:
        rest = places[MOST_ROWS:]
        places[MOST_ROWS:] = [Place("note", "", f"and {len(rest)} more files", sum(p.nbytes for p in rest))]
    return places
