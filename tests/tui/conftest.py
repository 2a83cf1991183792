"""The same moment, place and person in every test of the app."""

from __future__ import annotations

import time

import pytest

from shardyard_tui import terminal
from shardyard_tui.screens import files, opener
from support.fake_engine import NOW


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, and a machine of a fixed name."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(terminal, "host_and_user", lambda: ("login3", "anna"))
    for screen in (files, opener):
        monkeypatch.setattr(screen, "REST_S", 0.01)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
