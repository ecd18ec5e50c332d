"""Published shapes against the derived ones. The tables here are typed on purpose: they are the oracle."""

from __future__ import annotations

import pytest

from suites.models import (
    EP,
    MODELS,
    QUOTED_FIGURES,
    TP,
    LinearShape,
    expected_experts_hit,
    expert_gemms,
    experts_per_rank,
    linears,
)

NAMES = ("v4-pro", "v4-flash", "v4.1-flash")

# linear -> for each model (N at TP 1/2/4/8, K at TP 1/2/4/8, matrices at TP 1/2/4/8), or None where it has none
S = tuple[int, ...]
LINEARS: dict[str, tuple[str, tuple[tuple[S, S, S] | None, ...]]] = {
    "fused_wqa_wkv": (
        "replicated",
        (((2048,), (7168,), (1,)), ((1536,), (4096,), (1,)), ((1792,), (5120,), (1,))),
    ),
    "wq_b": (
        "column",
        (
            ((65536, 32768, 16384, 8192), (1536,), (1,)),
            ((32768, 16384, 8192, 4096), (1024,), (1,)),
            ((32768, 16384, 8192, 4096), (1280,), (1,)),
        ),
    ),
    "wo_a": (
        "groups",
        (
            ((1024,), (4096,), (16, 8, 4, 2)),
            ((1024,), (4096,), (8, 4, 2, 1)),
            ((1024,), (4096,), (8, 4, 2, 1)),
        ),
    ),
    "wo_b": (
        "row",
        (
            ((7168,), (16384, 8192, 4096, 2048), (1,)),
            ((4096,), (8192, 4096, 2048, 1024), (1,)),
            ((5120,), (8192, 4096, 2048, 1024), (1,)),
        ),
    ),
    "indexer_wq_b": (
        "replicated",
        (((8192,), (1536,), (1,)), ((8192,), (1024,), (1,)), ((4096,), (1280,), (1,))),
    ),
    "indexer_weights_proj": (
        "replicated",
        (((64,), (7168,), (1,)), ((64,), (4096,), (1,)), ((32,), (5120,), (1,))),
    ),
    "compressor_c4a": ("replicated", (((2048,), (7168,), (1,)), ((2048,), (4096,), (1,)), None)),
    "compressor_c128a": ("replicated", (((1024,), (7168,), (1,)), ((1024,), (4096,), (1,)), None)),
    "indexer_compressor": ("replicated", (((512,), (7168,), (1,)), ((512,), (4096,), (1,)), None)),
    "router_gate": (
        "replicated",
        (((384,), (7168,), (1,)), ((256,), (4096,), (1,)), ((384,), (5120,), (1,))),
    ),
    "shared_gate_up": (
        "column",
        (
            ((6144, 3072, 1536, 768), (7168,), (1,)),
            ((4096, 2048, 1024, 512), (4096,), (1,)),
            ((4608, 2304, 1152, 576), (5120,), (1,)),
        ),
    ),
    "shared_down": (
        "row",
        (
            ((7168,), (3072, 1536, 768, 384), (1,)),
            ((4096,), (2048, 1024, 512, 256), (1,)),
            ((5120,), (2304, 1152, 576, 288), (1,)),
        ),
    ),
    "lm_head": (
        "column",
        (
            ((129280, 64640, 32320, 16160), (7168,), (1,)),
            ((129280, 64640, 32320, 16160), (4096,), (1,)),
            ((129280, 64640, 32320, 16160), (5120,), (1,)),
        ),
    ),
    "hc_fn": (
        "replicated",
        (((24,), (28672,), (1,)), ((24,), (16384,), (1,)), ((24,), (20480,), (1,))),
    ),
}
UNQUANTIZED = {
    "indexer_weights_proj": "bf16",
    "compressor_c4a": "bf16",
    "compressor_c128a": "bf16",
    "indexer_compressor": "bf16",
    "router_gate": "bf16",
    "lm_head": "bf16",
    "hc_fn": "fp32",
}

# model -> L1 (N, K, packed K, scale columns), the same of L2, and MB of L1, of L2, of both
EXPERTS = {
    "v4-pro": ((6144, 7168, 3584, 448), (7168, 3072, 1536, 192), (24.77, 12.39, 37.16)),
    "v4-flash": ((4096, 4096, 2048, 256), (4096, 2048, 1024, 128), (9.44, 4.72, 14.16)),
    "v4.1-flash": ((4608, 5120, 2560, 320), (5120, 2304, 1152, 144), (13.27, 6.64, 19.91)),
}
EXPERTS_PER_RANK = {
    "v4-pro": (384, 192, 96, 48, 24),
    "v4-flash": (256, 128, 64, 32, 16),
    "v4.1-flash": (384, 192, 96, 48, 24),
}
# model -> (L1 N, L2 K) at TP 1/2/4/8
SLICED = {
    "v4-pro": ((6144, 3072, 1536, 768), (3072, 1536, 768, 384)),
    "v4-flash": ((4096, 2048, 1024, 512), (2048, 1024, 512, 256)),
    "v4.1-flash": ((4608, 2304, 1152, 576), (2304, 1152, 576, 288)),
}


def by_name(model: str, tp: int) -> dict[str, LinearShape]:
    return {lin.name: lin for lin in linears(model, tp)}


def at(values: tuple[int, ...], index: int) -> int:
    return values[0] if len(values) == 1 else values[index]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("linear", LINEARS)
@pytest.mark.parametrize("tp", TP)
def test_linear(name: str, linear: str, tp: int) -> None:
    sharding, per_model = LINEARS[linear]
    expected = per_model[NAMES.index(name)]
    found = by_name(name, tp).get(linear)
    if expected is None:
        assert found is None
        return
    assert found is not None
    index = TP.index(tp)
    assert (found.n, found.k, found.groups) == tuple(at(values, index) for values in expected)
    assert found.sharding == sharding
    assert found.stored == UNQUANTIZED.get(linear, "fp8")
    assert found.quantized is (linear not in UNQUANTIZED)


@pytest.mark.parametrize("name", NAMES)
def test_no_linear_beyond_the_table(name: str) -> None:
    assert set(by_name(name, 1)) <= set(LINEARS)


@pytest.mark.parametrize("name", NAMES)
def test_uses_in_the_main_layers(name: str) -> None:
    index = NAMES.index(name)
    every, c4a, c128a, indexers = (61, 43, 40)[index], (30, 21, 0)[index], (31, 20, 0)[index], (30, 21, 8)[index]
    special = {
        "lm_head": 1,
        "hc_fn": 2 * every,
        "compressor_c4a": c4a,
        "compressor_c128a": c128a,
        "indexer_compressor": c4a,
        "indexer_wq_b": indexers,
        "indexer_weights_proj": indexers,
        "fused_wqa_wkv": None if name == "v4.1-flash" else every,
    }
    for lin in linears(name):
        assert lin.layers == special.get(lin.name, every), lin.id


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_sizes(name: str) -> None:
    *shapes, megabytes = EXPERTS[name]
    gemms = tuple(expert_gemms(name, tp=1, ep=8))
    assert [g.name for g in gemms] == ["l1", "l2"]
    for gemm, expected in zip(gemms, shapes, strict=True):
        assert (gemm.n, gemm.k, gemm.weight.packed_k, gemm.weight.sf_k) == expected
    sizes = [gemm.weight.nvfp4_bytes for gemm in gemms]
    assert tuple(round(size / 1e6, 2) for size in (*sizes, sum(sizes))) == pytest.approx(megabytes, abs=0.0051)


@pytest.mark.parametrize("name", EXPERTS_PER_RANK)
def test_experts_per_rank(name: str) -> None:
    assert tuple(experts_per_rank(name, ep) for ep in EP) == EXPERTS_PER_RANK[name]
    for ep, count in zip(EP, EXPERTS_PER_RANK[name], strict=True):
        assert {g.experts for g in expert_gemms(name, ep=ep)} == {count}


@pytest.mark.parametrize("name", SLICED)
def test_sliced_experts(name: str) -> None:
    pairs = [tuple(expert_gemms(name, tp, ep=1)) for tp in TP]
    assert tuple(l1.n for l1, _ in pairs) == SLICED[name][0]
    assert tuple(l2.k for _, l2 in pairs) == SLICED[name][1]


@pytest.mark.parametrize(("name", "l1", "l2"), [("v4-pro", 2_752_512, 1_376_256), ("v4-flash", 1_048_576, 524_288)])
def test_swizzled_scale_bytes_of_one_expert(name: str, l1: int, l2: int) -> None:
    assert [g.weight.sf_swizzled_bytes for g in expert_gemms(name)] == [l1, l2]
    local = experts_per_rank(name, 8)
    assert [g.sf_swizzled_bytes for g in expert_gemms(name, ep=8)] == [l1 * local, l2 * local]


@pytest.mark.parametrize(("name", "gigabytes"), [("v4-pro", 1.784), ("v4-flash", 0.453), ("v4.1-flash", 0.956)])
def test_expert_bytes_of_a_rank_at_ep8(name: str, gigabytes: float) -> None:
    assert sum(g.nvfp4_bytes for g in expert_gemms(name, ep=8)) / 1e9 == pytest.approx(gigabytes, abs=5.1e-4)


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("v4-pro", {1: 6, 8: 45.5, 32: 152, 128: 333, 512: 384}),
        ("v4-flash", {1: 6, 8: 44, 32: 136, 128: 244, 512: 256}),
    ],
)
def test_expected_experts_hit(name: str, hits: dict[int, float]) -> None:
    for tokens, expected in hits.items():
        digits = 1 if expected == 45.5 else 0
        assert round(expected_experts_hit(name, tokens), digits) == expected


def test_quoted_figures() -> None:
    assert {q.id: q.shape for q in QUOTED_FIGURES} == {
        "l1_packed": (48, 3584, 6144),
        "l1_scales": (48, 448, 6144),
        "l2_packed": (48, 1536, 7168),
        "l2_scales": (48, 192, 7168),
        "l1_bf16_stack": (48, 7168, 6144),
        "routed_rows": (49152, 7168),
        "n9216": (9216,),
    }
    assert [q.id for q in QUOTED_FIGURES if not q.explained] == ["n9216"]


def test_no_model_has_n_9216() -> None:
    for name in MODELS:
        for tp in TP:
            assert 9216 not in {s.n for s in linears(name, tp)} | {g.n for g in expert_gemms(name, tp, ep=1)}
