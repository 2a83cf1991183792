"""The reference's checks of a safetensors header: no holes, no overlap, sizes that agree, nothing after the last tensor."""

from __future__ import annotations

from math import prod

from shardyard.dtypes import BY_NAME, BY_SAFETENSORS
from shardyard.errors import COPY_AGAIN
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.safetensors.header import Entry, SafetensorsHeader
from shardyard.text import printable

MOST_NAMED = 20
"""Names listed in one finding."""
_U64 = 1 << 64
_FLOAT4 = BY_NAME["float4_e2m1fn_x2"]
_BITS = {name: 4 if dtype is _FLOAT4 else dtype.bits for name, dtype in BY_SAFETENSORS.items()}
_SAFE_COUNT = 1 << 56
"""Up to this many elements nothing can overflow."""


def twice_findings(name: str, twice: list[str]) -> list[Finding]:
    if not twice:
        return []
    names = tuple(dict.fromkeys(twice))
    text = f"{name}: tensor name {printable(names[0], 120)} stands twice in the header" + _and_more(len(names) - 1)
    return [Finding("corrupt", Severity.ERROR, text + ".", _AGAIN, (name,), names[:MOST_NAMED], blocks=Blocks.MERGE)]


_AGAIN = "Copy or write the file again."


def _and_more(count: int) -> str:
    return f", and {count} more" if count else ""


def check(header: SafetensorsHeader, name: str) -> list[Finding]:
    """The reference's checks of offsets, shapes and sizes, each kind of fault told once."""
    problems: list[tuple[str, str]] = []
    position = 0
    size = header.nbytes - header.data_start
    beyond: list[str] = []
    unknown_types: dict[str, list[str]] = {}
    before = ""
    for tensor, entry in sorted(header.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin == position and entry.end <= size and _plain(entry):
            position = entry.end
            before = tensor
            continue
        if entry.end > size:
            beyond.append(tensor)
        size_problem = _size_problem(tensor, entry)
        if size_problem or not 0 <= entry.begin <= entry.end < _U64:
            header.unreadable.add(tensor)
        problem = _order_problem(tensor, entry, position, before) or size_problem
        if problem:
            problems.append((tensor, problem))
        if entry.dtype not in BY_SAFETENSORS:
            unknown_types.setdefault(entry.dtype, []).append(tensor)
        position = max(position, entry.end)
        before = tensor
    findings = []
    if problems:
        text = f"{name}: {problems[0][1]}{_and_more(len(problems) - 1)}."
        names = tuple(t for t, _ in problems[:MOST_NAMED])
        findings.append(Finding("corrupt", Severity.ERROR, text, _AGAIN, (name,), names, blocks=Blocks.MERGE))
    findings.extend(_length_findings(header, name, position, size, beyond, bool(problems)))
    findings.extend(_unknown_type(name, dtype, tensors) for dtype, tensors in unknown_types.items())
    return findings


def _plain(entry: Entry) -> bool:
    """Whether an entry of ordinary size is right; what is not plain is looked at closely."""
    shape = entry.shape
    count = prod(shape)
    bits = _BITS.get(entry.dtype)
    return (
        bits is not None
        and 0 < count < _SAFE_COUNT
        and count * bits == (entry.end - entry.begin) * 8
        and (len(shape) < 2 or (min(shape) > 0 and max(shape) < _SAFE_COUNT))
    )


def _order_problem(tensor: str, entry: Entry, position: int, before: str) -> str:
    shown = printable(tensor, 120)
    if entry.begin < 0 or entry.end < 0:
        return f"tensor {shown} has a negative offset"
    if entry.end >= _U64:
        return f"tensor {shown} has an offset that does not fit 64 bits"
    if entry.end < entry.begin:
        return f"tensor {shown} ends before it starts"
    if entry.begin < position:
        return f"tensors {printable(before, 120)} and {shown} overlap in the file, which the format forbids"
    if entry.begin > position:
        where = f"between {printable(before, 120)} and {shown}" if before else f"before {shown}"
        return f"{entry.begin - position:,} bytes {where} belong to no tensor, which the format forbids"
    return ""


def _size_problem(tensor: str, entry: Entry) -> str:
    shown = printable(tensor, 120)
    count = 1
    for n in entry.shape:
        if n < 0:
            return f"tensor {shown} has a negative dimension"
        count *= n
        if n >= _U64 or count >= _U64:
            return f"tensor {shown} has a shape larger than 64 bits can count"
    dtype = BY_SAFETENSORS.get(entry.dtype)
    if dtype is None:
        return ""
    bits = count * (4 if dtype is _FLOAT4 else dtype.bits)
    if bits >= _U64:
        return f"tensor {shown} has a shape larger than 64 bits can count"
    shape = "[" + ", ".join(map(str, entry.shape)) + "]"
    if bits % 8:
        return f"tensor {shown}: {entry.dtype} {shape} is not a whole number of bytes"
    if bits // 8 != entry.end - entry.begin:
        return f"tensor {shown}: {entry.dtype} {shape} needs {bits // 8:,} bytes, its range has {entry.end - entry.begin:,}"
    return ""


def _length_findings(
    header: SafetensorsHeader, name: str, end: int, size: int, beyond: list[str], damaged: bool
) -> list[Finding]:
    if beyond:
        text = f"{name} was cut short: its tensors need {end:,} bytes, {size:,} are there"
        first = f"; {printable(beyond[0], 120)}{_and_more(len(beyond) - 1)} cannot be read."
        # What lies before the cut is whole; beyond it nothing can be had.
        return [
            Finding(
                "truncated",
                Severity.ERROR,
                text + first,
                COPY_AGAIN,
                (name,),
                tuple(beyond[:MOST_NAMED]),
                max(0, end - size),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        ]
    if end < size and not damaged:
        text = f"{name}: {size - end:,} bytes follow the last tensor; the reference library refuses the file."
        return [Finding("corrupt", Severity.ERROR, text, _AGAIN, (name,), nbytes=size - end, blocks=Blocks.MERGE)]
    return []


def _unknown_type(name: str, dtype: str, tensors: list[str]) -> Finding:
    shown = printable(tensors[0], 120)
    return Finding(
        "unsupported",
        Severity.WARNING,
        f"{name}: tensor {shown}{_and_more(len(tensors) - 1)} has the unknown dtype {printable(dtype, 40)}; "
        "its bytes are copied as they are.",
        "Update Shardyard if this is a new dtype.",
        (name,),
        tuple(tensors[:MOST_NAMED]),
    )
