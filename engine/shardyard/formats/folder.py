"""A folder as the readers see it: a listing made once, of one directory or of several that belong to one checkpoint.

Each node of a cluster may have written its own disk, so a checkpoint can be the union of several directories.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardyard.errors import DamagedError
from shardyard.text import printable

MOST_ENTRIES = 200_000
"""Beyond this many entries a directory is listed in part and says so."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder."""

    name: str
    path: str
    """Absolute."""
    is_dir: bool
    is_file: bool
    """A regular file, or a link to one. Neither this nor `is_dir`: a FIFO, socket, device or dangling link."""
    nbytes: int
    mtime: float


class Folder:
    """Listing of one or several directories, as one; `sub` descends in all of them."""

    def __init__(self, *paths: str | Path) -> None:
        self.paths = tuple(Path(os.path.abspath(p)) for p in paths)
        self.unreadable: str = ""
        """Why the listing is empty or in part, one sentence; empty when it is whole."""

    @property
    def path(self) -> Path:
        """The first directory: what the checkpoint is called after."""
        return self.paths[0]

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """By name, sorted by name. Where two directories hold one name, the first one's; see `conflicts`."""
        found: dict[str, Entry] = {}
        for path in self.paths:
            for name, entry in self._scan(path):
                other = found.setdefault(name, entry)
                if other is not entry and not (other.is_dir and entry.is_dir):
                    self._twice.append((other, entry))
        return dict(sorted(found.items()))

    @cached_property
    def _twice(self) -> list[tuple[Entry, Entry]]:
        return []

    @property
    def conflicts(self) -> list[tuple[Entry, Entry]]:
        """Files of one name in two of the directories: copies, or a contradiction that the reader must settle."""
        _ = self.entries
        return self._twice

    def _scan(self, path: Path) -> list[tuple[str, Entry]]:
        found: list[tuple[str, Entry]] = []
        try:
            with os.scandir(path) as items:
                for item in items:
                    if len(found) >= MOST_ENTRIES:
                        self.unreadable = f"{printable(path.name)} has more than {MOST_ENTRIES} entries; the rest is not shown."
                        break
                    found.append((item.name, _entry(item)))
        except OSError as error:
            self.unreadable = f"{printable(str(path))} cannot be listed: {os.strerror(error.errno or 0)}."
        return found

    @cached_property
    def files(self) -> dict[str, Entry]:
        """The regular files."""
        return {n: e for n, e in self.entries.items() if e.is_file}

    @cached_property
    def folders(self) -> dict[str, Entry]:
        """The sub folders."""
        return {n: e for n, e in self.entries.items() if e.is_dir}

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def sub(self, name: str) -> Folder:
        """The sub folder of that name, in whichever of the directories it is."""
        return Folder(*(p / name for p in self.paths if (p / name).is_dir()))

    def parent(self) -> Folder:
        """The folder one level up (of the first directory)."""
        return Folder(self.path.parent)

    def small_file(self, name: str, most: int = 16 << 20) -> bytes | None:
        """Contents of a small file; None if it is not there.

        Raises:
            DamagedError: it is larger than `most`, or cannot be read.
        """
        entry = self.files.get(name)
        if entry is None:
            return None
        if entry.nbytes > most:
            raise DamagedError(f"{printable(name)} is {entry.nbytes} bytes; at most {most} are read.", path=entry.path)
        from shardyard.files import FileHandles

        with FileHandles(1) as handles:
            return handles.read(entry.path, 0, handles.size(entry.path))


def _entry(item: os.DirEntry[str]) -> Entry:
    try:
        info = item.stat()
        return Entry(item.name, item.path, stat.S_ISDIR(info.st_mode), stat.S_ISREG(info.st_mode), info.st_size, info.st_mtime)
    except OSError:
        return Entry(item.name, item.path, False, False, 0, 0.0)
