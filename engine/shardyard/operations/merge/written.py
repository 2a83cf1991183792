"""The values of an output: tensors as they are written, and values of a torch file that are made of several tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardyard.checkpoint import Tensor
from shardyard.dtypes import DType
from shardyard.operations.merge.adapters import Fold


@dataclass(slots=True, eq=False)
class Written:
    """A tensor as it is written."""

    name: str
    """Its name in the output."""
    tensor: Tensor
    dtype: DType
    """Its dtype in the output; another than the tensor's means a cast."""
    copies: tuple[Tensor, ...] = ()
    """Separately stored copies that are dropped: the transfer shows that their bytes are equal."""

    fold: Fold | None = None
    """A low-rank change that is added while it is written."""

    cast: bool = field(init=False)
    """Whether its bytes are not those that are stored."""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        # Worked out once: a plan asks for them many times, and there may be a million tensors.
        changed = self.dtype is not self.tensor.dtype and self.dtype != self.tensor.dtype
        self.cast = changed or self.fold is not None
        self.nbytes = self.dtype.nbytes(self.tensor.numel) if self.cast else self.tensor.nbytes


@dataclass(frozen=True, slots=True)
class Whole:
    """A sparse, quantised or nested value of a torch file, made of tensors that are written."""

    name: str
    kind: str
    parts: tuple[Written, ...]
    parameters: Mapping[str, str | int | float | tuple[int, ...]]

    def integers(self, key: str) -> tuple[int, ...]:
        """A parameter that is a tuple of integers."""
        value = self.parameters[key]
        return value if isinstance(value, tuple) else ()
