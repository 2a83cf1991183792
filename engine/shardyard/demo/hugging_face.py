"""Hugging Face folders: a tied model, and shards that store one flat buffer three times."""

from __future__ import annotations

import json
from pathlib import Path

from shardyard.demo.model import CONFIG, EMBEDDING, HEAD, DemoModel
from shardyard.dtypes import BY_NAME
from shardyard.formats.torch.writer import Storage, ordered_dict, tensor, write_torch


def write_side_files(folder: Path) -> None:
    """config.json and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text('{\n  "bos_token_id": 1,\n  "eos_token_id": 2\n}\n')


def write_weights(folder: Path, model: DemoModel) -> None:
    """model.safetensors in bfloat16, the tied head left out as transformers does."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name in sorted(model.shapes):
        begin = len(data)
        data += model.bfloat16[name]
        entries[name] = {"dtype": "BF16", "shape": model.shapes[name], "data_offsets": [begin, len(data)]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_tied(folder: Path, model: DemoModel) -> None:
    """A model as `save_pretrained` writes it."""
    write_side_files(folder)
    write_weights(folder, model)


def write_bloated(folder: Path, model: DemoModel, shards: int = 3) -> None:
    """Three .bin shards of views into one flat buffer: each shard stores the whole buffer."""
    write_side_files(folder)
    flat = b"".join(model.bfloat16.values())
    offsets, offset = {}, 0
    for name in model.shapes:
        offsets[name] = offset
        offset += len(model.bfloat16[name]) // 2
    offsets[HEAD] = offsets[EMBEDDING]
    names = [*model.shapes, HEAD]
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"pytorch_model-{shard + 1:05d}-of-{shards:05d}.bin"
        storage = Storage(BY_NAME["bfloat16"], flat)
        # Tied names stay in one shard, as transformers keeps them.
        mine = [n for i, n in enumerate(model.shapes) if i * shards // len(model.shapes) == shard] + (
            [HEAD] if shard == 0 else []
        )
        views = [(n, tensor(storage, model.shapes.get(n, model.shapes[EMBEDDING]), offsets[n])) for n in mine]
        write_torch(folder / file, ordered_dict(views))
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": len(flat)}, "weight_map": {n: weight_map[n] for n in names}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
