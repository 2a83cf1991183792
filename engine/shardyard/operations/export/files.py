"""The files that an export puts beside the weights: found by an allow-list, copied byte for byte, config.json told the dtype.

A loader follows config.json and not the weights, so its dtype keys are set to what was written; nothing else in it changes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardyard.checkpoint import Checkpoint
from shardyard.errors import UsageError
from shardyard.formats.folder import Folder
from shardyard.text import printable

CONFIG = "config.json"
MOST_BYTES = 256 << 20
"""No tokenizer is larger; a larger file under such a name is something else."""
_COPIED = re.compile(
    r"config\.json|generation_config\.json|tokenizer.*|vocab.*|merges\.txt|special_tokens_map.*|added_tokens.*|.+\.model"
    r"|chat_template.*|.*processor_config.*|modeling_.*\.py|configuration_.*\.py|LICENSE.*"
)
_NEVER = re.compile(r".*\.(?:safetensors|bin|pt|pth|ckpt|distcp|index\.json)|training_args.*|optimizer.*|rng_.*")


def side_folders(checkpoint: Checkpoint, like: Path | None) -> list[Path]:
    """Where side files may lie, the likeliest first: the base model alone, if one was named."""
    if like is not None:
        if not os.path.lexists(like):
            raise UsageError(f"There is no {printable(str(like))}, which --like names.", path=str(like))
        return [like if like.is_dir() else like.parent]
    own = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    folders = [checkpoint.config_folder] if checkpoint.config_folder is not None else []
    folders += [own, own / "huggingface", own.parent, own.parent / "huggingface"]
    return list(dict.fromkeys(f for f in folders if f.is_dir()))


def collect(folders: Sequence[Path]) -> tuple[dict[str, bytes], dict[str, Path]]:
    """Contents and origins of the side files, by name; the first folder that has a name wins.

    Raises:
        UsageError: there is no config.json in any of them.
    """
    contents: dict[str, bytes] = {}
    origins: dict[str, Path] = {}
    if not any((folder / CONFIG).is_file() for folder in folders):
        where = printable(str(folders[0])) if folders else "the source"
        raise UsageError(
            f"There is no config.json in {where}, beside it or one level up; name the base model's folder with --like.",
            path=str(folders[0]) if folders else None,
        )
    for path in folders:
        folder = Folder(path)
        for name, entry in folder.files.items():
            if name in contents or not is_side_file(name) or entry.nbytes > MOST_BYTES:
                continue
            data = folder.small_file(name, MOST_BYTES) if entry.nbytes else b""
            contents[name], origins[name] = data or b"", path
    return contents, origins


def is_side_file(name: str) -> bool:
    """Whether a file of this name belongs to a model that loads: never weights, an index or training state."""
    return _COPIED.fullmatch(name) is not None and _NEVER.fullmatch(name) is None


def with_dtype(config: bytes, dtype: str) -> bytes:
    """config.json with the values of the dtype keys it has replaced, every other byte as it was."""
    text = config.decode("utf-8")
    spans = [span for path, *span in _values(text) if path in _DTYPE_PATHS]
    for start, end in reversed(spans):
        text = text[:start] + json.dumps(dtype) + text[end:]
    return text.encode()


_DTYPE_PATHS = {("dtype",), ("torch_dtype",), ("text_config", "dtype"), ("text_config", "torch_dtype")}
_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^\s"{}\[\],:]+))')


def _values(text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """(path, start, end) of each plain value that is reached through objects only."""
    path: list[str | None] = []
    key: str | None = None
    expecting_key = False
    for match in _TOKEN.finditer(text):
        quoted, sign, _ = match.groups()
        if sign == "{":
            path.append(key)
            key, expecting_key = None, True
        elif sign == "[":
            path.append(None)
            path[-1] = "[]"
            expecting_key = False
        elif sign in ("}", "]"):
            path.pop()
            expecting_key = False
        elif sign == ",":
            expecting_key = bool(path) and path[-1] != "[]"
        elif sign == ":":
            expecting_key = False
        elif expecting_key and quoted is not None:
            key = json.loads(quoted)
        elif key is not None:
            start = match.end() - len(match.group().lstrip())
            yield (*(p for p in path[1:] if p is not None), key), start, match.end()
            key = None


def main_dtype(dtypes: Mapping[str, int]) -> str | None:
    """The dtype that most bytes have, of those that a config can name; None if there is none."""
    floats = {name: nbytes for name, nbytes in dtypes.items() if name in ("float32", "bfloat16", "float16", "float64")}
    return max(floats, key=lambda name: floats[name]) if floats else None
