"""What people use today, as one command each: run as `python -m tests.bench.peers NAME SOURCE OUT`."""

from __future__ import annotations

import sys
from pathlib import Path


def zero_to_fp32(source: Path, out: Path) -> None:
    """DeepSpeed's own script."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    convert_zero_checkpoint_to_fp32_state_dict(str(source), str(out), safe_serialization=True)


def merge_weights(source: Path, out: Path) -> None:
    """`accelerate merge-weights`."""
    from accelerate.utils import merge_fsdp_weights

    merge_fsdp_weights(str(source), str(out), safe_serialization=True)


def dcp_to_torch_save(source: Path, out: Path) -> None:
    """torch's converter, into one torch file."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    out.mkdir()
    dcp_to_torch_save(str(source), str(out / "model.pt"))


def load_and_save(source: Path, out: Path) -> None:
    """Every shard loaded and written again as safetensors."""
    import torch
    from safetensors.torch import save_file

    out.mkdir()
    for path in sorted(source.glob("*.bin")):
        state = torch.load(path, weights_only=True, mmap=True)
        save_file(state, out / (path.stem + ".safetensors"), metadata={"format": "pt"})


def clone_every_tensor(source: Path, out: Path) -> None:
    """The usual recipe against bloat."""
    import torch

    out.mkdir()
    for path in sorted(source.glob("*.bin")):
        state = torch.load(path, weights_only=True)
        torch.save({name: t.clone() for name, t in state.items()}, out / path.name)


def allclose(a: Path, b: Path) -> None:
    """Both files loaded, and `torch.allclose` of each pair."""
    import torch
    from safetensors.torch import load_file

    left, right = load_file(a), load_file(b)
    assert left.keys() == right.keys() and all(torch.allclose(left[name], right[name]) for name in left)


PEERS = {f.__name__: f for f in (zero_to_fp32, merge_weights, dcp_to_torch_save, load_and_save, clone_every_tensor, allclose)}

if __name__ == "__main__":
    PEERS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
