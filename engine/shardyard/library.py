"""The library: what `import shardyard` gives to a notebook, a rank-0 process or a service.

No state is kept between calls, nothing is printed, every error is a `ShardyardError`.  numpy is loaded when values are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardyard import checkpoint as catalogue
from shardyard.discover import open_checkpoint
from shardyard.discover import scan as scan_folder
from shardyard.errors import UnsupportedError
from shardyard.files import FileHandles
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.operations.context import Context, Progress

if TYPE_CHECKING:
    import numpy

PathLike = str | os.PathLike[str]
OnProgress = Callable[[Progress], None]
Cancelled = Callable[[], bool]


class StoredTensor:
    """A tensor of an opened checkpoint; its values are read when they are asked for."""

    def __init__(self, tensor: catalogue.Tensor, handles: FileHandles) -> None:
        self._tensor = tensor
        self._handles = handles

    @property
    def name(self) -> str:
        """Its name, without the component's own path."""
        return self._tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self._tensor.shape

    @property
    def dtype(self) -> str:
        """The torch name of its element type, such as `bfloat16`."""
        return self._tensor.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self._tensor.nbytes

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that hold it."""
        return self._tensor.files

    def read(self, rows: slice | None = None) -> numpy.ndarray[Any, Any]:
        """Its values, or those of some rows (the first dimension): only what is asked for is read.

        bfloat16 and float8 come as ml_dtypes' types.  Rows are taken with step 1.

        Raises:
            UnsupportedError: numpy has no type for its elements.
            ShardyardError: its data is missing or damaged.
        """
        import numpy as np

        from shardyard.operations.gather import read_range
        from shardyard.operations.numeric import numpy_dtype

        kind = np.dtype(np.bool_) if self.dtype == "bool" else numpy_dtype(self.dtype)
        if kind is None:
            raise UnsupportedError(
                f"numpy has no type for {self.dtype}, which {self.name} has.", code="unsupported", tensors=[self.name]
            )
        first, last = self._rows(rows)
        row_bytes = self.nbytes // self.shape[0] if self.shape and self.shape[0] else self.nbytes
        lo, hi = (first * row_bytes, last * row_bytes) if rows is not None else (0, self.nbytes)
        values = np.empty(hi - lo, np.uint8)
        if hi > lo:
            read_range(self._tensor, lo, hi, values.data, self._handles)
        shape = (last - first, *self.shape[1:]) if rows is not None else self.shape
        return values.view(kind).reshape(shape)

    def _rows(self, rows: slice | None) -> tuple[int, int]:
        if rows is None:
            return 0, self.shape[0] if self.shape else 1
        if not self.shape or rows.step not in (None, 1):
            raise ValueError("rows are a slice of the first dimension with step 1")
        first, last, _ = rows.indices(self.shape[0])
        return first, max(first, last)

    def __getitem__(self, rows: slice) -> numpy.ndarray[Any, Any]:
        return self.read(rows)

    def __repr__(self) -> str:
        return f"StoredTensor({self.name!r}, {self.dtype}, {self.shape})"


class OpenCheckpoint(Mapping[str, StoredTensor]):
    """An opened checkpoint: a mapping from names to tensors. Close it, or use it in a `with`, to give its handles back."""

    def __init__(self, opened: catalogue.Checkpoint, part: str | None = None) -> None:
        self._opened = opened
        self._handles = FileHandles()
        self._tensors = opened.parts[part].tensors if part is not None else opened.tensors

    @property
    def kind(self) -> str:
        """What it is, such as `deepspeed-zero3` or `dcp`."""
        return self._opened.kind.value

    @property
    def path(self) -> Path:
        """The folder or file that it is."""
        return self._opened.path

    @property
    def complete(self) -> bool:
        """Whether every tensor has its data."""
        return self._opened.complete

    @property
    def step(self) -> int | None:
        """The training step, where it is recorded."""
        return self._opened.step

    @property
    def world_size(self) -> int | None:
        """How many ranks wrote it."""
        return self._opened.world_size

    @property
    def parts(self) -> tuple[str, ...]:
        """Components that can be opened with `part=`."""
        return tuple(self._opened.parts)

    @property
    def ties(self) -> list[tuple[str, ...]]:
        """Groups of names that are one tensor, the owner first."""
        return [tie.names for tie in self._opened.ties]

    @property
    def catalogue(self) -> catalogue.Checkpoint:
        """Everything the reader found, for tools that want more than values."""
        return self._opened

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The tensors by name (the mapping itself)."""
        return self

    def __getitem__(self, name: str) -> StoredTensor:
        return StoredTensor(self._tensors[name], self._handles)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Close its files."""
        self._handles.close()

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"OpenCheckpoint({str(self.path)!r}, {self.kind}, {len(self)} tensors)"


def open(path: PathLike, *more: PathLike, tag: str | None = None, part: str | None = None) -> OpenCheckpoint:
    """Open a checkpoint: a folder, a file, or with `more` the folders of one checkpoint. Reads headers only.

    Args:
        path: what a person would point at; one level too high or too low is found.
        more: further folders of the same checkpoint.
        tag: a step such as `global_step10`; default: what `latest` says.
        part: a component such as `ema`; default: the model.

    Raises:
        ShardyardError: no such path, not a checkpoint, or several qualify.
    """
    opened = open_checkpoint([Path(path), *map(Path, more)], OpenOptions(tag=tag, part=part))
    return OpenCheckpoint(opened, part if part in opened.parts else None)


def scan(root: PathLike) -> Iterator[Candidate]:
    """The checkpoints below a folder, as they are found; `candidate.path`, `.kind` and `.nbytes` cost nothing."""
    return scan_folder(Path(root))


def merge(
    *sources: PathLike, out: PathLike, progress: OnProgress | None = None, cancelled: Cancelled | None = None, **options: Any
) -> dict[str, Any]:
    """Merge a checkpoint into one whole set of weights; returns the result as `shardyard merge --json` prints it.

    Args:
        sources: a checkpoint; several are the folders of one.
        out: a new folder, or a file ending in .safetensors, .bin, .pt or .pth.
        progress: called with `Progress` now and then, from the thread that does the work.
        cancelled: asked at every work unit; True stops with `Cancelled`.
        options: those of the command line, with underscores: `dtype="bfloat16"`, `max_shard_size="2GB"`, `tied="both"`.
    """
    from shardyard.operations.merge.options import MergeOptions
    from shardyard.operations.merge.planning import plan_merge
    from shardyard.operations.merge.run import merge as run

    plan = plan_merge(sources, out, MergeOptions.parse(options))
    return dict(run(plan, _Calls(progress, cancelled)))


def export(
    *sources: PathLike, out: PathLike, progress: OnProgress | None = None, cancelled: Cancelled | None = None, **options: Any
) -> dict[str, Any]:
    """Merge into a folder that a model loader opens as it is; arguments as `merge`."""
    from shardyard.operations.export.plan import plan_export
    from shardyard.operations.merge.options import MergeOptions
    from shardyard.operations.merge.run import merge as run

    plan = plan_export(sources, out, MergeOptions.parse(options))
    return dict(run(plan, _Calls(progress, cancelled)))


class _Calls(Context):
    """A context that calls what the caller gave."""

    def __init__(self, progress: OnProgress | None, cancelled: Cancelled | None) -> None:
        self._progress = progress
        self._cancelled = cancelled

    def progress(self, progress: Progress) -> None:
        if self._progress is not None:
            self._progress(progress)

    def cancelled(self) -> bool:
        return self._cancelled is not None and self._cancelled()


__all__ = ["OpenCheckpoint", "StoredTensor", "export", "merge", "open", "scan"]
