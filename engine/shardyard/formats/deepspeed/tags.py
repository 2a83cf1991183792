"""Which step of a root is meant: what was asked for, what `latest` says, or the newest that is whole.

`latest` holds the name of a step folder; any name is possible (Lightning's is `checkpoint`), and it need not be the newest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardyard.errors import ShardyardError
from shardyard.formats.deepspeed.names import is_step
from shardyard.formats.folder import Folder

MARKS = ("latest", "latest_universal", "zero_to_fp32.py", "zero_to_torch.py")
"""Files beside the step folders."""
_USUAL_STEP = re.compile(r"global_step\d+\w*|checkpoint")
MOST_FOLDERS = 10_000


def steps_of(folder: Folder) -> Mapping[str, Folder]:
    """The step folders of a root, by name; empty if the folder does not look like one.

    Sub folders are listed only where a mark lies beside them, or one of them has a usual name.
    """
    marked = any(mark in folder.files for mark in MARKS)
    names = list(folder.folders)[:MOST_FOLDERS]
    if not marked:
        names = [n for n in names if _USUAL_STEP.fullmatch(n)]
        if not any(is_step(folder.sub(n)) for n in names):
            return {}
        names = list(folder.folders)[:MOST_FOLDERS]
    return {n: sub for n in names if is_step(sub := folder.sub(n))}


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a root's `latest` says."""

    file: str
    tag: str


def pointer(folder: Folder) -> Pointer | None:
    """The tag that `latest`, or where there is none `latest_universal`, names; None if neither can be read."""
    for name in ("latest", "latest_universal"):
        try:
            data = folder.small_file(name, 4096)
        except ShardyardError:
            continue
        if data is not None:
            return Pointer(name, data.decode("utf-8", "replace").strip())
    return None


def by_number(tags: Mapping[str, object]) -> list[str]:
    """Tags in the order of the last number in them, then by name: `global_step9` before `global_step10`."""
    return sorted(tags, key=lambda t: (int(n[-1]) if (n := re.findall(r"\d{1,18}", t)) else -1, t))
