"""The index of a sharded model: which tensor is in which file.

An index comes from strangers.  File names in it are believed only if they are plain names in the same folder, and a link is
followed only where it stays there, leads to a file of the same name, or is how the Hugging Face hub's cache stores blobs.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from shardyard.findings import Blocks, Finding, Severity
from shardyard.text import printable

MOST_INDEX_BYTES = 256 << 20
INDEX_NAME = re.compile(r"(?P<base>.+\.(?:safetensors|bin|pt|pth))\.index(?P<variant>\.[\w-]+)?\.json")
SHARD_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<suffix>(?:\.[\w-]+)?\.(?:safetensors|bin|pt|pth))"
)
_SHARD_IN_INDEX = re.compile(rb':\s*"([^"\\/\x00]{1,255}\.(?:safetensors|bin|pt|pth))"')


@dataclass(slots=True)
class Index:
    """An index that was read; empty where it could not be."""

    name: str
    weight_map: dict[str, str] = field(default_factory=dict)
    """Tensor name to file name, unsafe file names left out."""
    total_size: int | None = None
    findings: list[Finding] = field(default_factory=list)
    readable: bool = True
    """Whether there is a weight_map to go by."""
    refused: dict[str, str] = field(default_factory=dict)
    """Tensors whose file name was not followed, with that name."""


def shard_names_in(data: bytes) -> list[str]:
    """Plain file names that an index mentions, without parsing it: enough to lay claim to them."""
    return [name.decode("utf-8", "surrogateescape") for name in dict.fromkeys(_SHARD_IN_INDEX.findall(data))]


def parse_index(data: bytes, name: str) -> Index:
    """Read an index; whatever is wrong with it becomes a finding."""
    index = Index(name)
    shown = printable(name)
    if not data.strip():
        return _unreadable(index, "empty-file", f"{shown} is empty.")
    repeated: list[str] = []
    try:
        root = json.loads(data.decode("utf-8-sig"), object_pairs_hook=lambda pairs: _object(pairs, repeated))
    except UnicodeDecodeError:
        return _unreadable(index, "corrupt", f"{shown} is not valid UTF-8.")
    except RecursionError:
        return _unreadable(index, "corrupt", f"{shown} is nested too deeply to be an index.")
    except ValueError:
        return _unreadable(index, "corrupt", f"{shown} is not valid JSON.")
    if not isinstance(root, dict):
        return _unreadable(index, "corrupt", f"{shown} is {'a list' if isinstance(root, list) else 'a value'}, not an object.")
    weight_map = root.get("weight_map")
    if not isinstance(weight_map, dict):
        what = "has no weight_map" if weight_map is None else "has a weight_map that is not an object"
        return _unreadable(index, "corrupt", f"{shown} {what}.")
    metadata = root.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, (int, float)) and not isinstance(total, bool) and 0 <= total < 1 << 63:
        index.total_size = int(total)
    elif total is not None:
        index.findings.append(_note(index, f"{shown}: total_size is not a number of bytes."))
    twice = [n for n in repeated if n in weight_map]
    if twice:
        text = f"{shown} lists tensor {printable(twice[0], 120)} twice{_more(len(twice) - 1)}."
        index.findings.append(_error(index, text, tuple(twice[:20]), Blocks.MERGE))
    _take(index, weight_map)
    return index


def _object(pairs: list[tuple[str, object]], repeated: list[str]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)
    return found


def _take(index: Index, weight_map: dict[str, object]) -> None:
    """Keep the entries with safe file names; tell of the rest, each kind of fault once."""
    wrong: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        problem = unsafe_name(file, index.name)
        if problem or not isinstance(file, str):
            wrong.setdefault(problem, []).append(tensor)
            index.refused[tensor] = file if isinstance(file, str) else ""
        else:
            index.weight_map[tensor] = file
    for problem, tensors in wrong.items():
        shown = printable(index.refused[tensors[0]], 80)
        text = f"{printable(index.name)} {problem.format(shown)} (tensor {printable(tensors[0], 120)}{_more(len(tensors) - 1)})."
        index.findings.append(_error(index, text, tuple(tensors[:20]), Blocks.MERGE))


def unsafe_name(file: object, index_name: str) -> str:
    """Why a file name from an index is not followed, with `{}` for the name; empty if it is safe."""
    if not isinstance(file, str):
        return "gives something other than a file name"
    if not file:
        return "has an empty file name"
    if "\0" in file:
        return "holds a file name with a NUL character; it was not followed"
    if re.match(r"[A-Za-z][\w+.-]*://", file):
        return "points at a web address, {}; it was not followed"
    if file.startswith("/") or re.match(r"[A-Za-z]:", file) or file.startswith("\\"):
        return "points at an absolute path, {}; it was not followed"
    if "/" in file or "\\" in file:
        what = (
            "points outside its folder, {}" if ".." in re.split(r"[/\\]", file) else "points at {}, which is no plain file name"
        )
        return what + "; it was not followed"
    if file in (".", ".."):
        return "names a folder, {}, as a shard"
    if file == index_name:
        return "names itself as a shard"
    return ""


def link_leaves(path: str) -> str:
    """Where a link that must not be followed leads; empty for a plain file or a link that is all right."""
    if not os.path.islink(path):
        return ""
    folder = Path(os.path.realpath(os.path.dirname(path)))
    target = Path(os.path.realpath(path))
    if target.is_relative_to(folder) or target.name == os.path.basename(path):
        return ""
    if target.parent.name == "blobs" and folder.is_relative_to(target.parent.parent):
        return ""
    return str(target)


def _unreadable(index: Index, code: str, text: str) -> Index:
    index.readable = False
    remedy = "Fetch or write the index again; the shards are read by their names."
    index.findings.append(Finding(code, Severity.ERROR, text, remedy, (index.name,)))
    return index


def _error(index: Index, text: str, tensors: tuple[str, ...], blocks: Blocks) -> Finding:
    return Finding(
        "index-mismatch",
        Severity.ERROR,
        text,
        "Write the index again, or copy it from the source.",
        (index.name,),
        tensors,
        blocks=blocks,
    )


def _note(index: Index, text: str) -> Finding:
    return Finding("index-mismatch", Severity.INFO, text, paths=(index.name,))


def _more(count: int) -> str:
    return f" and {count} more" if count else ""
