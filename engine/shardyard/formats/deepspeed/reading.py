"""What the parts of this reader share while one step is opened: files that may be damaged, findings, counts, progress.

A damaged file is one finding and the rest goes on; `Blocks` tells whether a merge may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace

from shardyard.checkpoint import FileEntry
from shardyard.errors import COPY_AGAIN, Cancelled, DamagedError, NoRoomError, ShardyardError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import OpenOptions
from shardyard.formats.deepspeed.names import other_place
from shardyard.formats.folder import Entry
from shardyard.formats.torch.file import TorchFile, check_whole, open_torch
from shardyard.text import printable


@dataclass(slots=True)
class Reading:
    """One step being opened."""

    options: OpenOptions
    prefix: str
    """The step folder's path relative to the checkpoint, ending in `/`, or empty."""
    findings: list[Finding] = field(default_factory=list)
    globals: Counter[str] = field(default_factory=Counter)
    to_read: int = 0
    """Files that are going to be opened, as far as known: the total of the progress."""
    done: int = 0

    def open(self, entry: Entry) -> TorchFile | None:
        """A torch file of the step; None, with a finding, if it is damaged."""
        if self.options.cancelled():
            raise Cancelled()
        if self.options.progress is not None:
            self.options.progress(entry.name, self.done, max(self.to_read, self.done + 1))
        self.done += 1
        name = printable(entry.name)
        if entry.nbytes == 0:
            self.damaged("empty-file", f"{name} is empty: its writer never finished.", entry)
            return None
        try:
            file = open_torch(self.options.handles, entry.path)
        except (Cancelled, NoRoomError):
            raise
        except ShardyardError as error:
            remedy = "" if error.remedy == COPY_AGAIN else error.remedy
            self.damaged(getattr(error, "code", "corrupt"), error.problem, entry, remedy)
            return None
        for (module, attribute), count in file.globals.items():
            self.globals[f"{module}.{attribute}"] += count
        first = other_place(entry, file.saved_as)
        if first is not None:
            self.add(
                Finding(
                    "renamed-file",
                    Severity.ERROR,
                    f"{name} was saved as {printable(first)}: files were exchanged, or one was copied over another.",
                    "Give the files the names they were saved under, or copy the step again.",
                    paths=(entry.name,),
                    blocks=Blocks.MERGE,
                )
            )
        self.findings.extend(replace(f, paths=(self.prefix + printable(entry.name),)) for f in file.findings)
        return file

    def check(self, entry: Entry) -> None:
        """A warning if a file that nothing is needed from was not written to its end."""
        try:
            check_whole(self.options.handles, entry.path)
        except DamagedError as error:
            remedy = "Nothing that is merged is in it; training needs it."
            self.add(Finding(error.code, Severity.WARNING, error.problem, remedy, paths=(entry.name,), nbytes=entry.nbytes))

    def damaged(self, code: str, message: str, entry: Entry, remedy: str = "") -> None:
        """A file that cannot be used."""
        remedy = remedy or "Copy it again, or use an earlier step."
        blocks = Blocks.UNLESS_ALLOWED
        self.add(Finding(code, Severity.ERROR, message, remedy, (entry.name,), nbytes=entry.nbytes, blocks=blocks))

    def refuse(self, error: DamagedError, entry_name: str = "") -> None:
        """A layout that is not understood: no merge, whatever was asked."""
        name = entry_name or (error.path or "").rsplit("/", 1)[-1]
        paths = (name,) if name else ()
        self.add(Finding(error.code, Severity.ERROR, error.problem, error.remedy, paths, blocks=Blocks.MERGE))

    def missing(self, code: str, message: str, names: Sequence[str], blocks: Blocks = Blocks.UNLESS_ALLOWED) -> None:
        """Files that should be here and are not."""
        remedy = "Add the folder of the node that wrote them, or use an earlier step."
        self.add(Finding(code, Severity.ERROR, message, remedy, paths=tuple(names[:100]), blocks=blocks))

    def left_over(self, message: str, names: Sequence[str]) -> None:
        """Files of another run: which of the two is wanted, nobody can know."""
        remedy = "Move the files of the other run away and try again."
        self.add(Finding("stale-file", Severity.ERROR, message, remedy, paths=tuple(names[:100]), blocks=Blocks.MERGE))

    def add(self, finding: Finding) -> None:
        """Note something; its paths are names in the step folder."""
        self.findings.append(replace(finding, paths=tuple(self.prefix + printable(p) for p in finding.paths)))

    def entry(self, entry: Entry, role: str) -> FileEntry:
        """A file of the step, for the checkpoint's list."""
        return FileEntry(self.prefix + entry.name, entry.nbytes, role)


def are(things: Sized) -> str:
    """`is` or `are`."""
    return "is" if len(things) == 1 else "are"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2-5`."""
    return f"{noun if len(numbers) == 1 else noun + 's'} {ranges(numbers)}"


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[object], most: int = 6) -> str:
    """A few of many, safe to show: `a, b and 3 more`."""
    shown = [printable(str(n), 80) for n in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers with runs shortened: `0, 2-5`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
