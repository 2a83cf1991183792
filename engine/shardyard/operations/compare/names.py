"""Which tensor of one checkpoint is which of the other, by name.

Names are matched as they are stored.  A prefix is taken off only when asked for; where one would match more names it is offered
as a hint.  A name that is missing on one side is present all the same if that side records it as an alias of a tensor it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardyard.checkpoint import Tie
from shardyard.errors import UsageError
from shardyard.operations.names import WRAPPER_PARTS
from shardyard.text import printable

WRAPPERS = tuple(sorted(f"{part}." for part in WRAPPER_PARTS))
PEFT = "base_model.model."
"""What peft puts in front; `base_layer.` then stands inside the names of the layers it wrapped."""


@dataclass(slots=True)
class Match:
    """The outcome: names as shown, and what each side calls the tensor."""

    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The common name to the stored names in a and in b."""
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    """Stored names without a partner."""
    hint: str | None = None
    """A prefix that would match more names."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Common names that one side has only as an alias, to that side: `a` or `b`."""


def match(
    a: Sequence[str], b: Sequence[str], ties_a: Iterable[Tie], ties_b: Iterable[Tie], prefixes: Sequence[str] = ()
) -> Match:
    """Match the names of two checkpoints, in a's order."""
    names_a: Mapping[str, str] = {n: n for n in a}
    names_b: Mapping[str, str] = {n: n for n in b}
    for prefix in prefixes:
        names_a, names_b = _strip_best(names_a, names_b, prefix)
    result = Match({n: (names_a[n], names_b[n]) for n in names_a if n in names_b})
    _add_aliases(result, names_a, names_b, ties_a, ties_b)
    used_a, used_b = ({pair[side] for pair in result.pairs.values()} for side in (0, 1))
    result.only_a = [n for n in names_a.values() if n not in used_a]
    result.only_b = [n for n in names_b.values() if n not in used_b]
    result.hint = hint(names_a, names_b)
    return result


def _add_aliases(
    result: Match, names_a: Mapping[str, str], names_b: Mapping[str, str], ties_a: Iterable[Tie], ties_b: Iterable[Tie]
) -> None:
    """Pair the names that one side has and the other only records as an alias of a tensor it has."""
    for side, ties, own, other in (("a", ties_a, names_a, names_b), ("b", ties_b, names_b, names_a)):
        stored = set(own.values())
        for tie in ties:
            owner = next((n for n in tie.names if n in stored), None)
            for alias in tie.names if owner is not None else ():
                if alias not in stored and alias in other and alias not in result.pairs and owner is not None:
                    result.pairs[alias] = (owner, other[alias]) if side == "a" else (other[alias], owner)
                    result.aliases[alias] = side


def strip(name: str, prefix: str) -> str:
    """The name without the prefix; wrappers' parts go wherever they are a whole part, all others at the head alone."""
    if prefix == "auto":
        return ".".join(part for part in name.split(".") if f"{part}." not in WRAPPERS)
    if prefix in WRAPPERS:
        return ".".join(part for part in name.split(".") if f"{part}." != prefix)
    if not name.startswith(prefix):
        return name
    name = name[len(prefix) :]
    return name.replace(".base_layer.", ".") if prefix == PEFT else name


def _strip_best(a: Mapping[str, str], b: Mapping[str, str], prefix: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Both name tables with the prefix taken off b, a, both or neither: whatever matches most names."""
    bare_a, bare_b = _stripped(a, prefix), _stripped(b, prefix)
    choices = [(a, b), (a, bare_b), (bare_a, b), (bare_a, bare_b)]
    return max(choices, key=lambda pair: len(pair[0].keys() & pair[1].keys()))


def _stripped(names: Mapping[str, str], prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, stored in names.items():
        other = found.setdefault(strip(name, prefix), stored)
        if other != stored:
            raise UsageError(
                f"Without the prefix {printable(prefix)} two names become one: {printable(other)} and {printable(stored)}."
            )
    return found


def hint(a: Mapping[str, str], b: Mapping[str, str]) -> str | None:
    """The prefix that would match most names when taken off one side; None if none matches more than are matched as they are."""
    ends: Counter[str] = Counter()
    for names, others in ((b, a), (a, b)):
        for name in names.keys() - others.keys():
            dot = name.find(".")
            while dot >= 0:
                if name[dot + 1 :] in others:
                    ends[name[: dot + 1]] += 1
                dot = name.find(".", dot + 1)
            ends.update(wrapper for wrapper in (*WRAPPERS, PEFT) if strip(name, wrapper) in others)
    best, most = None, len(a.keys() & b.keys())
    for prefix, _ in sorted(ends.most_common(8), key=lambda item: len(item[0])):
        try:
            left, right = _strip_best(a, b, prefix)
        except UsageError:
            continue
        if len(left.keys() & right.keys()) > most:
            best, most = prefix, len(left.keys() & right.keys())
    return best
