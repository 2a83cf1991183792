"""The names that tensors get in the output: wrappers' prefixes stripped, globs matched, collisions refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shardyard.errors import UsageError
from shardyard.text import printable

WRAPPER_PARTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, FSDP and activation checkpointing put into names, at any depth."""
HEADS = ("module.", "_forward_module.")
"""Prefixes of data-parallel and Lightning wrappers: stripped only at the head, and only if every name has them."""


@dataclass(frozen=True, slots=True)
class Names:
    """Stored names to output names."""

    new: dict[str, str]
    without_prefix: tuple[str, ...]
    """Names that an asked-for literal prefix was not in."""

    @property
    def renamed(self) -> dict[str, str]:
        """Only those that change."""
        return {old: new for old, new in self.new.items() if old != new}


def strip_prefixes(names: Iterable[str], prefixes: Sequence[str]) -> Names:
    """Output names by `--strip-prefix`: `auto`, `none`, or literals that are applied after `auto`.

    Raises:
        UsageError: two names would become one, or a literal prefix is in no name.
    """
    new = {name: name for name in names}
    if "none" not in prefixes and ("auto" in prefixes or prefixes):
        new = _auto(new)
    without: list[str] = []
    for prefix in prefixes:
        if prefix in ("auto", "none"):
            continue
        having = [old for old, name in new.items() if name.startswith(prefix) and name != prefix]
        if not having:
            raise UsageError(f"--strip-prefix {printable(prefix, 80)} matches no tensor's name.")
        lacking = new.keys() - set(having)
        without.extend(name for name in new if name in lacking)
        new.update({old: new[old][len(prefix) :] for old in having})
    refuse_collisions(new)
    return Names(new, tuple(dict.fromkeys(without)))


def _auto(new: dict[str, str]) -> dict[str, str]:
    if any(part in name for name in new for part in WRAPPER_PARTS):
        new = {old: _without_wrappers(name) for old, name in new.items()}
    again = bool(new)
    while again:
        again = False
        for head in HEADS:
            if all(name.startswith(head) and name != head for name in new.values()):
                new = {old: name[len(head) :] for old, name in new.items()}
                again = True
    return new


def _without_wrappers(name: str) -> str:
    parts = name.split(".")
    return ".".join([p for p in parts[:-1] if p not in WRAPPER_PARTS] + parts[-1:])


def refuse_collisions(new: dict[str, str]) -> None:
    """Raise UsageError if two stored names have one output name."""
    seen: dict[str, str] = {}
    for old, name in new.items():
        other = seen.setdefault(name, old)
        if other is not old:
            raise UsageError(
                f"{printable(other, 120)} and {printable(old, 120)} would both become {printable(name, 120)}; "
                "use --strip-prefix none or exclude one of them.",
                tensors=[other, old],
            )


def matching(names: Iterable[str], globs: Sequence[str]) -> set[str]:
    """The names that any of the globs matches."""
    return {name for name in names if any(fnmatchcase(name, glob) for glob in globs)}


def selected(new: dict[str, str], select: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """The stored names that `--select` and `--exclude` keep; a glob may mean the stored name or the output name.

    Raises:
        UsageError: a glob matches nothing (a typing error would silently change the output), or nothing is left.
    """
    for option, globs in (("--select", select), ("--exclude", exclude)):
        for glob in globs:
            if not matching(new, [glob]) and not matching(new.values(), [glob]):
                raise UsageError(f"{option} {printable(glob, 80)} matches no tensor.")
    kept = [
        old
        for old, name in new.items()
        if (not select or _any((old, name), select)) and not (exclude and _any((old, name), exclude))
    ]
    if not kept and new:
        raise UsageError("--select and --exclude leave no tensor.")
    return kept


def _any(names: tuple[str, str], globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for name in names for glob in globs)
