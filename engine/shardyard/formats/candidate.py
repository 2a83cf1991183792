"""What a format is, and what it recognises in a folder.

Recognising looks at names, sizes and at most a few small files; opening reads headers, central directories and pickles, and
never tensor data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shardyard.checkpoint import Checkpoint, CheckpointKind
from shardyard.files import FileHandles
from shardyard.formats.folder import Folder


@dataclass(slots=True)
class OpenOptions:
    """How a checkpoint is to be opened."""

    tag: str | None = None
    """A step such as `global_step10`; None: what `latest` says."""
    part: str | None = None
    progress: Callable[[str, int, int], None] | None = None
    """Called with (what is read, done, total) now and then."""
    cancelled: Callable[[], bool] = lambda: False
    handles: FileHandles = field(default_factory=FileHandles)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that was recognised in a folder and not opened yet."""

    format: Format
    folder: Folder
    """The checkpoint's own folder, or the folder that holds its file."""
    path: Path
    """What it is called by: the folder, or the file for single-file kinds."""
    kind: CheckpointKind
    """As far as names tell; opening may correct it (ZeRO-1 from ZeRO-2)."""
    files: tuple[str, ...]
    """Names it lays claim to, relative to `folder` (with `/` for files further down)."""
    folders: tuple[str, ...] = ()
    """Sub folders that are wholly its own: the search does not go down there."""
    details: Mapping[str, object] = field(default_factory=dict)
    """What the format wants to remember for `open`."""

    @property
    def nbytes(self) -> int:
        """Bytes of its files, from the listing; each folder is listed once."""
        folders = {"": self.folder}
        total = 0
        for name in self.files:
            head, _, rest = name.rpartition("/")
            if head not in folders:
                folder = self.folder
                for step in head.split("/"):
                    folder = folder.sub(step)
                folders[head] = folder
            entry = folders[head].entries.get(rest)
            total += entry.nbytes if entry else 0
        return total

    def open(self, options: OpenOptions | None = None) -> Checkpoint:
        """Read its headers.

        Raises:
            ShardyardError: nothing can be said about it at all. Damage that leaves something to show is a finding instead.
        """
        return self.format.open(self, options or OpenOptions())


class Format(Protocol):
    """A reader of one family of checkpoints."""

    name: str

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """The checkpoints of this family that lie in the folder.

        `unclaimed` has the names (files and sub folders) that no earlier format took.
        """
        ...

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """See `Candidate.open`."""
        ...
