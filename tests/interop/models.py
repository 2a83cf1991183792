"""Tiny models of the architectures whose exports must load."""

from __future__ import annotations

from typing import Any

import torch

COMMON = {"use_cache": False}


def build(name: str) -> Any:
    """A freshly made model from a fixed seed."""
    torch.manual_seed(7)
    return _BUILDERS[name]()


def llama(*, tie: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=67, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=tie, **COMMON,
        )
    )  # fmt: skip


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=61, n_embd=20, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **COMMON,
        )
    )  # fmt: skip


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=53, d_model=20, d_kv=5, d_ff=28, num_layers=2, num_decoder_layers=2, num_heads=4,
            decoder_start_token_id=0, dropout_rate=0.0, **COMMON,
        )
    )  # fmt: skip


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=67, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True, **COMMON,
        )
    )  # fmt: skip


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=67, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2, **COMMON,
        )
    )  # fmt: skip


_BUILDERS = {
    "llama": llama,
    "llama-tied": lambda: llama(tie=True),
    "gpt2": gpt2,
    "t5": t5,
    "qwen2": qwen2,
    "mixtral": mixtral,
}


def inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """A small batch of token ids with labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (2, 8), generator=generator)
    return {"input_ids": ids, "labels": ids}


def logits(model: Any) -> torch.Tensor:
    """The model's answer to the fixed batch."""
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(**inputs(model)).logits
        return result
