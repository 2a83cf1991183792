"""Small model files for tests, written by the rules of their formats and by nothing that is under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}

Values = Mapping[str, "np.ndarray | tuple[str, Sequence[int], bytes]"]
"""Arrays by name, or (dtype as in a header, shape, bytes) for what numpy lacks."""


def safetensors_bytes(tensors: Values, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    data = b""
    for name, value in tensors.items():
        if isinstance(value, np.ndarray):
            dtype, shape, raw = _NAMES[value.dtype.name], value.shape, np.ascontiguousarray(value).tobytes()
        else:
            dtype, shape, raw = value[0], tuple(value[1]), value[2]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(path: Path, tensors: Values, metadata: Mapping[str, str] | None = None) -> None:
    """Write one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes(tensors, {"format": "pt"} if metadata is None else metadata))


def write_sharded(folder: Path, shards: Sequence[Values], *, stem: str = "model", total: int | None = None) -> dict[str, str]:
    """Shards with their index; returns the weight map."""
    weight_map: dict[str, str] = {}
    nbytes = 0
    for i, tensors in enumerate(shards, 1):
        name = f"{stem}-{i:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
        nbytes += sum(v.nbytes if isinstance(v, np.ndarray) else len(v[2]) for v in tensors.values())
    write_index(folder, weight_map, total=nbytes if total is None else total, stem=stem)
    return weight_map


def write_index(folder: Path, weight_map: Mapping[str, str], *, total: int, stem: str = "model") -> None:
    """An index alone."""
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(weight_map)})
    (folder / f"{stem}.safetensors.index.json").write_text(text)


def write_config(folder: Path, **values: object) -> None:
    """A config.json of a small Llama, with changes."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "dtype": "float32"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False, **values}))


def llama(layers: int = 2, *, head: bool = True, dtype: str = "float32") -> dict[str, np.ndarray]:
    """The state dict of a tiny Llama, its values counted up."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (16, 8)}
    for i in range(layers):
        shapes[f"model.layers.{i}.self_attn.q_proj.weight"] = (8, 8)
        shapes[f"model.layers.{i}.mlp.up_proj.weight"] = (12, 8)
        shapes[f"model.layers.{i}.input_layernorm.weight"] = (8,)
    shapes["model.norm.weight"] = (8,)
    if head:
        shapes["lm_head.weight"] = (16, 8)
    found = {}
    at = 1
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        found[name] = (np.arange(at, at + count) % 1000).astype(dtype).reshape(shape)
        at += count
    return found
