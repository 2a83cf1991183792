"""Standard output and error, made fit for every locale: what a stream cannot encode is written with what it can."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

_HANDLER = "shardyard"
_STAND_INS = {"…": "...", "–": "-", "—": "-", "→": "->", "·": "-", "×": "x", "≤": "<=", "≥": ">="}
_BARS = dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True))


def prepare() -> None:
    """Call first: streams that were closed go nowhere, and no character can be the end of a command."""
    codecs.register_error(_HANDLER, stand_in)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """Plain ASCII for our own signs, the raw byte for a name that is not UTF-8, an escape for everything else."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    known = _STAND_INS.get(character) or _BARS.get(character)
    return known or character.encode("ascii", "backslashreplace").decode(), error.start + 1
