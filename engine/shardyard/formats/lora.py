"""LoRA adapters, as PEFT and diffusers write them: one small file of weights beside `adapter_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from shardyard.checkpoint import Checkpoint, CheckpointKind, FileEntry, Part, Tensor, Usage
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.model_config import read_json
from shardyard.formats.safetensors.file import open_safetensors
from shardyard.formats.sniff import Content, sniff_file
from shardyard.formats.torch import sharing
from shardyard.formats.torch.weights import open_weights

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin")


class Lora:
    """Adapters in a folder."""

    name = "LoRA adapter"

    def recognise(self, folder: Folder, unclaimed: Mapping[str, None]) -> Iterable[Candidate]:
        """An adapter's weights; its config alone where the weights are missing."""
        weights = [n for n in WEIGHTS if n in unclaimed and not folder.entries[n].is_dir]
        config = (CONFIG,) if CONFIG in unclaimed and CONFIG in folder.files else ()
        for name in weights:
            yield Candidate(self, folder, Path(folder.entries[name].path), CheckpointKind.LORA, (name, *config))
        if config and not weights and not _other_weights(folder, unclaimed):
            yield Candidate(self, folder, folder.path, CheckpointKind.LORA, config)

    def open(self, candidate: Candidate, options: OpenOptions) -> Checkpoint:
        """Read the header and the adapter's settings."""
        folder = candidate.folder
        files = [FileEntry(n, folder.entries[n].nbytes, "config" if n == CONFIG else "weights") for n in candidate.files]
        checkpoint = Checkpoint(candidate.path, CheckpointKind.LORA, files, {}, None, checked={"headers", "shapes"})
        checkpoint.metadata = _settings(folder)
        name = next((n for n in candidate.files if n != CONFIG), None)
        if name is None:
            checkpoint.findings.append(_no_weights())
            return checkpoint
        tensors = self._read(checkpoint, folder.entries[name].path, options)
        checkpoint.parts["model"] = Part("model", tensors, model=True)
        checkpoint.part = "model"
        if not any(t.numel for t in tensors.values()):
            checkpoint.findings.append(_empty(name, folder))
        return checkpoint

    def _read(self, checkpoint: Checkpoint, path: str, options: OpenOptions) -> dict[str, Tensor]:
        handles = options.handles
        if sniff_file(handles, path).content in (Content.ZIP, Content.PICKLE):
            weights = open_weights(handles, path)
            checkpoint.findings.extend(weights.findings)
            checkpoint.globals = dict(weights.globals)
            used = sum(u.touched for u in sharing.analyse(weights.tensors.values()))
            checkpoint.usage = Usage(
                weights=used, wasted=weights.stored - used, other=max(0, handles.size(path) - weights.stored)
            )
            return weights.tensors
        file = open_safetensors(handles, path)
        checkpoint.findings.extend(file.findings)
        used = sum(t.nbytes for t in file.tensors.values())
        checkpoint.usage = Usage(weights=used, other=max(0, handles.size(path) - used))
        checkpoint.metadata = {**checkpoint.metadata, **file.metadata}
        return file.tensors


FORMAT = Lora()


def _other_weights(folder: Folder, unclaimed: Mapping[str, None]) -> bool:
    """Whether the config belongs to weights of another kind: a model saved with its adapter inside, a training checkpoint."""
    claimed = folder.entries.keys() - unclaimed.keys()
    return bool(claimed) or any(name.endswith((".safetensors", ".bin", ".pt", ".pth")) for name in folder.files)


def _settings(folder: Folder) -> dict[str, str]:
    """What adapter_config.json says of the adapter; nothing is made up where it is silent."""
    config = read_json(folder, CONFIG)
    if not isinstance(config, dict):
        return {}
    wanted = {"r": "rank", "lora_alpha": "alpha", "base_model_name_or_path": "base model", "peft_type": "kind"}
    return {shown: str(config[key]) for key, shown in wanted.items() if config.get(key) is not None}


def _no_weights() -> Finding:
    text = f"{CONFIG} is here, but the adapter's weights ({WEIGHTS[0]}) are not."
    remedy = "Copy the weights from where the adapter was saved."
    return Finding("missing-shard", Severity.ERROR, text, remedy, (WEIGHTS[0],), blocks=Blocks.UNLESS_ALLOWED)


def _empty(name: str, folder: Folder) -> Finding:
    text = (
        f"{name} is an empty adapter: it holds no values, because it was saved while the parameters were spread over the ranks."
    )
    steps = sorted(n for n in folder.folders if n.startswith("global_step"))
    remedy = f"The real data is in {steps[-1]}; merge that." if steps else "Merge the training checkpoint (global_step…) instead."
    return Finding("placeholder", Severity.ERROR, text, remedy, (name, *steps), blocks=Blocks.MERGE)
