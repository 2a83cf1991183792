"""A pickled state dict as names and tensors: nested dicts joined with dots, what is no plain tensor kept by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardyard.formats.deepspeed.flat import layout_error
from shardyard.formats.pickles import attribute, pairs
from shardyard.formats.torch.file import TorchFile
from shardyard.formats.torch.tensors import Broken, CompositeValue, TensorValue, WrapperValue
from shardyard.text import printable

MOST_NAME = 4096


@dataclass(slots=True)
class StateDict:
    """Names to tensors, in order."""

    tensors: dict[str, TensorValue] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    """Names of values that hold tensors and are none (quantised, sparse, malformed), with what they are."""
    stored: bool = True
    """Whether there was a dict at all: pipelines store None."""
    modules: tuple[str, ...] = ()
    """Paths of all modules, those without tensors included, as torch records them beside a state dict."""


def read_state_dict(value: object, file: TorchFile) -> StateDict:
    """Take a state dict apart; Megatron nests dicts.

    Raises:
        DamagedError: one name stands twice.
    """
    items = pairs(value)
    if items is None:
        return StateDict(stored=False)
    found = StateDict(modules=tuple(k for k, _ in pairs(attribute(value, "_metadata")) or () if isinstance(k, str)))
    stack = [("", items)]
    while stack:
        path, items = stack.pop()
        nested = []
        for key, item in items:
            if not isinstance(key, (str, int)) or len(path) > MOST_NAME:
                continue
            name = f"{path}{key}"
            if isinstance(item, TensorValue):
                if name in found.tensors or not name:
                    raise layout_error(f"{printable(file.path.rsplit('/', 1)[-1])} has {printable(name, 80)} twice.", file.path)
                found.tensors[name] = item
            elif isinstance(item, (CompositeValue, WrapperValue, Broken)):
                found.odd[name] = item.reason if isinstance(item, Broken) else item.subclass or "no plain tensor"
            else:
                inner = pairs(item)
                if inner is not None:
                    nested.append((f"{name}.", inner))
        stack.extend(reversed(nested))
    return found
