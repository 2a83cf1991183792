"""The user's few wishes: `config.toml` and SHARDYARD_* variables. An unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from shardyard.errors import UsageError
from shardyard.text import printable
from shardyard_tui.keys import ACTIONS
from shardyard_tui.theme import NAMES

MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

    theme: str = "dark"
    """dark, light, or terminal (the terminal's own colours)."""
    ascii: bool = False
    slow: bool = False
    read_only: bool = False
    mouse: bool = True
    """Whether clicks and the wheel are heard; never over SSH, where the terminal's own selection is worth more."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Action to keys, as Textual writes them: `merge = "m,f5"`."""


def path() -> Path:
    """Where the file is looked for."""
    return user_config_path("shardyard") / "config.toml"


def load(*, theme: str | None = None) -> Config:
    """The file, then the environment, then the option.

    Raises:
        UsageError: something in it is not known or not of the right type.
    """
    config = Config()
    place = path()
    try:
        data = place.read_bytes()
    except OSError:
        data = b""
    if data:
        config = parse(_toml(data[:MOST_BYTES], place), place)
    environment = {f.name: os.environ.get(f"SHARDYARD_{f.name.upper()}") for f in fields(Config) if f.name != "keys"}
    wishes: dict[str, Any] = {
        name: value if name == "theme" else value.lower() not in ("", "0", "no", "false")
        for name, value in environment.items()
        if value is not None
    }
    if theme is not None:
        wishes["theme"] = theme
    return checked(replace(config, **wishes))


def parse(data: Mapping[str, Any], place: Path) -> Config:
    """The file's content as a config."""
    known = {f.name: f.type for f in fields(Config)}
    for name, value in data.items():
        if name not in known:
            raise UsageError(f"{place.name} has no option {printable(name)}{_near(name, known)}.", path=str(place))
        wanted = Mapping if name == "keys" else str if name == "theme" else bool
        if not isinstance(value, wanted):
            raise UsageError(f"{place.name}: {name} must be {_said(name)}.", path=str(place))
    for action, keys in (data.get("keys") or {}).items():
        if action not in ACTIONS:
            near = _near(action, ACTIONS)
            raise UsageError(f"{place.name} maps {printable(action)}, which is no action{near}.", path=str(place))
        if not isinstance(keys, str):
            raise UsageError(f'{place.name}: the keys of {action} must be text, such as "m,f5".', path=str(place))
    return checked(Config(**data))


def checked(config: Config) -> Config:
    """The config, if its theme exists."""
    if config.theme not in NAMES:
        raise UsageError(f"There is no theme {printable(config.theme)}; there are {', '.join(NAMES)}.")
    return config


def _said(name: str) -> str:
    return {"keys": "a table", "theme": f"one of {', '.join(NAMES)}"}.get(name, "true or false")


def _near(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _toml(data: bytes, place: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml
    try:
        return toml.loads(data.decode("utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{place} is not valid TOML: {error}.", path=str(place)) from error
