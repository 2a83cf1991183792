"""The formats there are, in the order in which they look at a folder.

A format is a module with one object that satisfies `candidate.Format`, and one line here.
"""

from __future__ import annotations

from shardyard.formats.candidate import Format


def formats() -> tuple[Format, ...]:
    """All formats, the most particular first: a ZeRO folder is not a heap of torch files."""
    from shardyard.formats import deepspeed, gguf, lora, npz, tensor_parallel
    from shardyard.formats.dcp import hugging_face as hf_dcp
    from shardyard.formats.dcp import opening as dcp
    from shardyard.formats.hugging_face import folder as hf_folder
    from shardyard.formats.rank_files import opening as rank_files
    from shardyard.formats.torch import single as torch_single

    return (
        deepspeed.FORMAT,
        dcp.FORMAT,
        hf_dcp.FORMAT,
        rank_files.FORMAT,
        tensor_parallel.FORMAT,
        lora.FORMAT,
        hf_folder.FORMAT,
        gguf.FORMAT,
        npz.FORMAT,
        torch_single.FORMAT,
    )
