"""The user's few wishes: a file, the environment, an option; mistakes are named with what was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardyard.errors import UsageError
from shardyard_tui import config


def write(text: str) -> None:
    place = config.path()
    place.parent.mkdir(parents=True)
    place.write_text(text)


def test_without_a_file_everything_has_its_default() -> None:
    assert config.load() == config.Config()


def test_the_file_is_below_the_environment_and_that_below_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    write('theme = "light"\nslow = true\nmouse = false\n[keys]\nmerge = "f5"\n')
    assert config.load() == config.Config(theme="light", slow=True, mouse=False, keys={"merge": "f5"})
    monkeypatch.setenv("SHARDYARD_THEME", "terminal")
    monkeypatch.setenv("SHARDYARD_SLOW", "0")
    monkeypatch.setenv("SHARDYARD_READ_ONLY", "1")
    loaded = config.load()
    assert (loaded.theme, loaded.slow, loaded.read_only) == ("terminal", False, True)
    assert config.load(theme="dark").theme == "dark"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('tehme = "dark"', "config.toml has no option tehme; did you mean theme?"),
        ('theme = "pink"', "There is no theme pink; there are dark, light, terminal."),
        ("slow = 3", "config.toml: slow must be true or false."),
        ('keys = "x"', "config.toml: keys must be a table."),
        ('[keys]\nmrege = "x"', "config.toml maps mrege, which is no action; did you mean merge?"),
        ("[keys]\nmerge = 5", 'config.toml: the keys of merge must be text, such as "m,f5".'),
        ("theme = ", "is not valid TOML"),
        ("\x00", "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, said: str) -> None:
    write(text)
    with pytest.raises(UsageError) as error:
        config.load()
    assert said in error.value.message


def test_an_option_that_does_not_exist_is_refused_too() -> None:
    with pytest.raises(UsageError, match="There is no theme neon"):
        config.load(theme="neon")


def test_the_file_lies_where_the_desktop_says(tmp_path: Path) -> None:
    assert config.path() == Path(os.environ["XDG_CONFIG_HOME"]) / "shardyard" / "config.toml"
