"""The config.json that goes with a checkpoint: found, read with care, and asked about ties and dtypes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shardyard.dtypes import SHORT_NAMES
from shardyard.errors import ShardyardError
from shardyard.formats.folder import Folder

NAME = "config.json"


def read_json(folder: Folder, name: str, most: int = 16 << 20) -> object:
    """A JSON file of the folder; None if it is not there or cannot be read."""
    try:
        data = folder.small_file(name, most)
        return json.loads(data.decode("utf-8-sig")) if data else None
    except (ShardyardError, ValueError, RecursionError):
        return None


def read_config(folder: Folder) -> Mapping[str, object] | None:
    """The folder's config.json, if it has one that is an object."""
    found = read_json(folder, NAME)
    return found if isinstance(found, dict) else None


def find_config(folder: Folder, *, above: bool) -> tuple[Mapping[str, object] | None, Path | None]:
    """(config, folder it lies in): beside the checkpoint, in `huggingface/`, or with `above` one level up."""
    places = [folder]
    if "huggingface" in folder.folders:
        places.append(folder.sub("huggingface"))
    if above:
        parent = folder.parent()
        places.append(parent)
        if (parent.path / "huggingface").is_dir():
            places.append(parent.sub("huggingface"))
    for place in places:
        if NAME in place.files:
            config = read_config(place)
            if config is not None:
                return config, place.path
    return None, None


def text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part that describes the language model: `text_config` where there is one."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def dtype(config: Mapping[str, object] | None) -> str | None:
    """The torch dtype name that config.json gives (`dtype`, or `torch_dtype` of older writers)."""
    if config is None:
        return None
    for part in (config, text_part(config)):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key)
            if isinstance(value, str):
                name = value.removeprefix("torch.")
                return SHORT_NAMES.get(name, name)
    return None


TIED_BY_DEFAULT = frozenset(
    """
    albert aya_vision bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small blip
    blip-2 blip_text_model bloom camembert canary cohere cohere2 cohere2_moe cohere2_vision cohere_compass_text
    colmodernvbert colpali convbert cpmant csm ctrl d_fine dab-detr data2vec-text deberta deberta-v2 deepseek_vl
    deepseek_vl_hybrid deformable_detr deimv2 diffusion_gemma diffusion_gemma_text distilbert electra encoder-decoder
    ernie ernie4_5 ernie4_5_moe ernie4_5_vl_moe ernie4_5_vl_moe_text esm falcon falcon_mamba flaubert flava florence2
    fnet fun_asr_nano funnel gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text gemma4_unified
    gemma4_unified_assistant gemma4_unified_text glmasr got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox_japanese
    granite_docling granite_docling_text granite_speech granite_speech5_ctc granite_speech_plus granite_swa
    grounding-dino gte hunyuan_vl hunyuan_vl_text hyperclovax_vision_v2 ibert instructblip instructblipvideo internvl
    janus jetmoe jina_embeddings_v3 kimi_k25 kosmos-2 kosmos-2.5 kosmos_2_5_text_model kosmos_2_text_model lara_mini
    layoutlm led lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr longformer longt5 luke lxmert m2m_100 mamba marian
    mbart megatron-bert mimi mimi_decoder mimi_encoder minicpm3 minicpm_ocr mistral3 mm-grounding-dino mobilebert
    modernbert modernbert-decoder moonshine moss_transcribe_diarize mpnet mpt mra mt5 mvp neomme nllb-moe nomic_bert
    nystromformer openai-gpt opt ovis2 paddleocr_vl paddleocr_vl_text paligemma pe_audio pe_audio_video pe_video
    pegasus pegasus_x plbart pop2piano pp_chart2table pp_doclayout_v3 pp_doclayout_v4 prophetnet qwen2_5_omni
    qwen2_5_omni_text qwen3_asr qwen3_vl_moe_text rag recurrent_gemma roberta roberta-prelayernorm roc_bert roformer
    rt_detr_v2 sam sam_hq seamless_m4t seamless_m4t_v2 shieldgemma2 smollm3 speech-encoder-decoder speech_to_text
    speecht5 squeezebert starcoder2 switch_transformers t5 t5_gemma_module t5gemma t5gemma2 t5gemma2_decoder
    t5gemma2_encoder t5gemma2_text tapas trocr udop umt5 vaultgemma vilt vision-encoder-decoder
    vision-text-dual-encoder visual_bert voxtral_realtime whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso
    youtu zamba zamba2 zaya
    """.split()  # noqa: SIM905  (a table is easier to read and to diff than 200 quoted names)
)
"""Model types whose configs tie the embeddings when config.json does not say (transformers 5.24): writers leave defaults out."""

UNTIED_BY_DEFAULT = frozenset(
    """
    apertus arcee bamba codegen dbrx deepseek_v2 deepseek_v3 exaone4 fuyu glm glm4 glm4_moe gpt_neox gpt_oss gptj
    granite granitemoe helium hunyuan_v1_dense jamba llama llama4 llama4_text minimax ministral mistral mixtral mllama
    nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss
    stablelm
    """.split()  # noqa: SIM905  (a table is easier to read and to diff than 200 quoted names)
)
"""Common language models whose configs do not; of all other types nothing is assumed."""


def ties_embeddings(config: Mapping[str, object] | None) -> bool | None:
    """Whether the output head is the input embedding, by config.json; None where it does not tell."""
    if config is None:
        return None
    inner = text_part(config)
    for part in (config, inner):
        value = part.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    for part in (inner, config):
        kind = part.get("model_type")
        if isinstance(kind, str) and (kind in TIED_BY_DEFAULT or kind in UNTIED_BY_DEFAULT):
            return kind in TIED_BY_DEFAULT
    return None


def says_ties(config: Mapping[str, object] | None) -> bool:
    """Whether the flag itself stands in config.json."""
    return config is not None and any(isinstance(p.get("tie_word_embeddings"), bool) for p in (config, text_part(config)))


def quantised(config: Mapping[str, object] | None) -> str:
    """The method of `quantization_config`; empty if there is none."""
    if config is None:
        return ""
    for part in (config, text_part(config)):
        inner = part.get("quantization_config")
        if isinstance(inner, dict):
            method = inner.get("quant_method")
            return method if isinstance(method, str) and method else "unknown"
    return ""
