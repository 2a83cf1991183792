"""The app in a real terminal: start, every screen, few bytes, a dead line, no colour, no Unicode, the shell and back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.terminal import PATHS, Terminal

pytestmark = pytest.mark.terminal

ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
QUIET = 0.12
SCREENS = {
    "j\r": b"tensors",
    "jii": b"Distribution",
    "jh": b"Why it matters",
    "j4": b"zero_to_fp32",
    "jm": b"The same as a command",
    "je": b"Shard size",
    "u": b"Where the bytes are",
    "J": b"No job yet",
    "D": b"xterm-256color",
    "?": b"Filter",
    ":": b"As a command",
    "jB": b"Statistics",
}


def started(*arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> Terminal:
    """The app with its first screen drawn."""
    terminal = Terminal.app(*arguments, columns=columns, rows=rows, environment=environment)
    terminal.read_until(b"large" if "--rows" in arguments else b"old.ckpt")
    terminal.read(quiet=0.3, timeout=1.5)
    return terminal


def text(data: bytes) -> bytes:
    """What was written, without the escapes."""
    return ESCAPES.sub(b"", data)


def test_it_starts_quits_with_zero_and_leaves_the_terminal_as_it_was() -> None:
    with started() as terminal:
        modes = terminal.modes
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.modes_now() == modes
        assert terminal.output.count(b"\x1b[?1049h") == terminal.output.count(b"\x1b[?1049l") == 1
        assert terminal.output.rstrip().endswith(b"\x1b[?1004l") or b"\x1b[?25h" in terminal.output


def test_every_screen_comes_up_by_its_keys_and_esc_leads_back() -> None:
    with started(columns=110, rows=32) as terminal:
        for keys, wanted in SCREENS.items():
            for key in keys[:-1]:
                terminal.send(key)
                terminal.read(quiet=QUIET, timeout=2)
            terminal.output = b""
            terminal.send(keys[-1])
            deadline = time.monotonic() + 20
            while wanted.lower() not in text(terminal.output).lower() and time.monotonic() < deadline:
                terminal.read(quiet=0.3, timeout=1)
            assert wanted.lower() in text(terminal.output).lower(), keys
            for _ in range(2):
                terminal.send("\x1b")
                terminal.read(quiet=0.2, timeout=2)
            terminal.send("1g")
            terminal.read(quiet=QUIET, timeout=2)
        terminal.send("q")
        assert terminal.wait() == 0
        assert b"Traceback" not in terminal.output


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
@pytest.mark.parametrize("colours", ["", "truecolor"])
def test_a_key_in_half_a_million_rows_costs_few_bytes(size: tuple[int, int], colours: str) -> None:
    with started("--rows", "500000", columns=size[0], rows=size[1], COLORTERM=colours) as terminal:
        terminal.send("i")
        terminal.read_until(b"500,000")
        terminal.read(quiet=0.3)
        for key in ("j", "j", "k"):
            sent, _ = terminal.press(key)
            assert 0 < sent <= 600
        for key in ("\x06", "\x04", "G", "\x02", "g"):
            sent, _ = terminal.press(key)
            assert 0 < sent <= 8192
        terminal.send("q")
        assert terminal.wait() == 0


def test_a_hung_up_line_ends_the_program() -> None:
    with started() as terminal:
        terminal.process.send_signal(signal.SIGHUP)
        assert terminal.wait() == 129


def test_a_line_that_is_gone_while_hang_ups_are_ignored_ends_the_program_too() -> None:
    command = ["sh", "-c", f"trap '' HUP; exec {sys.executable} -m support.app_in_terminal"]
    terminal = Terminal(command)
    terminal.read_until(b"old.ckpt")
    terminal.read(quiet=0.3)
    terminal.hang_up()
    try:
        assert terminal.process.wait(timeout=10) == 129
    finally:
        terminal.close()


def test_no_colour_means_no_colour() -> None:
    with started(columns=110, rows=32, NO_COLOR="1") as terminal:
        for key in ("j", "\r", "\x1b", "h", "\x1b", "u", "\x1b", "J", "\x1b", "?", "\x1b", "4"):
            terminal.send(key)
            terminal.read(quiet=QUIET, timeout=2)
        terminal.send("q")
        assert terminal.wait() == 0
        for front in re.findall(rb"38;2;(\d+);(\d+);(\d+)", terminal.output):
            assert max(map(int, front)) - min(map(int, front)) <= 2
        for colour in re.findall(rb"[34]8;5;(\d+)", terminal.output):
            assert int(colour) in (*range(16), 16, 231, *range(232, 256), 59, 102, 145, 188)


@pytest.mark.parametrize("environment", [{"LC_ALL": "POSIX"}, {"TERM": "linux"}, {"TERM": "vt100"}])
def test_a_terminal_without_unicode_gets_none(environment: dict[str, str]) -> None:
    with started(columns=110, rows=32, **environment) as terminal:
        for key in (
            "j",
            "\r",
            "i",
            "\x1b",
            "\x1b",
            "m",
            "\x1b",
            "h",
            "\x1b",
            "u",
            "\x1b",
            "J",
            "\x1b",
            "?",
            "\x1b",
            ":",
            "\x1b",
            "4",
        ):
            terminal.send(key)
            terminal.read(quiet=QUIET, timeout=2)
        terminal.send("q")
        assert terminal.wait() == 0
        assert not [byte for byte in terminal.output if byte > 0x7F]
        assert b"\\u" not in terminal.output
        assert b"+- " in terminal.output or b"+-" in terminal.output


@pytest.mark.parametrize("term", ["xterm", "screen", "tmux-256color", "linux"])
def test_it_runs_on_terminals_of_all_kinds(term: str) -> None:
    with started(TERM=term) as terminal:
        terminal.send("jjq")
        assert terminal.wait() == 0


def test_control_z_gives_the_shell_back_and_fg_the_screen() -> None:
    with started() as terminal:
        terminal.send("\x1a")
        terminal.read_until("\x1b[?1049l")
        deadline = time.monotonic() + 20
        while status(terminal.process.pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert status(terminal.process.pid) == "T"
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.read_until("\x1b[?1049h")
        terminal.send("q")
        assert terminal.wait() == 0


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_resize_is_followed() -> None:
    import fcntl
    import struct
    import termios

    with started() as terminal:
        fcntl.ioctl(terminal._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.read_until(b"anna@" if os.environ.get("USER") == "anna" else b"State")
        terminal.send("q")
        assert terminal.wait() == 0


def test_a_dumb_terminal_is_refused_in_a_sentence() -> None:
    with Terminal.app(environment={"TERM": "dumb"}) as terminal:
        assert terminal.wait() == 2
        assert b"TERM is dumb" in terminal.output
        assert b"\x1b[?1049h" not in terminal.output


def test_jobs_that_go_on_are_named_after_quitting() -> None:
    with started("--job") as terminal:
        terminal.send("q")
        assert terminal.wait() == 0
        assert b"1 job goes on: shardyard jobs follow" in terminal.output


def test_a_slow_line_hears_of_a_job_at_most_twice_a_second() -> None:
    with started("--job", columns=140, rows=40) as terminal:
        terminal.send("J\r")
        terminal.read(quiet=0.2, timeout=1.5)
        began = time.monotonic()
        sent = len(terminal.read(quiet=5, timeout=3))
        assert sent / (time.monotonic() - began) < 8 * 1024


def test_the_app_never_loads_torch_numpy_or_a_format_reader(tmp_path: Path) -> None:
    listing = tmp_path / "modules"
    with started(SUPPORT_MODULES=str(listing)) as terminal:
        terminal.send("j\r\x1bhuJ?q")
        terminal.read(quiet=0.5, timeout=3)
        terminal.send("q")
        assert terminal.wait() == 0
    modules = set(listing.read_text().split())
    heavy = {"torch", "numpy", "ml_dtypes", "safetensors", "zstandard", "deepspeed", "transformers", "humanize"}
    assert not {name.partition(".")[0] for name in modules} & heavy
    assert not [name for name in modules if name.startswith(("shardyard.formats", "shardyard.operations", "shardyard.discover"))]


def test_importing_the_app_is_light() -> None:
    script = "import sys, shardyard_tui.app; print(len(sys.modules)); print('numpy' in sys.modules or 'torch' in sys.modules)"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PATHS}
    out = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert out[1] == "False"
    assert int(out[0]) < 700


def test_a_fault_of_our_own_is_one_sentence_and_a_file() -> None:
    with started(SUPPORT_FAULT="1") as terminal:
        terminal.send("D")
        assert terminal.wait() == 6
        said = text(terminal.output)
        assert b"shardyard has a fault and had to stop; jobs go on." in said
        assert b"Traceback" not in said
        place = re.search(rb"/\S+shardyard-fault-\S+\.txt", said)
        assert place is not None
        details = Path(place[0].decode())
        assert "made up for a test" in details.read_text()
        details.unlink()
        assert terminal.modes_now() == terminal.modes
