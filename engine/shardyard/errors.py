"""One tree of errors; each says in one plain sentence what is wrong, in which file, and what to do.

The exit code that goes with each class is chosen in `cli/exits.py`, not here: a library user has no exit code.
"""

from __future__ import annotations

from collections.abc import Sequence

COPY_AGAIN = "Copy it again from where it was written."
"""What to do about most files that are damaged."""


class ShardyardError(Exception):
    """The root of all errors that this library raises on purpose."""

    def __init__(self, problem: str, *, path: str | None = None, tensors: Sequence[str] = (), remedy: str = "") -> None:
        self.problem = problem
        """What is wrong, and where: one plain sentence, already safe to print (no control characters)."""
        self.remedy = remedy
        """What to do, one sentence; empty where `problem` says it or nobody knows."""
        self.message = f"{problem} {remedy}".rstrip()
        """Both, as they are shown."""
        super().__init__(self.message)
        self.path = path
        """The file or folder it is about, if one is."""
        self.tensors = tuple(tensors)
        """Names of the tensors it is about."""


class UsageError(ShardyardError):
    """The request cannot be meant: wrong options, no such path, not a checkpoint."""


class AmbiguousError(UsageError):
    """Several checkpoints or parts qualify; `candidates` lists what to choose from."""

    def __init__(self, problem: str, candidates: Sequence[str], *, path: str | None = None) -> None:
        super().__init__(problem, path=path)
        self.candidates = tuple(candidates)


class CheckpointError(ShardyardError):
    """The checkpoint itself stands in the way: incomplete, damaged, or of a layout that is not merged.

    `code` is a finding code of CONTRACT section 3, such as `missing-rank`.
    """

    def __init__(
        self, problem: str, *, code: str, path: str | None = None, tensors: Sequence[str] = (), remedy: str = ""
    ) -> None:
        super().__init__(problem, path=path, tensors=tensors, remedy=remedy)
        self.code = code


class DamagedError(CheckpointError):
    """A file is truncated, corrupt or breaks the rules of its format."""

    def __init__(
        self, problem: str, *, code: str = "corrupt", path: str | None = None, tensors: Sequence[str] = (), remedy: str = ""
    ) -> None:
        super().__init__(problem, code=code, path=path, tensors=tensors, remedy=remedy)


class IncompleteError(CheckpointError):
    """A rank, shard or tensor that should be there is not."""


class UnsupportedError(CheckpointError):
    """The layout is known but not merged, or holds what the output cannot hold."""


class NoRoomError(ShardyardError):
    """Disk, quota, memory or a process limit does not suffice."""


class OutputExistsError(ShardyardError):
    """The output is there already and is not ours to replace."""


class JobError(ShardyardError):
    """A job failed for another reason."""


class Cancelled(ShardyardError):
    """The person, or a signal, asked to stop."""

    def __init__(self, problem: str = "Cancelled.") -> None:
        super().__init__(problem)
