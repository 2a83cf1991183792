"""What is worth telling about a checkpoint: the one type in which readers and health checks say it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How much it matters."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Blocks(Enum):
    """Whether a merge may go on in spite of it."""

    NOTHING = "nothing"
    UNLESS_ALLOWED = "unless allowed"
    """Something is missing: refused, but `--allow-incomplete` merges the rest."""
    MERGE = "merge"
    """Wrong or unknown: a merge could be silently wrong, so it is refused whatever was asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found."""

    code: str
    """A code of CONTRACT section 3; codes are never renamed."""
    severity: Severity
    message: str
    """One plain sentence: what, in which file."""
    remedy: str = ""
    """What to do, one sentence; empty where nothing needs doing."""
    paths: tuple[str, ...] = ()
    """Files it is about, relative to the checkpoint."""
    tensors: tuple[str, ...] = ()
    """Names of tensors it is about."""
    nbytes: int = 0
    """Bytes it concerns: wasted, missing, or to be saved."""
    sure: bool = True
    """False: likely, not certain."""
    blocks: Blocks = Blocks.NOTHING

    def brief(self) -> dict[str, str]:
        """As plans have it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "certainty": "sure" if self.sure else "likely",
            "message": self.message,
        }

    def to_json(self) -> dict[str, object]:
        """As reports and events have it: CONTRACT section 3."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "certainty": "sure" if self.sure else "likely",
            "message": self.message,
            "paths": list(self.paths),
            "tensors": list(self.tensors),
            "bytes": self.nbytes,
            "remedy": self.remedy,
        }
