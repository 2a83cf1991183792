"""From a torch pickle's rebuild calls to tensor values: what zip, legacy, DCP slices and rank files share.

A rebuild call collapses to a `TensorValue` while the pickle is read.  Its storage is a `StorageRef`; only the container knows
where the bytes of a storage key are.  The calls and their arguments were observed in files written by torch 1.x to 2.13.
What is malformed is refused (`REBUILDS`, for readers that need every tensor) or becomes a `Broken` leaf (`LENIENT_REBUILDS`,
for readers that show what there is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shardyard.dtypes import BY_NAME, STORAGE_CLASSES, DType, unknown
from shardyard.formats.pickles import Call, Collapse, Global, Persistent, PickleError, integers, lookup, sequence, text_of
from shardyard.pieces import Ops
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
    inline: bytes | None = None
    """The bytes themselves, where they are inside the pickle (numpy arrays)."""
    pid: tuple[object, ...] = ()
    """The persistent id itself, kept where the graph is to be written again."""

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
    quantiser: tuple[object, ...] | None = None
    """(scheme, scale, zero point[, axis]) of a quantised tensor."""

    def build(self, state: object) -> None:
        """A BUILD on a tensor: attributes, or the very old (storage, offset, size, stride) form."""
        if isinstance(state, tuple) and len(state) >= 4 and isinstance(state[0], StorageRef):
            placed = _rebuild(state[:4])
            self.storage, self.dtype, self.shape = placed.storage, placed.dtype, placed.shape
            self.strides, self.offset = placed.strides, placed.offset
        else:
            self.state = state

    def children(self) -> Iterable[object]:
        return (self.storage, self.state, self.quantiser)


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

    def children(self) -> Iterable[object]:
        return (*self.parts.values(), self.state)


@dataclass(slots=True, eq=False)
class WrapperValue:
    """`_rebuild_from_type_v2` around something that is no plain tensor: DTensor, ShardedTensor, other subclasses."""

    subclass: str
    func: object
    args: tuple[object, ...]
    state: object

    def build(self, state: object) -> None:
        self.state = state

    def children(self) -> Iterable[object]:
        return (self.func, self.args, self.state)


@dataclass(slots=True, eq=False)
class Broken:
    """What should have been a tensor or storage and is malformed; `reason` says how, in a sentence without a subject."""

    reason: str
    args: object = None

    def build(self, state: object) -> None:
        """What is done to it no longer matters."""

    def children(self) -> Iterable[object]:
        return (self.args,)


def storage_of(pid: object) -> object:
    """A storage's persistent id as a StorageRef; `("module", …)` and odd ids stay a `Persistent`.

    Raises:
        PickleError: it claims to be a storage and breaks the rules.
    """
    if type(pid) is not tuple or not pid or (pid[0] != "storage" and text_of(pid[0]) != "storage"):
        return Persistent(pid, as_text=False)
    if len(pid) not in (5, 6):
        raise PickleError(f"a storage is described by {len(pid)} values instead of 5 or 6.")
    _, cls, key, location, numel = pid[:5]
    if type(key) is not str:
        key = str(key) if type(key) is int else text_of(key)
    if type(location) is not str:
        location = text_of(location)
    if not isinstance(cls, Global) or key is None or location is None or type(numel) is not int:
        raise PickleError("a storage is described by values of the wrong types.")
    if not 0 <= numel < 1 << 63:
        raise PickleError(f"a storage claims {numel if abs(numel) < 1 << 70 else 'far too many'} elements.")
    view = None
    if len(pid) == 6 and pid[5] is not None:
        numbers = integers(pid[5][1:]) if isinstance(pid[5], tuple) and len(pid[5]) == 3 else None
        if numbers is None or min(numbers) < 0:
            raise PickleError("a storage view is described by values of the wrong types.")
        view = (numbers[0], numbers[1])
    return StorageRef(key, _storage_dtype(cls), numel, location, view)


def lenient_storage_of(pid: object) -> object:
    """As `storage_of`, but what is malformed becomes a `Broken`."""
    try:
        return storage_of(pid)
    except PickleError as error:
        return Broken(error.message, pid)


def _storage_dtype(cls: Global) -> DType | None:
    if cls.name == "UntypedStorage":
        return None
    if cls.module in ("torch", "torch.cuda", "torch.storage"):
        dtype = STORAGE_CLASSES.get(cls.name)
        if dtype is not None:
            return dtype
    raise PickleError(f"it has a storage of an unknown class, {printable(cls.path, 80)}.")


def dtype_of(value: object) -> DType | None:
    """The dtype that a global such as `torch.bfloat16` names."""
    if isinstance(value, Global) and value.module == "torch":
        return BY_NAME.get(value.name) or unknown(value.name)
    return None


def _tensor_v2(made_by: str, args: object) -> object:
    if type(args) is not tuple or len(args) < 4:
        raise PickleError("a tensor is rebuilt from too few values.")
    value = _rebuild(args)
    if len(args) > 4:
        value.requires_grad = args[4] is True
        if len(args) > 6:
            value.ops = _value_ops(args[6])
    return value


def _tensor_v3(made_by: str, args: object) -> object:
    if type(args) is not tuple or len(args) < 7:
        raise PickleError("a tensor is rebuilt from too few values.")
    value = _rebuild(args, args[6])
    value.requires_grad = args[4] is True
    if len(args) > 7:
        value.ops = _value_ops(args[7])
    return value


def _rebuild(args: tuple[object, ...], named_dtype: object = None) -> TensorValue:
    storage, offset = args[0], args[1]
    shape, strides = integers(args[2]), integers(args[3])
    if type(storage) is not StorageRef:
        raise PickleError(
            storage.reason if isinstance(storage, Broken) else "a tensor is rebuilt from something that is no storage."
        )
    if type(offset) is not int or offset < 0 or shape is None or strides is None or len(shape) != len(strides):
        raise PickleError("a tensor has an impossible shape, stride or offset.")
    for n in shape:
        if not 0 <= n < 1 << 63:
            raise PickleError("a tensor has an impossible shape, stride or offset.")
    dtype = storage.dtype if named_dtype is None else dtype_of(named_dtype)
    if dtype is None:
        raise PickleError("a tensor has no known element type.")
    return TensorValue(storage, dtype, shape, strides, offset)


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
    if isinstance(value, (TensorValue, CompositeValue)) and len(args) > 3:
        value.state = args[3]
    return value


def _from_type(made_by: str, args: object) -> object:
    """(func, type, args, state): the result of func(*args) as the subclass `type`."""
    if not isinstance(args, tuple) or len(args) != 4 or not isinstance(args[2], tuple):
        raise PickleError("a tensor subclass is rebuilt from values of the wrong types.")
    func, cls, inner, state = args
    subclass = cls.path if isinstance(cls, Global) else ""
    rebuild = REBUILDS.get(func.path) if isinstance(func, Global) else None
    if rebuild is not None and rebuild is not _from_type and rebuild is not _wrapper_subclass:
        value = rebuild("REDUCE", inner)
        if isinstance(value, (TensorValue, CompositeValue)):
            value.subclass = "" if subclass == "torch.Tensor" else subclass
            value.state = state
        return value
    return WrapperValue(subclass, func, inner, state)


def _meta(made_by: str, args: object) -> object:
    if not isinstance(args, tuple) or len(args) < 3:
        raise PickleError("a meta tensor is rebuilt from too few values.")
    return _without_bytes(args[0], args[1], args[2])


def _wrapper_subclass(made_by: str, args: object) -> object:
    """(cls, dtype, size, stride, storage offset, layout, device, requires_grad): a shape whose data is in its attributes."""
    if not isinstance(args, tuple) or len(args) < 4:
        raise PickleError("a tensor subclass is rebuilt from too few values.")
    value = _without_bytes(args[1], args[2], args[3])
    value.subclass = args[0].path if isinstance(args[0], Global) else ""
    return value


def _without_bytes(dtype_name: object, size: object, stride: object) -> TensorValue:
    dtype, shape, strides = dtype_of(dtype_name), integers(size), integers(stride)
    if dtype is None or shape is None or strides is None or len(shape) != len(strides) or min(shape, default=0) < 0:
        raise PickleError("a tensor without data has an impossible type or shape.")
    return TensorValue(None, dtype, shape, strides, 0)


_SPARSE_PARTS = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _sparse(made_by: str, args: object) -> object:
    """(layout, (parts…, size[, is_coalesced]))."""
    if not isinstance(args, tuple) or len(args) < 2 or not isinstance(args[1], tuple):
        raise PickleError("a sparse tensor is rebuilt from too few values.")
    layout, data = _layout_name(args[0]), args[1]
    names = _SPARSE_PARTS.get(layout)
    if names is None:
        raise PickleError(f"a sparse tensor has the unknown layout {printable(layout, 40)}.")
    size = integers(data[len(names)]) if len(data) > len(names) else None
    if size is None:
        raise PickleError("a sparse tensor has no size.")
    parameters: dict[str, object] = {"size": size}
    if layout == "sparse_coo" and len(data) > 3 and isinstance(data[3], bool):
        parameters["is_coalesced"] = data[3]
    return CompositeValue(layout, dict(zip(names, data, strict=False)), parameters)


def _layout_name(value: object) -> str:
    text = None
    if isinstance(value, Call) and isinstance(value.args, tuple) and value.args:
        text = text_of(value.args[0])
    elif isinstance(value, Global):
        text = value.path
    return (text or "").removeprefix("torch.")


def _nested(made_by: str, args: object) -> object:
    if not isinstance(args, tuple) or len(args) != 4:
        raise PickleError("a nested tensor is rebuilt from the wrong number of values.")
    return CompositeValue("nested", dict(zip(("buffer", "sizes", "strides", "offsets"), args, strict=True)))


def _jagged(made_by: str, args: object) -> object:
    """One dict of parts (values, offsets, lengths, …), most of them tensors."""
    if not isinstance(args, tuple) or not args:
        raise PickleError("a jagged tensor is rebuilt from nothing.")
    found: list[tuple[object, object]] = []
    for argument in args:
        found += getattr(argument, "pairs", None) or []
    kinds = (TensorValue, CompositeValue, Broken)
    parts: dict[str, object] = {k: v for k, v in found if isinstance(k, str) and isinstance(v, kinds)}
    if "_values" in parts or "values" in parts:
        parts = {k.lstrip("_"): v for k, v in parts.items()}
    return CompositeValue("nested_jagged", parts)


def _quantised(made_by: str, args: object) -> object:
    """(storage, offset, size, stride, quantiser, requires_grad, hooks)."""
    if not isinstance(args, tuple) or len(args) < 5:
        raise PickleError("a quantised tensor is rebuilt from too few values.")
    value = _rebuild(args)
    quantiser = sequence(args[4])
    if not quantiser:
        raise PickleError("a quantised tensor has no quantiser.")
    value.quantiser = tuple(quantiser)
    return value


def _from_tensor(made_by: str, args: object) -> object:
    """`_rebuild_device_tensor_from_cpu_tensor` and from numpy: (tensor or array, dtype, device, requires_grad)."""
    if not isinstance(args, tuple) or not args:
        raise PickleError("a tensor is rebuilt from nothing.")
    value = getattr(args[0], "tensor", args[0])
    if not isinstance(value, TensorValue):
        raise PickleError("a tensor is rebuilt from something that is no array.")
    return value


def lenient(rebuild: Collapse) -> Collapse:
    """The same rebuild, with a `Broken` where it would refuse."""

    def attempt(made_by: str, args: object) -> object:
        try:
            return rebuild(made_by, args)
        except PickleError as error:
            return Broken(error.message, args)

    return attempt


REBUILDS: dict[str, Collapse] = {
    "torch._utils._rebuild_tensor": _tensor_v2,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._utils._rebuild_wrapper_subclass": _wrapper_subclass,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _sparse,
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch.nested._internal.nested_tensor._rebuild_njt": _jagged,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_device_tensor_from_numpy": _from_tensor,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _from_tensor,
    "torch._utils._rebuild_xla_tensor": _from_tensor,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch._tensor._rebuild_from_type": _from_type,
}
"""Rebuild calls by dotted name, as `pickles.load(collapse=…)` takes them."""

LENIENT_REBUILDS: dict[str, Collapse] = {path: lenient(rebuild) for path, rebuild in REBUILDS.items()}

PersistentHook = Callable[[object], object]
