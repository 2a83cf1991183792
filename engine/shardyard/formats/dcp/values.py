"""The entries of a DCP folder that are pickled values: step counts, options, random states.  Shown, never run."""

from __future__ import annotations

import re

from shardyard.checkpoint import StoredObject
from shardyard.errors import ShardyardError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.dcp.folder import DcpFolder
from shardyard.formats.dcp.rows import Place
from shardyard.formats.dcp.slices import open_value
from shardyard.formats.folder import Folder
from shardyard.formats.pickles import pairs, text_of
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.text import describe
from shardyard.text import printable

MOST_READ = 512
"""More entries than that are listed without a value: each costs a read somewhere in a large file."""
MOST_VALUE_BYTES = 256 << 10
MOST_SIDE_BYTES = 64 << 20
SIDE_FILES = ("meta.pt", "common.pt")
"""Lightning's and Megatron-core's torch files of everything that is no tensor."""
_STEP = re.compile(r"(?:.*\.)?(?:global_step|iteration|step)")
_STEP_IN_NAME = re.compile(r"(?:.*[-_])?(?:checkpoint|step|iter|iteration)[-_](\d{1,15})", re.IGNORECASE)


def stored_values(opened: DcpFolder, handles: FileHandles) -> tuple[list[StoredObject], int | None]:
    """The values of a folder, and the step if one of them tells it."""
    found: list[StoredObject] = []
    step = None
    # Options of parameter groups come by the thousand; they are the last to be read.
    names = sorted(opened.state.objects, key=lambda name: "param_groups" in name)
    for number, name in enumerate(names):
        places = opened.state.objects[name]
        if number >= MOST_READ or not places or places[0].nbytes > MOST_VALUE_BYTES:
            found.append(StoredObject(name, f"not read ({sum(p.nbytes for p in places[:1]):,} bytes)"))
            continue
        value, text = _read(opened, places[0], handles)
        found.append(StoredObject(name, text))
        if step is None and type(value) is int and _STEP.fullmatch(name):
            step = value
        if len(places) > 1 and any(_read(opened, p, handles)[1] != text for p in places[1:9]):
            opened.files.add(
                Finding(
                    "duplicate-copy",
                    Severity.INFO,
                    f"The ranks stored different values of {printable(name, 120)}; the lowest rank's is shown.",
                )
            )
    return found, step


def _read(opened: DcpFolder, place: Place, handles: FileHandles) -> tuple[object, str]:
    entry = opened.folder.files.get(place.file)
    if entry is None or place.file in opened.files.bad:
        return None, "not readable: its file is missing or damaged"
    try:
        value = open_value(handles, entry.path, place).root
        return value, describe(value)
    except ShardyardError as error:
        return None, f"not readable: {error.message}"


def side_values(folder: Folder, handles: FileHandles) -> tuple[list[StoredObject], list[Finding], int | None]:
    """What the writer's framework put beside the folder's tensors."""
    objects: list[StoredObject] = []
    findings: list[Finding] = []
    step = None
    for name in SIDE_FILES:
        entry = folder.files.get(name)
        if entry is None or entry.nbytes > MOST_SIDE_BYTES:
            continue
        try:
            root = open_torch(handles, entry.path).root
        except ShardyardError as error:
            findings.append(Finding("corrupt", Severity.WARNING, error.message, paths=(name,)))
            continue
        for key, value in pairs(root) or []:
            text = text_of(key)
            if text is None:
                continue
            objects.append(StoredObject(f"{name}: {printable(text, 120)}", describe(value)))
            if step is None and type(value) is int and _STEP.fullmatch(text):
                step = value
    return objects, findings, step


def step_in_name(folder: Folder) -> int | None:
    """The step that a folder's name tells: `checkpoint-2000`, `step-2`, `global_step_10`, `iter_0000100`."""
    for name in (folder.name, folder.path.parent.name):
        match = _STEP_IN_NAME.fullmatch(name)
        if match:
            return int(match[1])
    return None
