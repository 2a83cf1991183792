"""A torch file laid out anew with only the bytes that its tensors use: every other object as it was, ties and sharing kept.

Each storage with bytes to give back is cut into the clusters of its views: a cluster becomes one storage, or, where that is
smaller, one for each distinct view.  The graph is pickled again in the source's protocol.  `.format_version` is never carried
over: in a zip that torch did not lay out itself it makes torch read wrong values, silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardyard.checkpoint import Tensor
from shardyard.dtypes import BY_NAME
from shardyard.errors import UnsupportedError
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch.container import TorchFile
from shardyard.formats.torch.sharing import Cluster, View, clusters_of
from shardyard.formats.torch.tensors import StorageRef
from shardyard.formats.torch.views import TensorCall, looks_of, named_calls
from shardyard.layouts import OneRun, Strided
from shardyard.pieces import Record, row_major

WORTHWHILE = 64
"""Less is not worth a new file: torch pads every record to this."""
_BYTES = BY_NAME["uint8"]


@dataclass(slots=True, eq=False)
class NewStorage:
    """A storage of the new file, and where its bytes come from."""

    source: Tensor
    """As a tensor whose row-major bytes are the storage."""
    record: Record | None = None
    """The old record, where all of it is taken over: its checksum can be checked on the way."""
    key: str = ""
    """Set when the graph is pickled: numbered in the order of first mention."""
    count: int = 0
    """Elements, as the first mention counts them."""

    @property
    def nbytes(self) -> int:
        return self.source.nbytes


@dataclass(slots=True, eq=False)
class Moved:
    """Stands in the graph for a storage that moved: what referred to it, and the new storage."""

    ref: StorageRef
    storage: NewStorage


@dataclass(slots=True)
class Rewrite:
    """What a file would become."""

    file: TorchFile
    storages: list[NewStorage] = field(default_factory=list)
    """In the order of the new file."""
    pickle: bytes = b""
    tensors: int = 0
    old_payload: int = 0
    new_payload: int = 0

    @property
    def saved(self) -> int:
        """Bytes of storages that are given back."""
        return self.old_payload - self.new_payload


def plan_rewrite(file: TorchFile, join: Sequence[tuple[str, str]] = ()) -> Rewrite:
    """Lay a file out anew; its graph is changed by this and of no further use for anything but pickling.

    Args:
        join: (alias, owner) names of a flat state dict that shall look at one storage from now on.

    Raises:
        DamagedError: a storage is missing or has another size than the pickle says.
    """
    looks = looks_of(file.root)
    plan = Rewrite(file, tensors=len(looks.tensors), old_payload=sum(r.nbytes for r in file.storages.values()))
    if join:
        _join(file, looks.tensors, join)
    by_key: dict[str, list[TensorCall]] = {}
    for tensor in looks.tensors:
        file.layout(tensor.value)  # proves that it stays inside its storage
        by_key.setdefault(tensor.storage.key, []).append(tensor)
    whole = {key: _take_whole(file, ref) for key, ref in looks.whole.items()}
    for key, tensors in by_key.items():
        if key not in whole and not _cut(file, key, tensors):
            whole[key] = _take_whole(file, tensors[0].storage)
    _write(plan, whole)
    return plan


def _join(file: TorchFile, tensors: list[TensorCall], join: Sequence[tuple[str, str]]) -> None:
    names = named_calls(file.root)
    by_call = {id(t.call): t for t in tensors}
    for alias, owner in join:
        copy, kept = by_call.get(id(names.get(alias))), by_call.get(id(names.get(owner)))
        if copy is None or kept is None:
            continue
        identity = copy.identity
        for tensor in tensors:
            if tensor.identity == identity:
                tensor.join(kept)


def _take_whole(file: TorchFile, ref: StorageRef) -> NewStorage:
    record = file.record(ref)
    return NewStorage(_run(record, 0, record.nbytes), record)


def _run(record: Record, start: int, nbytes: int) -> Tensor:
    return Tensor(record.name, _BYTES, (nbytes,), OneRun(record, start, nbytes))


def _cut(file: TorchFile, key: str, tensors: list[TensorCall]) -> bool:
    """Give the views of one storage new places; False (and nothing changed) if that frees no byte."""
    record = file.record(tensors[0].storage)
    views: dict[tuple[object, ...], View] = {}
    holders: dict[int, list[TensorCall]] = {}
    for tensor in tensors:
        view = _view(tensor)
        view = views.setdefault(view.identity, view)
        holders.setdefault(id(view), []).append(tensor)
    clusters = [_Piece(c, [t for v in c.views for t in holders[id(v)]], record.nbytes) for c in clusters_of(views.values())]
    if sum(c.nbytes for c in clusters) >= record.nbytes:
        return False
    new = None
    for piece in clusters:
        if piece.split:
            for view in piece.cluster.views:
                new = _gather(record, view, holders[id(view)])
        else:
            new = NewStorage(_run(record, piece.start, piece.end - piece.start))
            for view in piece.cluster.views:
                for tensor in holders[id(view)]:
                    tensor.move(Moved(tensor.storage, new), (view.offset - piece.start) // view.itemsize, tensor.value.strides)
    # Tensors without elements go with any neighbour, or into a storage without bytes.
    neighbour = new or NewStorage(_run(record, 0, 0))
    for view in views.values():
        for tensor in holders[id(view)] if view.end == view.offset else ():
            tensor.move(Moved(tensor.storage, neighbour), 0, tensor.value.strides)
    return True


def _view(tensor: TensorCall) -> View:
    value, item = tensor.value, tensor.value.dtype.itemsize
    base = tensor.storage.view[0] * (tensor.storage.dtype or value.dtype).itemsize if tensor.storage.view else 0
    strides = tuple(s * item for s in value.strides)
    return View(value.dtype.name, item, base + value.offset * item, value.shape, strides, value.ops)


class _Piece:
    """A cluster with its edges moved out to whole elements of every type that looks at it."""

    def __init__(self, cluster: Cluster, tensors: Iterable[TensorCall], limit: int) -> None:
        self.cluster = cluster
        width = max(max(t.value.dtype.itemsize, t.storage.dtype.itemsize if t.storage.dtype else 1) for t in tensors)
        self.start = cluster.start - cluster.start % width
        self.end = min(limit, cluster.end + -cluster.end % width)

    @property
    def split(self) -> bool:
        # A view whose bytes lie close together in another order (a transpose, channels last) keeps its strides.
        return self.cluster.distinct < self.cluster.span

    @property
    def nbytes(self) -> int:
        return self.cluster.distinct if self.split else self.end - self.start


def _gather(record: Record, view: View, tensors: list[TensorCall]) -> NewStorage:
    """A storage of its own for one view, its values in row-major order."""
    dtype = tensors[0].value.dtype
    packed = row_major(view.shape, view.itemsize)
    if all(n == 1 or s == p for n, s, p in zip(view.shape, view.strides, packed, strict=True)):
        new = NewStorage(_run(record, view.offset, view.nbytes))
        strides = tensors[0].value.strides
    else:
        layout = Strided(record, view.offset, view.shape, view.strides, view.itemsize)
        new = NewStorage(Tensor(record.name, dtype, view.shape, layout))
        strides = row_major(view.shape, 1)
    for tensor in tensors:
        tensor.move(Moved(tensor.storage, new), 0, strides)
    return new


def _write(plan: Rewrite, whole: dict[str, NewStorage]) -> None:
    """Pickle the graph; storages get their keys in the order of first mention."""
    legacy = plan.file.container == "legacy"

    def persistent_id(value: object) -> object:
        if isinstance(value, Moved):
            storage, ref = value.storage, value.ref
        elif isinstance(value, StorageRef):
            storage, ref = whole[value.key], value
        else:
            return None
        element, old = ref.dtype or _BYTES, ref.pid
        if storage.nbytes % element.itemsize:
            raise UnsupportedError(f"{plan.file.name}: a storage is no whole number of elements.", code="unsupported")
        count = storage.nbytes // element.itemsize
        if not storage.key:
            storage.key, storage.count = str(len(plan.storages)), count
            plan.storages.append(storage)
        view = (old[5] if isinstance(value, StorageRef) and len(old) > 5 else None,) if legacy else ()
        return (old[0], old[1], storage.key, old[3], count, *view)

    plan.pickle = pickle_writer.dump(plan.file.root, plan.file.protocol, persistent_id=persistent_id)
    plan.new_payload = sum(s.nbytes for s in plan.storages)
    if legacy:
        plan.storages.sort(key=lambda s: s.key)
