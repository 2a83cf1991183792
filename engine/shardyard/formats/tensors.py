"""From a torch pickle's rebuild calls to tensor values: what zip, legacy, DCP slices and rank files share.

A rebuild call collapses to a `TensorValue` while the pickle is read.  Its storage is a `StorageRef`; only the container knows
where the bytes of a storage key are.  The calls and their arguments were observed in files written by torch 1.x to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardyard.checkpoint import Ops
from shardyard.dtypes import BY_NAME, STORAGE_CLASSES, DType, unknown
from shardyard.formats.pickles import Collapse, Global, Persistent, PickleError, integers, lookup, text_of
from shardyard.text import printable


@dataclass(slots=True, eq=False)
class StorageRef:
    """A storage that the pickle refers to by key; one object for each mention, identity is the key."""

    key: str
    dtype: DType | None
    """Element type of the storage class; None for `UntypedStorage`, whose count is in bytes."""
    numel: int
    location: str
    view: tuple[int, int] | None = None
    """(offset, numel) in elements of an old legacy storage view; the tensor's own offset counts from there."""

    @property
    def nbytes(self) -> int:
        return self.numel * (self.dtype.itemsize if self.dtype else 1)


@dataclass(slots=True, eq=False)
class TensorValue:
    """A tensor in a pickle."""

    storage: StorageRef | None
    """None: a meta tensor or wrapper without bytes."""
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    offset: int
    """In elements."""
    ops: Ops = Ops.NONE
    parameter: bool = False
    requires_grad: bool = False
    subclass: str = ""
    """Dotted name of the tensor subclass, empty for plain tensors."""
    state: object = None
    """Python attributes that came with it (`_rebuild_from_type_v2`, parameters with state)."""

    def build(self, state: object) -> None:
        """A BUILD on a tensor: attributes, or the very old (storage, offset, size, stride) form."""
        self.state = state


@dataclass(slots=True, eq=False)
class CompositeValue:
    """A sparse, quantised, nested or wrapper value: parts that are tensors, and how they belong together."""

    kind: str
    parts: dict[str, object]
    parameters: dict[str, object] = field(default_factory=dict)
    subclass: str = ""
    state: object = None

    def build(self, state: object) -> None:
        self.state = state


@dataclass(slots=True, eq=False)
class WrapperValue:
    """`_rebuild_from_type_v2` around something that is no plain tensor: DTensor, ShardedTensor, other subclasses."""

    subclass: str
    func: object
    args: tuple[object, ...]
    state: object

    def build(self, state: object) -> None:
        self.state = state


def storage_of(pid: object) -> object:
    """A storage's persistent id as a StorageRef; `("module", …)` and odd ids stay a `Persistent`.

    Raises:
        PickleError: it claims to be a storage and breaks the rules.
    """
    if not isinstance(pid, tuple) or not pid or text_of(pid[0]) != "storage":
        return Persistent(pid, as_text=False)
    if len(pid) not in (5, 6):
        raise PickleError(f"a storage is described by {len(pid)} values instead of 5 or 6.")
    cls, key, location, numel = pid[1], text_of(pid[2]), text_of(pid[3]), pid[4]
    if key is None and isinstance(pid[2], int):
        key = str(pid[2])
    if not isinstance(cls, Global) or key is None or location is None or isinstance(numel, bool) or not isinstance(numel, int):
        raise PickleError("a storage is described by values of the wrong types.")
    if not 0 <= numel < 1 << 63:
        raise PickleError(f"a storage claims {numel} elements.")
    dtype = _storage_dtype(cls)
    view = None
    if len(pid) == 6 and pid[5] is not None:
        numbers = integers(pid[5][1:]) if isinstance(pid[5], tuple) and len(pid[5]) == 3 else None
        if numbers is None:
            raise PickleError("a storage view is described by values of the wrong types.")
        view = (numbers[0], numbers[1])
    return StorageRef(key, dtype, numel, location, view)


def _storage_dtype(cls: Global) -> DType | None:
    if cls.name == "UntypedStorage":
        return None
    if cls.module in ("torch", "torch.cuda", "torch.storage") and cls.name in STORAGE_CLASSES:
        return STORAGE_CLASSES[cls.name]
    raise PickleError(f"it has a storage of an unknown class, {printable(cls.path, 80)}.")


def dtype_of(value: object) -> DType | None:
    """The dtype that a global such as `torch.bfloat16` names."""
    if isinstance(value, Global) and value.module == "torch":
        return BY_NAME.get(value.name, unknown(value.name))
    return None


def _tensor_v2(made_by: str, args: object) -> object:
    return _rebuild(args, with_dtype=False)


def _tensor_v3(made_by: str, args: object) -> object:
    return _rebuild(args, with_dtype=True)


def _rebuild(args: object, *, with_dtype: bool) -> TensorValue:
    if not isinstance(args, tuple) or len(args) < (7 if with_dtype else 4):
        raise PickleError("a tensor is rebuilt from too few values.")
    storage, offset = args[0], args[1]
    shape, strides = integers(args[2]), integers(args[3])
    if not isinstance(storage, StorageRef) or isinstance(offset, bool) or not isinstance(offset, int):
        raise PickleError("a tensor is rebuilt from something that is no storage.")
    if shape is None or strides is None or len(shape) != len(strides) or min(shape, default=0) < 0 or offset < 0:
        raise PickleError("a tensor has an impossible shape, stride or offset.")
    dtype = dtype_of(args[6]) if with_dtype else storage.dtype
    if dtype is None:
        raise PickleError("a tensor has no known element type.")
    extras = args[7] if with_dtype and len(args) > 7 else args[6] if not with_dtype and len(args) > 6 else None
    requires_grad = len(args) > 4 and args[4] is True
    return TensorValue(storage, dtype, shape, strides, offset, _value_ops(extras), requires_grad=requires_grad)


def _value_ops(metadata: object) -> Ops:
    ops = Ops.NONE
    if lookup(metadata, "conj") is True:
        ops |= Ops.CONJ
    if lookup(metadata, "neg") is True:
        ops |= Ops.NEG
    return ops


def _parameter(made_by: str, args: object) -> object:
    if not isinstance(args, tuple) or not args:
        raise PickleError("a parameter is rebuilt from nothing.")
    value = args[0]
    if isinstance(value, TensorValue):
        value.parameter = True
        if len(args) > 1:
            value.requires_grad = args[1] is True
        if len(args) > 3:
            value.state = args[3]
    return value


def _from_type(made_by: str, args: object) -> object:
    """(func, type, args, state): the result of func(*args) as the subclass `type`."""
    if not isinstance(args, tuple) or len(args) != 4 or not isinstance(args[2], tuple):
        raise PickleError("a tensor subclass is rebuilt from values of the wrong types.")
    func, cls, inner, state = args
    subclass = cls.path if isinstance(cls, Global) else ""
    rebuild = REBUILDS.get(func.path) if isinstance(func, Global) else None
    if rebuild is not None and isinstance(func, Global) and not func.name.startswith("_rebuild_wrapper_subclass"):
        value = rebuild("REDUCE", inner)
        if isinstance(value, (TensorValue, CompositeValue)):
            value.subclass = "" if subclass == "torch.Tensor" else subclass
            value.state = state
        return value
    return WrapperValue(subclass, func, inner, state)


def _meta(made_by: str, args: object) -> object:
    if not isinstance(args, tuple) or len(args) < 3:
        raise PickleError("a meta tensor is rebuilt from too few values.")
    dtype, shape, strides = dtype_of(args[0]), integers(args[1]), integers(args[2])
    if dtype is None or shape is None or strides is None:
        raise PickleError("a meta tensor has an impossible type or shape.")
    return TensorValue(None, dtype, shape, strides, 0)


REBUILDS: dict[str, Collapse] = {
    "torch._utils._rebuild_tensor": _tensor_v2,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch._tensor._rebuild_from_type": _from_type,
}
"""Rebuild calls by dotted name, as `pickles.load(collapse=…)` takes them."""
