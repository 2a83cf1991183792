"""Where an index and the shards' own headers disagree, gathered so that each kind of fault is told once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardyard.findings import Blocks, Finding, Severity
from shardyard.text import printable

MOST_NAMED = 20
"""Names listed in one finding."""


@dataclass(slots=True)
class Faults:
    """The disagreements of one set."""

    index: str
    missing: dict[str, list[str]] = field(default_factory=dict)
    ghosts: list[tuple[str, str]] = field(default_factory=list)
    elsewhere: list[tuple[str, str, str]] = field(default_factory=list)
    unlisted: list[tuple[str, str]] = field(default_factory=list)

    def findings(self) -> list[Finding]:
        found = []
        if self.missing:
            found.append(self._missing())
        if self.ghosts:
            name, file = self.ghosts[0]
            text = f"{_tensors(len(self.ghosts), name)} in the index but not in {printable(file)}, where it says."
            found.append(_mismatch(text, [n for n, _ in self.ghosts], [f for _, f in self.ghosts], Blocks.UNLESS_ALLOWED))
        if self.elsewhere:
            name, file, real = self.elsewhere[0]
            text = f"{_tensors(len(self.elsewhere), name)} in {printable(real)}, not in {printable(file)} as the index says."
            found.append(_mismatch(text, [e[0] for e in self.elsewhere], [e[2] for e in self.elsewhere], Blocks.MERGE))
        if self.unlisted:
            name, file = self.unlisted[0]
            text = f"{_tensors(len(self.unlisted), name)} in {printable(file)} but not in the index."
            finding = _mismatch(text, [n for n, _ in self.unlisted], [f for _, f in self.unlisted], Blocks.NOTHING)
            found.append(replace(finding, severity=Severity.WARNING))
        return found

    def _missing(self) -> Finding:
        names = [n for of_file in self.missing.values() for n in of_file]
        files = list(self.missing)
        which = printable(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        many = len(files) > 1
        text = (
            f"{len(files)} shard{'s are' if many else ' is'} missing: {which} ({len(names)} tensors: {printable(names[0], 120)}"
        )
        text += ", …)." if len(names) > 1 else ")."
        if len(names) == 1:
            text = text.replace("1 tensors", "1 tensor")
        remedy = "Copy the missing files from the source."
        paths, tensors = tuple(files[:MOST_NAMED]), tuple(names[:MOST_NAMED])
        return Finding("missing-shard", Severity.ERROR, text, remedy, paths, tensors, blocks=Blocks.UNLESS_ALLOWED)


def _tensors(count: int, first: str) -> str:
    shown = printable(first, 120)
    return f"Tensor {shown} is" if count == 1 else f"{count} tensors ({shown}, …) are"


def _mismatch(text: str, tensors: list[str], files: list[str], blocks: Blocks) -> Finding:
    return Finding(
        "index-mismatch",
        Severity.ERROR,
        text,
        "Write the index again, or fetch the folder again.",
        tuple(dict.fromkeys(files))[:MOST_NAMED],
        tuple(tensors[:MOST_NAMED]),
        blocks=blocks,
    )
