"""DeepSeek-V4-Pro, V4-Flash and V4.1-Flash. Every figure typed here is one of a published config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from suites.models.config import (
    C4A,
    C128A,
    SWA_ONLY,
    Attention,
    Draft,
    Experts,
    HyperConnections,
    Indexer,
    ModelConfig,
    NativeFormat,
    Rope,
)

_PRO = "config.json of deepseek-ai/DeepSeek-V4-Pro"
_FLASH = "config.json of deepseek-ai/DeepSeek-V4-Flash"
_FLASH_0731 = "config.json of deepseek-ai/DeepSeek-V4-Flash-0731"
_V41 = "text_config in config.json of deepseek-ai/DeepSeek-V4.1-Flash, revision dba1be0a"

V4_PRO = ModelConfig(
    name="v4-pro",
    title="DeepSeek-V4-Pro",
    hidden=7168,
    vocab=129280,
    rms_eps=1e-6,
    compress_ratios=(C128A, C128A) + (C4A, C128A) * 29 + (C4A,),
    attention=Attention(
        heads=128,
        head_dim=512,
        rope_dim=64,
        kv_heads=1,
        q_lora_rank=1536,
        o_lora_rank=1024,
        o_groups=16,
        sliding_window=128,
        source=_PRO,
    ),
    indexer=Indexer(heads=64, head_dim=128, topk=1024, source=_PRO),
    experts=Experts(
        routed=384,
        top_k=6,
        shared=1,
        intermediate=3072,
        routed_scaling_factor=2.5,
        swiglu_limit=10.0,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        hash_layers=3,
        source=_PRO,
    ),
    rope=Rope(
        theta=10000,
        compress_theta=160000,
        yarn_factor=16,
        yarn_original_positions=65536,
        beta_fast=32,
        beta_slow=1,
        max_positions=1048576,
        source=_PRO,
    ),
    hyper=HyperConnections(mult=4, sinkhorn_iterations=20, eps=1e-6, source=_PRO),
    draft=Draft(layers=1, source=_PRO),
    native=NativeFormat(
        dense="FP8 E4M3, scales UE8M0",
        dense_block=(128, 128),
        experts="MXFP4 (E2M1, scales E8M0)",
        expert_block=32,
        source=_PRO,
    ),
    source=_PRO,
)

# The three models share what is not named below: their config.json files have the same figures there, and
# `replace` says so without typing them a second time. The groups' sources name the file of each model.
V4_FLASH = replace(
    V4_PRO,
    name="v4-flash",
    title="DeepSeek-V4-Flash",
    hidden=4096,
    compress_ratios=(SWA_ONLY, SWA_ONLY) + (C4A, C128A) * 20 + (C4A,),
    attention=replace(V4_PRO.attention, heads=64, q_lora_rank=1024, o_groups=8, source=_FLASH),
    indexer=replace(V4_PRO.indexer, topk=512, source=_FLASH),
    experts=replace(V4_PRO.experts, routed=256, intermediate=2048, routed_scaling_factor=1.5, source=_FLASH),
    rope=replace(V4_PRO.rope, source=_FLASH),
    hyper=replace(V4_PRO.hyper, source=_FLASH),
    draft=replace(V4_PRO.draft, source=_FLASH),
    native=replace(V4_PRO.native, source=_FLASH),
    source=_FLASH,
)

V4_1_FLASH = replace(
    V4_FLASH,
    name="v4.1-flash",
    title="DeepSeek-V4.1-Flash",
    hidden=5120,
    rms_eps=1e-20,  # as published; far below the 1e-6 of the other two, so an all-zero row stays zero
    compress_ratios=(SWA_ONLY,) * 2 + (2,) * 18 + (1,) * 20,
    attention=replace(V4_FLASH.attention, q_lora_rank=1280, source=_V41),
    indexer=replace(V4_FLASH.indexer, heads=32, source_layers=(2, 8, 14, 20, 24, 28, 32, 36), source=_V41),
    experts=replace(V4_FLASH.experts, routed=V4_PRO.experts.routed, intermediate=2304, hash_layers=0, source=_V41),
    rope=replace(V4_FLASH.rope, source=_V41),
    hyper=replace(V4_FLASH.hyper, source=_V41),
    draft=Draft(layers=3, routed=128, top_k=3, source=_V41),
    native=replace(V4_FLASH.native, dense_block=(32, 32), source=_V41),
    source=_V41,
    kv_source_layers=(2, 8, 14, 20),
)

V4_FLASH_0731 = replace(
    V4_FLASH,
    name="v4-flash-0731",
    title="DeepSeek-V4-Flash-0731",
    draft=Draft(layers=3, source=_FLASH_0731),
)
"""V4-Flash with three DSpark draft layers. All its main shapes are V4-Flash's, so it is not in ``MODELS``."""

MODELS: Mapping[str, ModelConfig] = MappingProxyType({model.name: model for model in (V4_PRO, V4_FLASH, V4_1_FLASH)})
"""The subject of the suites, by short name."""


def get_model(model: str | ModelConfig) -> ModelConfig:
    """A config as it is, or the one of this name; an unknown name is a ValueError that lists the known ones."""
    if isinstance(model, ModelConfig):
        return model
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; expected one of {', '.join(MODELS)}")
    return MODELS[model]
