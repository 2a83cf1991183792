"""Numbers and lists as sentences want them."""

from __future__ import annotations

from collections.abc import Sequence

from shardyard.text import printable

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(nbytes: int) -> str:
    """`512 bytes`, `1.4 GiB`."""
    value = float(nbytes)
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            return (
                f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}" if abs(value) < 100 else f"{value:.0f} {unit}"
            )
        value /= 1024
    raise AssertionError("the last unit takes every value")


def plural(count: int, one: str, many: str = "") -> str:
    """`1 tensor`, `2,048 tensors`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def amount(count: int) -> str:
    """`7.62 billion`, `124 million`, `31,077`."""
    for limit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= limit:
            return f"{count / limit:.3g} {word}"
    return f"{count:,}"


def listing(names: Sequence[str], most: int = 3) -> str:
    """`a, b and c`, `a, b, c and 17 more`; safe to print."""
    shown = [printable(n, 120) for n in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most:,} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def share(part: int, whole: int) -> str:
    """`83%`; never 0% or 100% where something is left on the other side."""
    if not whole:
        return "0%"
    percent = round(100 * part / whole)
    return f"{min(max(percent, 1 if part else 0), 99 if part < whole else 100)}%"
