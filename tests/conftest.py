"""Fixtures shared by all tests: the real checkpoints, and an environment that is the same everywhere."""

from __future__ import annotations

import os

import pytest

from support.checkpoints import fixture_root

# A snapshot differs under either of these, and a test must not reach the person's own jobs.
for _name in ("NO_COLOR", "TEXTUAL_THEME"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs, config and cache of each test in folders of its own."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("SHARDYARD_STATE", str(home / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))


@pytest.fixture(scope="session")
def fixtures() -> os.PathLike[str]:
    """The folder that holds `deepspeed`, `dcp`, `files` and `hostile`."""
    return fixture_root()
