"""torch itself as the judge: files loaded without their foreign classes, and two loaded objects compared to the last identity."""

from __future__ import annotations

import pickle
import types
import warnings
from pathlib import Path
from typing import Any

import torch


class _Named(type):
    """What is inside a class that is not there: methods and nested classes, by name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return stub(cls.__module__, f"{cls.__qualname__}.{name}", Stub)


class Stub(metaclass=_Named):
    """Stands for a class or function that is not importable here; keeps whatever was done to it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Stub:
        made = object.__new__(cls)
        made.did = [("new", args, kwargs)]
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything was kept by `__new__`."""

    did: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.did.append(("state", state))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.did.append(("item", key, value))

    def append(self, value: Any) -> None:
        self.did.append(("append", value))

    def extend(self, values: Any) -> None:
        self.did.extend(("append", v) for v in values)


_made: dict[tuple[str, str], type] = {}


def stub(module: str, name: str, base: type) -> type:
    """The one stand-in for a name."""
    if (module, name) not in _made:
        kind = type(base) if base is Stub else type
        _made[module, name] = kind(name.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": name})
    return _made[module, name]


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("deepspeed", "transformers", "accelerate", "acme_private_training", "megatron"):
            return stub(module, name, torch.Tensor if "Tensor" in name else Stub)
        return super().find_class(module, name)


_pickles = types.SimpleNamespace(Unpickler=_Unpickler, load=lambda f, **k: _Unpickler(f, **k).load(), __name__="stubbed")


def load(path: Path) -> Any:
    """What torch makes of one of the fixtures (never of a hostile file)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_pickles)


def raw(tensor: torch.Tensor) -> bytes:
    """The row-major bytes of its values."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    plain = plain.int_repr() if plain.is_quantized else plain.resolve_conj().resolve_neg().contiguous()
    return b"" if plain.numel() == 0 else plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse or nested one is made of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return [tensor.values(), *([tensor.offsets()] if tensor.layout is torch.jagged else [tensor._nested_tensor_size()])]
    return [tensor]


class Differ(AssertionError):
    """Two loaded objects differ."""


class Compare:
    """One comparison: values, types, attributes, which objects are one, and which tensors are one view."""

    def __init__(self) -> None:
        self.forth: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.views: dict[Any, Any] = {}
        self.kept: list[Any] = []

    def same(self, a: Any, b: Any, where: str = "") -> None:
        """Raise Differ unless b means what a means."""
        if type(a) is not type(b):
            raise Differ(f"{where}: {type(a)} became {type(b)}")
        if a is None or isinstance(
            a, (bool, int, float, str, bytes, complex, type, types.FunctionType, torch.dtype, torch.layout)
        ):
            if not (a == b or a != a):
                raise Differ(f"{where}: {a!r} became {b!r}")
            return
        if self.forth.setdefault(id(a), id(b)) != id(b) or self.back.setdefault(id(b), id(a)) != id(a):
            if a != ():
                raise Differ(f"{where}: shared differently")
        elif (id(a), "seen") in self.views:
            return
        self.views[id(a), "seen"] = None
        self.kept += (a, b)
        if isinstance(a, torch.Tensor):
            self.tensors(a, b, where)
        elif isinstance(a, (torch.UntypedStorage, torch.TypedStorage)):
            x, y = (s if isinstance(s, torch.UntypedStorage) else s.untyped() for s in (a, b))
            if x.tolist() != y.tolist():
                raise Differ(f"{where}: a storage has other bytes")
        else:
            self.containers(a, b, where)

    def tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        facts = [(t.dtype, tuple(t.shape) if not t.is_nested else t.dim(), t.layout, t.requires_grad, t.device) for t in (a, b)]
        if facts[0] != facts[1] or (a.is_conj(), a.is_neg()) != (b.is_conj(), b.is_neg()):
            raise Differ(f"{where}: {facts[0]} became {facts[1]}")
        if a.is_quantized:
            self.same(str(a.qscheme()), str(b.qscheme()), where)
        if a.device.type != "meta":
            for x, y in zip(parts(a.detach()), parts(b.detach()), strict=True):
                if raw(x) != raw(y):
                    raise Differ(f"{where}: other values")
                if x.numel():
                    view = (x.untyped_storage().data_ptr(), x.storage_offset(), tuple(x.shape), x.stride(), x.dtype)
                    other = (y.untyped_storage().data_ptr(), y.storage_offset(), tuple(y.shape), y.stride(), y.dtype)
                    if (
                        self.views.setdefault(("old", view), other) != other
                        or self.views.setdefault(("new", other), view) != view
                    ):
                        raise Differ(f"{where}: tied differently")
        self.same(dict(vars(a)), dict(vars(b)), f"{where}.@")

    def containers(self, a: Any, b: Any, where: str) -> None:
        if isinstance(a, dict):
            if len(a) != len(b):
                raise Differ(f"{where}: {len(a)} keys became {len(b)}")
            for (k, v), (j, w) in zip(a.items(), b.items(), strict=True):
                self.same(k, j, f"{where} key")
                self.same(v, w, f"{where}.{k}")
        elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
            if len(a) != len(b):
                raise Differ(f"{where}: {len(a)} items became {len(b)}")
            for i, (v, w) in enumerate(zip(a, b, strict=True)):
                self.same(v, w, f"{where}.{i}")
        elif isinstance(a, (set, frozenset)):
            if {repr(v) for v in a} != {repr(v) for v in b}:
                raise Differ(f"{where}: another set")
        elif type(a).__module__ == "numpy":
            objects = getattr(a, "dtype", None) == "O"
            if (a.tolist() != b.tolist()) if objects else (a.tobytes() != b.tobytes()):
                raise Differ(f"{where}: another array")
        elif type(a).__reduce__ is object.__reduce__ and not hasattr(a, "__dict__") and repr(a) != repr(b):
            raise Differ(f"{where}: {a!r} became {b!r}")
        if hasattr(a, "__dict__"):
            self.same(dict(vars(a)), dict(vars(b)), f"{where}.")
