"""The tensors of a torch file that is one shard of a state dict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shardyard.checkpoint import Tensor
from shardyard.errors import ShardyardError, UnsupportedError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.pickles import pairs, text_of
from shardyard.formats.tensors import TensorValue
from shardyard.formats.torch_file import TorchFile, open_torch
from shardyard.text import printable


@dataclass(slots=True)
class TorchWeights:
    """A flat state dict."""

    tensors: dict[str, Tensor]
    stored: int
    """Bytes of all storage records, used or not."""
    findings: list[Finding] = field(default_factory=list)
    globals: Counter[str] = field(default_factory=Counter)


def open_weights(handles: FileHandles, path: str) -> TorchWeights:
    """Open a torch file that holds a flat state dict.

    Raises:
        DamagedError: it is no torch file, or damaged.
        UnsupportedError: it holds something other than a state dict.
    """
    file = open_torch(handles, path)
    items = pairs(file.root)
    name = printable(path.rpartition("/")[2])
    if items is None:
        raise UnsupportedError(f"{name} holds no state dict.", code="unsupported", path=path)
    found = TorchWeights({}, sum(r.nbytes for r in file.storages.values()), list(file.findings))
    found.globals.update({f"{module}.{attribute}": n for (module, attribute), n in file.globals.items()})
    others = []
    for key, value in items:
        text = text_of(key)
        if text is None:
            continue
        if isinstance(value, TensorValue):
            found.tensors[text] = _tensor(file, found, text, value)
        else:
            others.append(text)
    if others:
        message = (
            f"{name}: {printable(others[0], 120)}{f' and {len(others) - 1} more' if len(others) > 1 else ''} is no plain tensor."
        )
        found.findings.append(Finding("unsupported", Severity.INFO, message, tensors=tuple(others[:20])))
    return found


def _tensor(file: TorchFile, found: TorchWeights, text: str, value: TensorValue) -> Tensor:
    try:
        return file.tensor(text, value)
    except ShardyardError as error:
        code = str(getattr(error, "code", "corrupt"))
        found.findings.append(
            Finding(
                code,
                Severity.ERROR,
                error.message,
                paths=(file.path.rpartition("/")[2],),
                tensors=(text,),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )
        return Tensor(text, value.dtype, value.shape, None, note=error.message)
