"""The signs that the app draws with, and their twins in ASCII.

Everything is drawn in Unicode.  Where the terminal or the locale cannot show it, one filter rewrites every cell on its way
out, so no widget, ours or Textual's, needs to know, and no byte above 0x7F can reach the terminal.
"""

from __future__ import annotations

import locale
import os
import sys
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

CLOSED, OPEN, LEAF = "▸", "▾", "·"
MARK, ERROR, WARNING, UNOPENED = "◆", "✗", "!", "~"
OK = "✓"
ELLIPSIS = "…"
FULL, EMPTY = "━", "─"
UP, DOWN = "↑", "↓"
SPARKS = " ▁▂▃▄▅▆▇█"
BLOCKS = " ▏▎▍▌▋▊▉█"
MIDDLE_DOT = "·"
ARROW = "→"

_TWINS: dict[str, str] = {
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╪╞╡", "+"),
    **dict.fromkeys("─╌┄", "-"),
    **dict.fromkeys("│┆", "|"),
    "┃": "#",
    "›": ">",
    "━": "#",
    "═": "=",
    "▸": ">",
    "▾": "v",
    "·": "-",
    "•": "*",
    "◆": "*",
    "✓": "+",
    "✗": "x",
    "…": "~",
    "↑": "^",
    "↓": "v",
    "→": ">",
    "←": "<",
    "×": "x",
    "≈": "~",
    "≥": ">",
    "≤": "<",
    "−": "-",
    "–": "-",
    "—": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "⏎": "<",
    "▁": ".",
    "▂": ".",
    "▃": ":",
    "▄": "-",
    "▅": "=",
    "▆": "+",
    "▇": "*",
    "█": "#",
    "▉": "#",
    "▊": "#",
    "▋": "#",
    "▌": "=",
    "▍": "=",
    "▎": "-",
    "▏": "-",
    "▐": "#",
    "░": ".",
    "▒": ":",
    "▓": "%",
    "╸": "-",
    "╺": "-",
    " ": " ",
}
_TABLE = str.maketrans(_TWINS)


@lru_cache(4096)
def ascii_twin(text: str) -> str:
    """The text in ASCII, as many cells wide as before; what has no twin becomes `?`."""
    if text.isascii():
        return text
    text = text.translate(_TABLE)
    return text if text.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


class AsciiFilter(LineFilter):
    """Rewrites every cell into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(ascii_twin(text), style, control) for text, style, control in segments]


def needs_ascii(environ: dict[str, str] | None = None) -> bool:
    """Whether this terminal should get ASCII: its locale is not UTF-8, or it is a console that has no such glyphs."""
    environ = dict(os.environ) if environ is None else environ
    term = environ.get("TERM", "")
    if term in ("linux", "dumb") or term.startswith("vt"):
        return True
    try:
        codeset = locale.nl_langinfo(locale.CODESET)
    except (AttributeError, ValueError):
        codeset = ""
    stream = getattr(sys.__stderr__, "encoding", "") or ""
    return not (_is_utf8(codeset) and _is_utf8(stream))


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "") == "utf8"
