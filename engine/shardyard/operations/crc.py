"""CRC-32 of records that arrive in parts: parts are combined by arithmetic, and no byte is read twice.

A part's CRC is carried past n later bytes by a multiplication with x^(8n) modulo the CRC's polynomial (what zlib's
crc32_combine does); the factor for each length is kept, since lengths repeat.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320


def _multiply(a: int, b: int) -> int:
    """a * b modulo the polynomial, bits reversed as CRC-32 has them."""
    product = 0
    for _ in range(32):
        if a & 0x80000000:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _squares() -> list[int]:
    """x^(8 * 2^k) for k from 0 on."""
    power = 0x00800000
    found = [power]
    for _ in range(63):
        power = _multiply(power, power)
        found.append(power)
    return found


_POWERS = _squares()


@lru_cache(4096)
def _shift(nbytes: int) -> int:
    """x^(8 * nbytes) modulo the polynomial."""
    result = 0x80000000
    k = 0
    while nbytes:
        if nbytes & 1:
            result = _multiply(result, _POWERS[k])
        nbytes >>= 1
        k += 1
    return result


def combine(first: int, second: int, second_nbytes: int) -> int:
    """The CRC-32 of two runs one after the other."""
    return _multiply(_shift(second_nbytes), first) ^ second


@dataclass(slots=True)
class Coverage:
    """Which bytes of a record were seen, and their CRCs: runs that touch are joined at once."""

    starts: list[int] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(end, crc) of the run that begins at the same place in `starts`."""

    def add(self, start: int, nbytes: int, crc: int) -> None:
        """A part. One that overlaps what is known already (a tensor read twice) adds nothing and is passed over."""
        if not nbytes:
            return
        k = bisect_right(self.starts, start)
        end = start + nbytes
        if (k and self.runs[k - 1][0] > start) or (k < len(self.starts) and self.starts[k] < end):
            return
        if k < len(self.starts) and self.starts[k] == end:
            next_end, next_crc = self.runs[k]
            crc = combine(crc, next_crc, next_end - end)
            end = next_end
            del self.starts[k], self.runs[k]
        if k and self.runs[k - 1][0] == start:
            crc = combine(self.runs[k - 1][1], crc, end - start)
            self.runs[k - 1] = (end, crc)
        else:
            self.starts.insert(k, start)
            self.runs.insert(k, (end, crc))

    def whole(self, nbytes: int) -> int | None:
        """The CRC of all `nbytes` bytes, if each was seen."""
        if len(self.runs) == 1 and self.starts[0] == 0 and self.runs[0][0] == nbytes:
            return self.runs[0][1]
        return None

    def gaps(self, nbytes: int) -> list[tuple[int, int]]:
        """[start, end) of what was not seen."""
        found = []
        position = 0
        for start, (end, _) in zip(self.starts, self.runs, strict=True):
            if start > position:
                found.append((position, start))
            position = end
        if position < nbytes:
            found.append((position, nbytes))
        return found
