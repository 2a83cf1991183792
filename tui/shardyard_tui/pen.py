"""Fewer bytes on the line: a colour is told to the terminal when it changes, not with every word.

Textual sets every style from nothing and resets it after each segment.  On a slow line that is a third of what is sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_MOVES = re.compile(r"(?:\x1b\[[0-9;?]*[A-IZdfhl])+")
"""Sequences that draw nothing, so that the pen does not matter to them."""


class Pen(NamedTuple):
    """What the terminal draws with."""

    front: str = ""
    back: str = ""
    attributes: frozenset[str] = frozenset()


PLAIN = Pen()


def thin(data: str) -> str:
    """The same picture in fewer bytes. It begins and ends with a plain pen, as Textual's own output does."""
    if "\x1b[" not in data:
        return data
    out: list[str] = []
    now = wanted = PLAIN
    for number, part in enumerate(_SGR.split(data)):
        if number % 2:
            wanted = _moved(wanted, part)
        elif part:
            if now != wanted and not _MOVES.fullmatch(part):
                out.append(_change(now, wanted))
                now = wanted
            out.append(part)
    if now != wanted or wanted != PLAIN:
        out.append(_change(now, wanted))
    return "".join(out)


def _moved(pen: Pen, parameters: str) -> Pen:
    """The pen after an SGR sequence."""
    front, back, attributes = pen
    codes = parameters.split(";") if parameters else ["0"]
    at = 0
    while at < len(codes):
        code = codes[at]
        if code in ("38", "48"):
            length = 5 if at + 1 < len(codes) and codes[at + 1] == "2" else 3
            colour = ";".join(codes[at : at + length])
            front, back = (colour, back) if code == "38" else (front, colour)
            at += length
            continue
        if code in ("", "0"):
            front, back, attributes = PLAIN
        elif code == "39":
            front = ""
        elif code == "49":
            back = ""
        elif len(code) > 1 and code[:-1] in ("3", "9"):
            front = code
        elif len(code) > 1 and code[:-1] in ("4", "10"):
            back = code
        else:
            attributes = attributes | {code}
        at += 1
    return Pen(front, back, attributes)


def _change(now: Pen, wanted: Pen) -> str:
    """The shortest sequence from one pen to another."""
    if wanted == PLAIN:
        return "\x1b[0m"
    gone = not now.attributes <= wanted.attributes or (now.front and not wanted.front) or (now.back and not wanted.back)
    if gone:
        now = PLAIN
    codes = ["0"] if gone else []
    codes += sorted(wanted.attributes - now.attributes)
    codes += [new for new, old in ((wanted.front, now.front), (wanted.back, now.back)) if new != old and new]
    return f"\x1b[{';'.join(codes)}m"
