"""The tensors of a torch file that is one shard of a state dict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shardyard.checkpoint import Composite, Tensor
from shardyard.dtypes import unknown
from shardyard.errors import CheckpointError
from shardyard.files import FileHandles
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.torch.container import TorchFile
from shardyard.formats.torch.file import open_torch
from shardyard.formats.torch.names import Leaf, names_of
from shardyard.formats.torch.tensors import Broken
from shardyard.text import printable


@dataclass(slots=True)
class TorchWeights:
    """A state dict, by the names that a loader would ask for."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    composites: list[Composite] = field(default_factory=list)
    stored: int = 0
    """Bytes of all storage records, used or not."""
    findings: list[Finding] = field(default_factory=list)
    globals: Counter[str] = field(default_factory=Counter)


def open_weights(handles: FileHandles, path: str) -> TorchWeights:
    """Open a torch file that holds a state dict.

    Raises:
        DamagedError: it is no torch file, or damaged beyond its directory.
    """
    file = open_torch(handles, path, lenient=True)
    names = names_of(file.root)
    found = TorchWeights(stored=sum(r.nbytes for r in file.storages.values()), findings=list(file.findings))
    found.globals.update({f"{module}.{attribute}": n for (module, attribute), n in file.globals.items()})
    for leaf in names.leaves:
        if leaf.name in found.tensors:
            _fault(found, file, f"two tensors are called {printable(leaf.name, 120)}.", leaf.name, Blocks.MERGE)
            continue
        found.tensors[leaf.name] = _tensor(file, found, leaf)
    for composite in names.composites:
        parameters = {k: v for k, v in composite.parameters.items() if isinstance(v, (str, int, float, tuple))}
        found.composites.append(Composite(composite.name, composite.kind, tuple(composite.parts), parameters))
    return found


def _tensor(file: TorchFile, found: TorchWeights, leaf: Leaf) -> Tensor:
    value = leaf.value
    if isinstance(value, Broken):
        _fault(found, file, f"{printable(leaf.name, 120)} cannot be read: {value.reason}", leaf.name, Blocks.UNLESS_ALLOWED)
        return Tensor(leaf.name, unknown("unknown"), (), None, note=value.reason, nbytes_stored=0)
    try:
        return file.tensor(leaf.name, value)
    except CheckpointError as error:
        text = f"{error.message.rstrip('.')} (tensor {printable(leaf.name, 120)})."
        finding = Finding(error.code, Severity.ERROR, text, "", (_base(file),), (leaf.name,), blocks=Blocks.UNLESS_ALLOWED)
        found.findings.append(finding)
        return Tensor(leaf.name, value.dtype, value.shape, None, note=error.message)


def _fault(found: TorchWeights, file: TorchFile, what: str, tensor: str, blocks: Blocks) -> None:
    text = f"{file.name}: {what}"
    found.findings.append(Finding("corrupt", Severity.ERROR, text, "", (_base(file),), (tensor,), blocks=blocks))


def _base(file: TorchFile) -> str:
    return file.path.rpartition("/")[2]
