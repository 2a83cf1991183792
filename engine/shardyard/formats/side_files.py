"""Files that lie beside weights: what belongs to the model, what to the training run, and what is neither."""

from __future__ import annotations

import re

from shardyard.checkpoint import FileEntry
from shardyard.formats.folder import Folder

MODEL_FILES = re.compile(
    r"(?:.*config\.json|tokenizer.*|vocab.*|merges\.txt|special_tokens_map\.json|added_tokens\.json|[\w.-]*\.model"
    r"|chat_template.*|modeling_\w*\.py|configuration_\w*\.py|tokenization_\w*\.py|processing_\w*\.py|LICENSE.*|README\.md"
    r"|model_index\.json|quant.*\.json|sentence.*\.json|modules\.json|\.shardyard\.json|\.gitattributes)",
    re.IGNORECASE,
)
TRAINING_STATE = re.compile(r"optimizer(?:_\d+)?(?:_rank_?\d+)?\.(?:pt|bin|pth|safetensors)|optim_\w+\.pt")
TRAINING_FILES = re.compile(
    r"(?:scheduler(?:_\d+)?\.(?:pt|bin)|lr_scheduler\.(?:pt|bin)|rng_state(?:_\d+)?\.pth|random_states_\d+\.pkl|training_args\.bin"
    r"|trainer_state\.json|scaler\.pt|grad_scaler\.pt|sampler(?:_\d+)?\.bin|dl_state_dict(?:_\d+)?\.bin|custom_checkpoint_\d+\.pkl"
    r"|extra_state_\w+\.pt|latest|latest_checkpointed_iteration\.txt|zero_to_fp32\.py|zero_to_torch\.py|fsdp_config\.json"
    r"|events\.out\.tfevents\..*)"
)


def is_training_file(name: str) -> bool:
    """Whether a file's name says that it is a run's optimizer, scheduler or random state: never a model by itself."""
    return bool(TRAINING_STATE.fullmatch(name) or TRAINING_FILES.fullmatch(name))


def side_files(folder: Folder) -> list[FileEntry]:
    """The files of a folder that go with the weights in it."""
    found = []
    for name, entry in folder.files.items():
        if name == "config.json" or name == "adapter_config.json":
            found.append(FileEntry(name, entry.nbytes, "config"))
        elif TRAINING_STATE.fullmatch(name):
            found.append(FileEntry(name, entry.nbytes, "masters+optimizer"))
        elif TRAINING_FILES.fullmatch(name) or MODEL_FILES.fullmatch(name):
            found.append(FileEntry(name, entry.nbytes, "other"))
    return found
