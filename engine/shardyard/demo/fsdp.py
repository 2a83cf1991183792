"""An FSDP checkpoint as accelerate saves it: torch.distributed.checkpoint folders one level down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from shardyard.demo import hugging_face
from shardyard.demo.model import EMBEDDING, HEAD, DemoModel
from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.pickles import writer as pickle_writer
from shardyard.formats.torch.writer import Storage, instance, size, tensor, torch_bytes

_FLOAT32 = BY_NAME["float32"]
_METADATA = "torch.distributed.checkpoint.metadata"


def write_dcp(folder: Path, model: DemoModel, *, world: int) -> None:
    """`checkpoint-N` with `pytorch_model_fsdp_0` and `optimizer_0`, rows split over the ranks."""
    hugging_face.write_side_files(folder)
    weights = {f"model.{name}": (model.float32[name], shape) for name, shape in model.shapes.items()}
    weights[f"model.{HEAD}"] = (model.float32[EMBEDDING], model.shapes[EMBEDDING])
    _write_part(folder / "pytorch_model_fsdp_0", weights, ("model",), world)
    moments = {
        f"optimizer.state.{name}.{moment}": (model.noise(math.prod(shape), 1e-4), shape)
        for name, shape in model.shapes.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    _write_part(folder / "optimizer_0", moments, ("optimizer", "state"), world)


@dataclass
class _Part:
    """The tables of one `.metadata`, filled tensor by tensor."""

    files: dict[int, bytearray] = field(default_factory=dict)
    tensors: Dict = field(default_factory=Dict)
    places: Dict = field(default_factory=Dict)
    planner: Dict = field(default_factory=Dict)


def _write_part(folder: Path, tensors: dict[str, tuple[bytes, tuple[int, ...]]], path: tuple[str, ...], world: int) -> None:
    folder.mkdir(parents=True)
    part = _Part({rank: bytearray() for rank in range(world)})
    for name, (data, shape) in tensors.items():
        _add(part, name, data, shape, world)
        rest = name.split(".", len(path))[-1]
        names = (*path, rest) if path == ("model",) else (*path, *rest.rsplit(".", 1))
        part.planner.pairs.append((name, names))
    for rank, content in part.files.items():
        (folder / f"__{rank}_0.distcp").write_bytes(content)
    state = Dict()
    state.pairs.extend(
        [
            ("state_dict_metadata", part.tensors),
            ("planner_data", part.planner),
            ("storage_data", part.places),
            ("storage_meta", None),
        ]
    )
    (folder / ".metadata").write_bytes(pickle_writer.dump(instance(_METADATA, "Metadata", state), 4))


def _add(part: _Part, name: str, data: bytes, shape: tuple[int, ...], world: int) -> None:
    rows = -(-shape[0] // world)
    row_bytes = len(data) // shape[0]
    chunks: list[object] = []
    for rank in range(world):
        start, stop = min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])
        if start == stop:
            continue
        offsets, sizes = (start, *(0 for _ in shape[1:])), (stop - start, *shape[1:])
        piece = torch_bytes(tensor(Storage(_FLOAT32, data[start * row_bytes : stop * row_bytes]), sizes), "archive")
        index = _instance("MetadataIndex", fqn=name, offset=size(offsets), index=len(chunks))
        info = instance("torch.distributed.checkpoint.filesystem", "_StorageInfo", _state(
            relative_path=f"__{rank}_0.distcp", offset=len(part.files[rank]), length=len(piece)
        ))  # fmt: skip
        part.places.pairs.append((index, info))
        part.files[rank] += piece
        chunks.append(_instance("ChunkStorageMetadata", offsets=size(offsets), sizes=size(sizes)))
    layout = Call("REDUCE", Global("torch.serialization", "_get_layout"), ("torch.strided",))
    memory_format = Call("REDUCE", Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = instance(_METADATA, "TensorProperties", (Global("torch", "float32"), layout, False, memory_format, False))
    part.tensors.pairs.append((name, _instance("TensorStorageMetadata", properties=properties, size=size(shape), chunks=chunks)))


def _instance(name: str, **attributes: object) -> Call:
    return instance(_METADATA, name, _state(**attributes))


def _state(**attributes: object) -> Dict:
    state = Dict()
    state.pairs.extend(attributes.items())
    return state
