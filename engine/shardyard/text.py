"""Text from strangers, made safe to show.

Names, metadata and paths may hold escape sequences, bidirectional overrides or lone surrogates; a terminal must only ever see
them written out.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str, most: int = 0) -> str:
    """The text with every control, format, surrogate and unassigned character written as an escape.

    `most` > 0 cuts the result to that many characters, ending in `…`.
    """
    if not text.isascii() or not text.isprintable():
        text = "".join(c if c.isprintable() and unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)
    return text if not most or len(text) <= most else text[: most - 1] + "…"


def _escape(character: str) -> str:
    return (
        character.encode("unicode_escape").decode("ascii")
        if character.isascii() or ord(character) < 256
        else (f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}")
    )
