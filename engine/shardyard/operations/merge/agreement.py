"""Other stored copies of a tensor that must agree with it: replicas, the 16-bit copy beside the masters, and tied names.

A sample looks at the beginning, middle and end of each tensor; that finds swapped ranks, a wrong order and mixed runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardyard.checkpoint import Tensor
from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.layouts import Layout
from shardyard.operations import gather
from shardyard.operations.merge.written import Written
from shardyard.text import printable

SAMPLE = 1024
"""Elements of each window of a sample."""
SMALL = 1 << 18
"""Replicas of up to this many bytes are compared whole."""


def check_copies(written: Written, handles: FileHandles, *, everything: bool) -> int:
    """Compare a tensor with its replicas and its 16-bit copy; returns how many were looked at.

    Raises:
        DamagedError: a copy disagrees.
    """
    tensor = written.tensor
    for layout in tensor.replicas:
        _check_replica(tensor, layout, handles, everything=everything or tensor.nbytes <= SMALL)
    if tensor.copy16 is not None:
        _check_copy16(tensor, tensor.copy16, handles, everything=everything)
    return len(tensor.replicas) + (tensor.copy16 is not None)


def check_tied(written: Written, copy: Tensor, lo: int, data: memoryview, handles: FileHandles) -> None:
    """Show that a separately stored tied copy has the same bytes [lo, lo + len(data)).

    Raises:
        DamagedError: it has not.
    """
    # A bytearray: two memoryviews are compared element by element, a hundred times as slowly.
    if _read(copy, lo, lo + len(data), handles) != data:
        a, b = printable(written.tensor.name, 120), printable(copy.name, 120)
        raise DamagedError(
            f"{a} and {b} should be one tensor by config.json, but their stored values differ; "
            "write both with --tied both, or exclude the one that is wrong.",
            code="tie-disagrees",
            tensors=[written.tensor.name, copy.name],
        )


def _windows(numel: int, *, everything: bool) -> Iterator[tuple[int, int]]:
    """Ranges of elements to look at."""
    if everything:
        step = 1 << 17
        for lo in range(0, numel, step):
            yield lo, min(numel, lo + step)
        return
    for lo in sorted({0, max(0, numel // 2 - SAMPLE // 2), max(0, numel - SAMPLE)}):
        yield lo, min(numel, lo + SAMPLE)


def _check_replica(tensor: Tensor, layout: Layout, handles: FileHandles, *, everything: bool) -> None:
    item = max(1, tensor.dtype.itemsize)
    other = Tensor(tensor.name, tensor.dtype, tensor.shape, layout, nbytes_stored=tensor.nbytes_stored)
    for lo, hi in _windows(-(-tensor.nbytes // item), everything=everything):
        a, b = lo * item, min(tensor.nbytes, hi * item)
        if _read(tensor, a, b, handles) != _read(other, a, b, handles):
            files = " and ".join(printable(n) for n in _file_names(tensor, other))
            raise DamagedError(
                f"{printable(tensor.name, 120)} is stored more than once, and the copies differ (in {files}); "
                "the files are of different runs or steps. Choose one with --select or delete the wrong file.",
                code="duplicate-copy",
                tensors=[tensor.name],
            )


def _check_copy16(tensor: Tensor, copy: Tensor, handles: FileHandles, *, everything: bool) -> None:
    from shardyard.operations.copy_check import check_copy  # numpy, which a merge without a 16-bit copy need not load

    if check_copy(tensor, handles, sample=not everything) is not None:
        raise DamagedError(
            f"{printable(tensor.name, 120)}: the master weights do not round to the {copy.dtype.name} copy "
            "in the same folder; ranks of different runs or steps are mixed. --verify none merges the masters all the same.",
            code="copy-disagrees",
            tensors=[tensor.name],
            path=next(iter(copy.files), None),
        )


def _read(tensor: Tensor, lo: int, hi: int, handles: FileHandles) -> bytearray:
    buffer = bytearray(hi - lo)
    gather.read_range(tensor, lo, hi, memoryview(buffer), handles)
    return buffer


def _file_names(*tensors: Tensor) -> list[str]:
    return sorted({path.rpartition("/")[2] for t in tensors for path in t.files})[:4]
