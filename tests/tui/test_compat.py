"""Every name of Textual that is not promised, used once, so that a new version that lost it is known by its name."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
from rich.console import Console
from textual._compositor import ChopsUpdate
from textual.strip import Segment, Strip

from shardyard_tui import glyphs, textual_compat
from support.pilot import running


async def test_a_filter_rewrites_every_cell() -> None:
    async with running(ascii=True, size=(100, 30)) as it:
        await it.press("j")
        svg = it.app.export_screenshot(simplify=True)
        assert "╭" not in svg and "▸" not in svg and "━" not in svg


def test_ascii_twins_are_as_wide_as_what_they_stand_for() -> None:
    assert glyphs.ascii_twin("╭─ é 日本 ✓ …") == "+- ? ???? + ~"
    assert glyphs.ascii_twin("plain") == "plain"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({"TERM": "xterm"}, False), ({"TERM": "linux"}, True), ({"TERM": "vt220"}, True), ({"TERM": "dumb"}, True)],
)
def test_terminals_that_need_ascii_are_known(environment: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs.locale, "nl_langinfo", lambda _: "UTF-8")
    monkeypatch.setattr(glyphs.sys, "__stderr__", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert glyphs.needs_ascii(environment) is wanted


@pytest.mark.parametrize(("codeset", "encoding"), [("ANSI_X3.4-1968", "utf-8"), ("UTF-8", "ascii"), ("ISO-8859-1", "latin-1")])
def test_a_locale_without_unicode_needs_ascii(codeset: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs.locale, "nl_langinfo", lambda _: codeset)
    monkeypatch.setattr(glyphs.sys, "__stderr__", io.TextIOWrapper(io.BytesIO(), encoding))
    assert glyphs.needs_ascii({"TERM": "xterm"})


def test_only_the_cells_that_changed_are_sent() -> None:
    textual_compat.crop_updates()
    line = {0: Strip([Segment("0123456789")]), 10: Strip([Segment("abcdefghij")])}
    update = ChopsUpdate([line], [(0, 3, 5), (0, 8, 12)], [[10, 20]])
    sent = update.render_segments(Console(file=io.StringIO(), force_terminal=True))
    assert sent == "\x1b[1;4H34\x1b[1;9H89\x1b[1;11Hab"


def test_the_driver_is_a_linux_driver_that_asks_stderr_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.drivers.linux_driver import LinuxDriver

    driver = textual_compat.driver_class()
    assert issubclass(driver, LinuxDriver)
    assert driver._get_terminal_size is not LinuxDriver._get_terminal_size
    monkeypatch.setattr(textual_compat.os, "get_terminal_size", lambda fd: textual_compat.os.terminal_size((91, 33)))
    assert textual_compat.size_of_stderr() == (91, 33)


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int, SimpleQueue[str], Thread]]:
    """What to type into, what stops it, the keys heard, and the thread that hears them."""
    (source, typed), (wake, stop) = os.pipe(), os.pipe()
    heard: SimpleQueue[str] = SimpleQueue()
    thread = Thread(target=textual_compat.read_keys, args=(source, wake, lambda key: heard.put(key.key)), daemon=True)
    thread.start()
    yield typed, stop, heard, thread
    with contextlib.suppress(OSError):
        os.write(stop, b".")
    thread.join(5)
    for end in (source, typed, wake, stop):
        with contextlib.suppress(OSError):
            os.close(end)


def test_keys_are_heard_without_looking_for_them_in_vain(keyboard: tuple[int, int, SimpleQueue[str], Thread]) -> None:
    typed, stop, heard, thread = keyboard
    os.write(typed, b"j\x1b[B")
    assert [heard.get(timeout=5) for _ in range(2)] == ["j", "down"]
    time.sleep(0.2)
    before = thread_wakes(thread)
    time.sleep(0.6)
    assert thread_wakes(thread) - before <= 1
    os.write(stop, b".")
    thread.join(5)
    assert not thread.is_alive()


def test_an_escape_alone_is_a_key_and_half_a_character_is_none_yet(keyboard: tuple[int, int, SimpleQueue[str], Thread]) -> None:
    typed, _, heard, _ = keyboard
    os.write(typed, b"\x1b")
    assert heard.get(timeout=5) == "escape"
    os.write(typed, "é".encode()[:1])
    time.sleep(0.05)
    assert heard.empty()
    os.write(typed, "é".encode()[1:])
    assert heard.get(timeout=5) == "é"


def test_a_terminal_that_is_gone_ends_the_reading(keyboard: tuple[int, int, SimpleQueue[str], Thread]) -> None:
    typed, _, _, thread = keyboard
    os.close(typed)
    thread.join(5)
    assert not thread.is_alive()


def thread_wakes(thread: Thread) -> int:
    """How often the thread has run."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[2])


def test_a_fault_is_kept_where_it_can_be_sent_from(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(textual_compat.tempfile, "tempdir", str(tmp_path))
    place = textual_compat.keep_details("ZeroDivisionError: x")
    assert Path(place).read_text() == "ZeroDivisionError: x"
    monkeypatch.setattr(textual_compat.tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert "SHARDYARD_DEBUG=1" in textual_compat.keep_details("x")
