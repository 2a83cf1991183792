"""Numbers as people read them: binary sizes with their right names, three figures, plain durations."""

from __future__ import annotations

import re
from datetime import datetime

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(nbytes: float) -> str:
    """`5.7 GiB`, `152 GiB`, `42 B`."""
    for unit in _STEPS[:-1]:
        if abs(nbytes) < 1023.95:
            return f"{nbytes:.0f} {unit}" if unit == "B" or abs(nbytes) >= 99.95 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} {_STEPS[-1]}"


def count(number: int) -> str:
    """`31,077`: digits in groups of three, as in the sentences of findings."""
    return f"{number:,}"


def short_count(number: float) -> str:
    """`3.09 B`, `434`, `16.8 M`."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "K")):
        if abs(number) >= limit:
            scaled = number / (1e3 if unit == "K" else limit)
            return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"
    return f"{number:.0f}"


def plural(number: int, one: str, many: str = "") -> str:
    """`1 file`, `3 files`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """`0:03`, `2:04`, `1:02:03`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def age(seconds: float) -> str:
    """`just now`, `5 min`, `3 h`, `12 d`."""
    if seconds < 60:
        return "just now"
    for limit, step, unit in ((3600, 60, "min"), (172_800, 3600, "h"), (86_400 * 730, 86_400, "d")):
        if seconds < limit:
            return f"{seconds / step:.0f} {unit}"
    return f"{seconds / (86_400 * 365.25):.0f} y"


def moment(timestamp: float) -> str:
    """`2026-11-29 18:02`, in local time."""
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")


def shape(dims: tuple[int, ...] | list[int]) -> str:
    """`2048×2048`; a scalar has none."""
    return "×".join(map(str, dims)) if dims else "scalar"


_DIGITS = re.compile(r"(\d+)")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which layer 2 comes before layer 10."""
    parts = _DIGITS.split(text)
    return tuple((1, int(part), "") if i % 2 else (0, 0, part) for i, part in enumerate(parts))
