"""The configs against the published config.json files, typed here a second time on purpose."""

from __future__ import annotations

import pytest

from suites.models import C4A, C128A, MODELS, SWA_ONLY, V4_FLASH_0731, ModelConfig

NAMES = ("v4-pro", "v4-flash", "v4.1-flash")

# field -> (Pro, Flash, V4.1-Flash)
CONFIG = {
    "hidden": (7168, 4096, 5120),
    "layers": (61, 43, 40),
    "vocab": (129280, 129280, 129280),
    "rms_eps": (1e-6, 1e-6, 1e-20),
    "experts.intermediate": (3072, 2048, 2304),
    "experts.routed": (384, 256, 384),
    "experts.top_k": (6, 6, 6),
    "experts.shared": (1, 1, 1),
    "experts.routed_scaling_factor": (2.5, 1.5, 1.5),
    "experts.swiglu_limit": (10.0, 10.0, 10.0),
    "experts.scoring_func": ("sqrtsoftplus",) * 3,
    "experts.topk_method": ("noaux_tc",) * 3,
    "experts.norm_topk_prob": (True, True, True),
    "experts.hash_layers": (3, 3, 0),
    "draft.layers": (1, 1, 3),
    "draft.routed": (None, None, 128),
    "draft.top_k": (None, None, 3),
    "attention.heads": (128, 64, 64),
    "attention.head_dim": (512, 512, 512),
    "attention.nope_dim": (448, 448, 448),
    "attention.rope_dim": (64, 64, 64),
    "attention.kv_heads": (1, 1, 1),
    "attention.q_lora_rank": (1536, 1024, 1280),
    "attention.o_lora_rank": (1024, 1024, 1024),
    "attention.o_groups": (16, 8, 8),
    "attention.sliding_window": (128, 128, 128),
    "indexer.heads": (64, 64, 32),
    "indexer.head_dim": (128, 128, 128),
    "indexer.topk": (1024, 512, 512),
    "hyper.mult": (4, 4, 4),
    "hyper.sinkhorn_iterations": (20, 20, 20),
    "hyper.eps": (1e-6, 1e-6, 1e-6),
    "rope.theta": (10000, 10000, 10000),
    "rope.compress_theta": (160000, 160000, 160000),
    "rope.yarn_factor": (16, 16, 16),
    "rope.yarn_original_positions": (65536, 65536, 65536),
    "rope.beta_fast": (32, 32, 32),
    "rope.beta_slow": (1, 1, 1),
    "rope.max_positions": (1048576, 1048576, 1048576),
    "native.dense": ("FP8 E4M3, scales UE8M0",) * 3,
    "native.experts": ("MXFP4 (E2M1, scales E8M0)",) * 3,
    "native.dense_block": ((128, 128), (128, 128), (32, 32)),
    "native.expert_block": (32, 32, 32),
}


def test_models_are_the_three_of_the_tables() -> None:
    assert tuple(MODELS) == NAMES
    assert [m.title for m in MODELS.values()] == [
        "DeepSeek-V4-Pro",
        "DeepSeek-V4-Flash",
        "DeepSeek-V4.1-Flash",
    ]


@pytest.mark.parametrize("field", CONFIG)
def test_config_figure(field: str) -> None:
    found = []
    for model in MODELS.values():
        value: object = model
        for part in field.split("."):
            value = getattr(value, part)
        found.append(value)
    assert tuple(found) == CONFIG[field]


# Ratios as the config.json files list them, draft layers included; written out in full.
# fmt: off
PRO_RATIOS = [
    128, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 0,
]
V41_RATIOS = [
    0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1,
]
# fmt: on


def test_compress_ratios_as_published() -> None:
    assert list(MODELS["v4-pro"].config_compress_ratios) == PRO_RATIOS
    assert list(MODELS["v4.1-flash"].compress_ratios) == V41_RATIOS
    flash = MODELS["v4-flash"].config_compress_ratios
    assert (len(flash), flash[:4], flash[-4:]) == (44, (0, 0, 4, 128), (4, 128, 4, 0))
    assert len(V4_FLASH_0731.config_compress_ratios) == 46
    assert V4_FLASH_0731.config_compress_ratios[-4:] == (4, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("v4-pro", {C4A: 30, C128A: 31}),
        ("v4-flash", {SWA_ONLY: 2, C4A: 21, C128A: 20}),
        ("v4.1-flash", {SWA_ONLY: 2, 2: 18, 1: 20}),
    ],
)
def test_layers_by_kind(name: str, kinds: dict[int, int]) -> None:
    assert MODELS[name].layer_kinds == kinds


def test_which_layers() -> None:
    pro: ModelConfig = MODELS["v4-pro"]
    assert pro.layers_with(C4A) == tuple(range(2, 61, 2))
    assert pro.layers_with(C128A) == (0, *range(1, 60, 2))
    assert pro.layers_with(SWA_ONLY) == ()
    assert MODELS["v4-flash"].layers_with(SWA_ONLY) == (0, 1)
    v41 = MODELS["v4.1-flash"]
    assert v41.kv_source_layers == (2, 8, 14, 20)
    assert v41.indexer.source_layers == (2, 8, 14, 20, 24, 28, 32, 36)
    assert (pro.index_layers, MODELS["v4-flash"].index_layers, v41.index_layers) == (30, 21, 8)
