"""One file name in two of a checkpoint's folders: copies are fine, a contradiction is refused."""

from __future__ import annotations

from collections.abc import Callable

from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.folder import Entry, Folder
from shardyard.text import printable

_WHOLE = 8 << 20
_SAMPLE = 64 << 10
_SAMPLES = 64


def conflicts(folder: Folder, handles: FileHandles, concerns: Callable[[str], bool]) -> list[Finding]:
    """A finding for each file whose copies differ; large ones are compared at their ends and at samples between.

    Args:
        concerns: whether a name belongs to the checkpoint.
    """
    return [
        Finding(
            "duplicate-copy",
            Severity.ERROR,
            f"{printable(a.name)} is in two of the folders with different contents: {printable(a.path)}, {printable(b.path)}.",
            "Leave the wrong one out; the folders must come from one save.",
            paths=(a.name,),
            blocks=Blocks.MERGE,
        )
        for a, b in folder.conflicts
        if a.is_file and b.is_file and concerns(a.name) and not same_content(handles, a, b)
    ]


def same_content(handles: FileHandles, a: Entry, b: Entry) -> bool:
    """Whether two files hold the same, as far as both ends and samples between tell."""
    if a.nbytes != b.nbytes:
        return False
    if a.nbytes <= _WHOLE:
        places = [(at, min(1 << 20, a.nbytes - at)) for at in range(0, a.nbytes, 1 << 20)]
    else:
        step = (a.nbytes - _SAMPLE) // (_SAMPLES - 1)
        places = [(i * step, _SAMPLE) for i in range(_SAMPLES - 1)] + [(a.nbytes - _SAMPLE, _SAMPLE)]
    return all(handles.read(a.path, at, n) == handles.read(b.path, at, n) for at, n in places)
