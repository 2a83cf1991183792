"""A tiny Llama with tied embeddings: config, names, shapes, and values from a fixed seed."""

from __future__ import annotations

import math
import random
import sys
from array import array
from functools import cached_property

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 160,
    "max_position_embeddings": 128,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 320,
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes in module order, the tied head left out."""
    hidden, inner, keys = 64, 160, 32
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (320, hidden)}
    for i in range(3):
        layer = f"model.layers.{i}."
        found |= {
            layer + "self_attn.q_proj.weight": (hidden, hidden),
            layer + "self_attn.k_proj.weight": (keys, hidden),
            layer + "self_attn.v_proj.weight": (keys, hidden),
            layer + "self_attn.o_proj.weight": (hidden, hidden),
            layer + "mlp.gate_proj.weight": (inner, hidden),
            layer + "mlp.up_proj.weight": (inner, hidden),
            layer + "mlp.down_proj.weight": (hidden, inner),
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
        }
    return found | {"model.norm.weight": (hidden,)}


class DemoModel:
    """The weights, as little-endian bytes by name."""

    def __init__(self, seed: int = 2000) -> None:
        self.shapes = shapes()
        self._random = random.Random(seed)

    @cached_property
    def float32(self) -> dict[str, bytes]:
        """The fp32 masters."""
        return {name: little(self._values(name, math.prod(shape))) for name, shape in self.shapes.items()}

    @cached_property
    def bfloat16(self) -> dict[str, bytes]:
        """The masters rounded to the nearest bfloat16."""
        return {name: to_bfloat16(data) for name, data in self.float32.items()}

    def noise(self, numel: int, scale: float) -> bytes:
        """Something that looks like an optimizer moment."""
        return little(array("f", (abs(self._random.gauss(0, scale)) for _ in range(numel))))

    def _values(self, name: str, numel: int) -> array[float]:
        if "norm" in name:
            return array("f", (1 + self._random.gauss(0, 0.01) for _ in range(numel)))
        return array("f", (self._random.gauss(0, 0.02) for _ in range(numel)))


def little(values: array[float]) -> bytes:
    """An array's bytes in little-endian order."""
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def to_bfloat16(float32: bytes) -> bytes:
    """Round finite float32 values to the nearest bfloat16, ties to even."""
    bits = array("I", float32)
    if sys.byteorder == "big":
        bits.byteswap()
    halves = array("H", ((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))
    if sys.byteorder == "big":
        halves.byteswap()
    return halves.tobytes()
