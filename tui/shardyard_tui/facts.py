"""What crosses from the engine to the screens: frozen facts, nothing that reads or waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardyard_tui.table import TensorTable

Document = Mapping[str, Any]
"""JSON in a shape that the contract fixes: a checkpoint of `inspect --json`, a plan, an event, a result."""


class EngineError(Exception):
    """The engine said no, in one plain sentence."""

    def __init__(self, message: str, kind: str = "", candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        """The class of the error, such as `NoRoomError`."""
        self.candidates = tuple(candidates)
        """What to choose from, where several things could be meant."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EngineError, (self.message, self.kind, self.candidates)


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that was recognised and not opened yet."""

    path: str
    """Absolute: its folder, or its file."""
    kind: str
    nbytes: int
    files: int
    is_folder: bool
    mtime: float = 0.0


@dataclass(frozen=True, slots=True)
class Scanning:
    """Where a search is."""

    folders: int
    where: str
    problem: str = ""
    """Why what lies at `unread` could not be looked at."""
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """One name in a folder."""

    name: str
    path: str
    is_folder: bool
    nbytes: int
    mtime: float


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a folder."""

    path: str
    entries: tuple[Listed, ...]
    problem: str = ""
    """Why it is empty or in part; empty when it is whole."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is being read while a checkpoint is opened."""

    what: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint whose headers were read."""

    path: str
    report: Document
    """As in `inspect --json`."""
    table: TensorTable
    stamp: float = 0.0
    """Newest change of its files when it was read."""
    owner: str = ""
    objects: tuple[tuple[str, str], ...] = ()
    """Values that are no tensors, as text."""

    @classmethod
    def unreadable(cls, path: str, problem: str) -> Opened:
        """What stands for a checkpoint that could not be opened."""
        return cls(path, {"kind": "unreadable", "verdict": problem}, TensorTable())

    @property
    def title(self) -> str:
        return str(self.report.get("title") or self.report.get("kind") or "")

    @property
    def findings(self) -> Sequence[Document]:
        return self.report.get("findings") or ()

    @property
    def nbytes(self) -> int:
        return int((self.report.get("bytes") or {}).get("files") or 0)

    @property
    def state(self) -> str:
        """`complete`, `warning`, `incomplete` or `unreadable`: what the tree shows."""
        if self.report.get("kind") == "unreadable":
            return "unreadable"
        if not self.report.get("complete"):
            return "incomplete"
        return "warning" if any(f.get("severity") != "info" for f in self.findings) else "complete"

    @property
    def why_not_merge(self) -> str:
        """One sentence for why `m` is off; empty when it is not."""
        if self.report.get("mergeable"):
            return ""
        for finding in self.findings:
            if finding.get("severity") == "error":
                return str(finding.get("message", ""))
        return str(self.report.get("verdict") or "This cannot be merged.")


@dataclass(frozen=True, slots=True)
class Intent:
    """What a plan is to be made for."""

    verb: str
    opened: Opened
    others: tuple[str, ...] = ()
    """Paths of the rest of the same checkpoint, where its parts were written to several places."""
    select: tuple[str, ...] = ()
    """Of which tensors; empty: of all."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of bytes of a file."""

    start: int
    nbytes: int
    what: str
    """A role, `header`, or `unused`."""
    name: str
    """The tensor; empty where it is none."""


@dataclass(frozen=True, slots=True)
class ByteMap:
    """What each part of a file is for, in order."""

    path: str
    nbytes: int
    stretches: tuple[Stretch, ...]
    more: int = 0
    """Stretches that were left out."""


@dataclass(frozen=True, slots=True)
class PieceFacts:
    """Where a part of a tensor lies."""

    file: str
    record: str
    offset: int
    """In its record."""
    nbytes: int
    target: int
    """First byte in the tensor."""


@dataclass(frozen=True, slots=True)
class TensorDetail:
    """One tensor, closer."""

    name: str
    pieces: tuple[PieceFacts, ...]
    more: int = 0
    """Pieces that were left out."""
    storage: str = ""
    """How it looks at a shared storage, one sentence."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its folder tells it."""

    id: str
    verb: str
    title: str
    state: str
    sources: tuple[str, ...] = ()
    out: str = ""
    options: Document = field(default_factory=dict)
    created: float = 0.0
    ended: float = 0.0
    cancelling: bool = False
    progress: Document | None = None
    """The newest progress event."""
    outcome: Document | None = None
    host: str = ""
    pid: int = 0
    folder: str = ""
    slurm: str = ""

    @property
    def running(self) -> bool:
        return self.state in ("queued", "running")

    @property
    def message(self) -> str:
        """What it said when it ended badly."""
        return str((self.outcome or {}).get("message") or "")

    def why_not(self, action: str) -> str:
        """Why it cannot be cancelled or resumed; empty when it can."""
        if action == "cancel":
            return "" if self.running or self.state == "lost" else f"it is {self.state} already."
        if action == "resume":
            return f"it is {self.state}." if self.running or self.state == "done" else ""
        return ""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a new job is to do."""

    verb: str
    sources: tuple[str, ...]
    out: str | None = None
    options: Document = field(default_factory=dict)
    slurm: Mapping[str, str] | None = None
