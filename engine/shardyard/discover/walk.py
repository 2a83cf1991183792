"""A folder tree, walked once: every checkpoint in it, and what belongs to none.

Bounded whatever the tree: each directory is visited once, links to directories are followed last and never to a place above the
start, and depth and the number of folders have limits that are told when they are met.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardyard.discover.look import Look, look
from shardyard.formats.candidate import Candidate
from shardyard.formats.folder import Folder
from shardyard.text import printable

MOST_FOLDERS = 200_000
MOST_DEPTH = 400
SKIPPED = frozenset({".git", "__pycache__"})
"""Folders that hold no checkpoints and may be large."""

UNFINISHED = ".shardyard-partial"
"""Ending of a folder in which an output is being written: what is in it is not whole."""

Progress = Callable[[str, int, int], None]
"""Told of (folder, folders seen, checkpoints found)."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One folder of the walk."""

    look: Look
    depth: int
    problems: tuple[str, ...] = ()
    """Sentences about places that were not visited."""


@dataclass(frozen=True, slots=True)
class _Next:
    path: str
    depth: int
    link: bool


def walk(
    folder: Folder, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False, *, depth: int = MOST_DEPTH
) -> Iterator[Visit]:
    """Visit a folder and all below it, parents before children, in the order of names."""
    seen: set[tuple[int, int]] = set()
    waiting: deque[Folder | _Next] = deque([folder])
    links: deque[_Next] = deque()
    folders = found = 0
    root = os.path.realpath(folder.path)
    while waiting or links:
        item = waiting.popleft() if waiting else links.popleft()
        here = item if isinstance(item, Folder) else Folder(item.path)
        level = 0 if isinstance(item, Folder) else item.depth
        identity = _identity(here.path)
        if cancelled():
            return
        if identity in seen:
            continue
        if identity is not None:
            seen.add(identity)
        folders += 1
        if folders > MOST_FOLDERS:
            yield Visit(Look(here, (), ()), level, (f"More than {MOST_FOLDERS:,} folders; the rest was not looked at.",))
            return
        seen_here = look(here)
        found += len(seen_here.candidates)
        if progress is not None:
            progress(str(here.path), folders, found)
        below = _below(seen_here, level, root)
        # Depth first, as a person reads a tree; children keep their order.
        waiting.extendleft(n for n in reversed(below) if not n.link and n.depth <= depth)
        links.extend(n for n in below if n.link and n.depth <= depth)
        too_deep = any(n.depth > MOST_DEPTH for n in below)
        told = [f"{printable(str(here.path))} is {MOST_DEPTH} folders deep; no further."] if too_deep else []
        told += [_unfinished(name) for name in seen_here.unclaimed if name.endswith(UNFINISHED)]
        yield Visit(seen_here, level, tuple(told))


def _unfinished(name: str) -> str:
    return f"{printable(name)} is an output that was not finished; resume its job, or delete it."


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _below(seen: Look, level: int, root: str) -> list[_Next]:
    """The sub folders to visit."""
    found = []
    for name in seen.unclaimed:
        entry = seen.folder.entries[name]
        if not entry.is_dir or name in SKIPPED or name.endswith(UNFINISHED):
            continue
        if name == "blobs" and "snapshots" in seen.folder.folders:
            # The hub's cache: its snapshots are links to these.
            continue
        link = os.path.islink(entry.path)
        if link and _is_above(os.path.realpath(entry.path), root):
            continue
        found.append(_Next(entry.path, level + 1, link))
    return found


def _is_above(target: str, root: str) -> bool:
    """Whether following a link to `target` would walk the start's surroundings."""
    return root == target or root.startswith(target.rstrip("/") + "/")


def scan(
    folder: str | Path | Folder, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[Candidate]:
    """The checkpoints below a folder, as they are found."""
    start = folder if isinstance(folder, Folder) else Folder(folder)
    for visit in walk(start, progress, cancelled):
        yield from visit.look.candidates
