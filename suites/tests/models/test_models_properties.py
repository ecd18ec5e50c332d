"""What must hold for every shape, whatever the figures are; and what is refused."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest

from suites.models import (
    C128A,
    EP,
    MODELS,
    ODD_SHAPES,
    ODD_TOKENS,
    ODD_WEIGHTS,
    TOKENS,
    TP,
    V4_FLASH,
    V4_PRO,
    LinearShape,
    ModelConfig,
    WeightShape,
    activation_shapes,
    c128a_width,
    compressed_entries,
    expected_experts_hit,
    expert_gemms,
    experts_per_rank,
    get_model,
    linears,
    routed_rows,
    slots_per_page,
    sparse_layout,
    unique_weight_shapes,
)

ALL_LINEARS = [lin for name in MODELS for tp in TP for lin in linears(name, tp)]
ALL_GEMMS = [g for name in MODELS for tp in TP for ep in EP for g in expert_gemms(name, tp, ep)]


def test_ids_are_unique_and_readable() -> None:
    activations = [a.id for name in MODELS for tp in TP for a in activation_shapes(name, tp)]
    ids = [s.id for s in ALL_LINEARS] + [g.id for g in ALL_GEMMS] + [o.id for o in ODD_SHAPES] + activations
    assert [i for i, count in Counter(ids).items() if count > 1] == []
    assert {"v4-pro.tp4.wq_b", "v4-pro.tp1.ep8.l1", "odd.m129.n5120.k288", "v4-pro.tp4.q_latent.t128"} <= set(ids)
    assert all(set(i) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for i in ids)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", TP)
def test_the_ranks_together_make_the_whole(name: str, tp: int) -> None:
    for whole, part in zip(linears(name, 1), linears(name, tp), strict=True):
        assert (whole.name, whole.sharding, whole.stored) == (part.name, part.sharding, part.stored)
        n = part.n * (tp if part.sharding == "column" else 1)
        k = part.k * (tp if part.sharding == "row" else 1)
        groups = part.groups * (tp if part.sharding == "groups" else 1)
        assert (n, k, groups) == (whole.n, whole.k, whole.groups)
    for ep in EP:
        for whole_gemm, gemm in zip(expert_gemms(name, 1, 1), expert_gemms(name, tp, ep), strict=True):
            elements = gemm.experts * gemm.n * gemm.k
            assert elements * tp * ep == whole_gemm.experts * whole_gemm.n * whole_gemm.k


@pytest.mark.parametrize("lin", [s for s in ALL_LINEARS if s.quantized], ids=lambda s: s.id)
def test_a_quantised_linear_has_whole_blocks(lin: LinearShape) -> None:
    weight = lin.weight
    assert weight.k == 16 * weight.sf_k == 2 * weight.packed_k
    assert weight.nvfp4_bytes == weight.n * weight.k * 9 / 16
    assert weight.sf_swizzled_bytes >= weight.sf_bytes
    assert weight.sf_swizzled_bytes % 512 == 0


def test_sizes_of_one_weight() -> None:
    # (6144, 7168) is 24.8 MB in NVFP4 against 88.1 MB in bf16.
    weight = WeightShape(6144, 7168)
    assert (weight.id, weight.nvfp4_bytes, weight.bf16_bytes) == ("n6144.k7168", 24_772_608, 88_080_384)


def test_swizzled_scales_are_padded_in_both_directions() -> None:
    assert WeightShape(5120, 288).sf_swizzled_bytes == 5120 * 20
    assert WeightShape(129, 64).sf_swizzled_bytes == 256 * 4
    assert WeightShape(128, 64).sf_swizzled_bytes == WeightShape(128, 64).sf_bytes == 512


@pytest.mark.parametrize("n_k", [(0, 16), (16, 0), (16, 24), (-1, 16)])
def test_a_weight_that_nvfp4_cannot_hold_is_refused(n_k: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        WeightShape(*n_k)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("tp", "what"), [(3, "does not divide into 3 ranks"), (0, "at least 1 rank"), (-1, "at least 1 rank")]
)
def test_a_rank_that_does_not_divide_is_refused(name: str, tp: int, what: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*{what}"):
        list(linears(name, tp))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("tp", "ep", "what"),
    [
        (1, 5, "routed experts = [0-9]+ does not divide into 5 ranks"),
        (1, 0, "routed experts: expected at least 1 rank, got 0"),
        (5, 1, "columns of an expert = [0-9]+ does not divide into 5 ranks"),
    ],
)
def test_experts_that_do_not_divide_are_refused(name: str, tp: int, ep: int, what: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: {what}"):
        list(expert_gemms(name, tp, ep))
    if tp == 1:
        with pytest.raises(ValueError, match=what):
            experts_per_rank(name, ep)


def test_heads_are_not_cut_even_where_n_would_divide() -> None:
    # N of wq_b is 32768 = 64 heads x 512: 128 ranks divide N, but not the heads.
    with pytest.raises(ValueError, match="attention heads = 64 does not divide into 128 ranks"):
        list(linears("v4-flash", 128))
    # 16 ranks divide the 64 heads of V4-Flash, but not its 8 output groups.
    with pytest.raises(ValueError, match=r"output groups = 8 .* it does into 1, 2, 4, 8$"):
        list(linears("v4-flash", 16))
    assert {s.tp for s in linears("v4-pro", 16)} == {16}


def test_columns_that_cut_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match=r"72 columns of an expert.*multiple of 16"):
        list(expert_gemms("v4.1-flash", tp=32, ep=1))
    narrow = dataclasses.replace(V4_PRO, experts=dataclasses.replace(V4_PRO.experts, intermediate=64))
    with pytest.raises(ValueError, match=r"8 columns of the shared expert.*multiple of 16"):
        list(linears(narrow, 8))


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'v5'; expected one of v4-pro, v4-flash, v4\.1-flash"):
        get_model("v5")


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        V4_PRO.hidden = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        MODELS["v4-pro"] = V4_FLASH  # type: ignore[index]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_each_group_of_figures_names_its_own_source(model: ModelConfig) -> None:
    sources = {model.source}
    for field in dataclasses.fields(model):
        group = getattr(model, field.name)
        if dataclasses.is_dataclass(group):
            sources.add(group.source)
    assert len(sources) == 1
    assert f"deepseek-ai/{model.title}" in sources.pop()


@pytest.mark.parametrize("name", MODELS)
def test_experts_hit_is_bounded_and_grows(name: str) -> None:
    cfg = MODELS[name].experts
    hits = [expected_experts_hit(name, m) for m in TOKENS]
    assert hits == sorted(hits)
    assert hits[:2] == [0, pytest.approx(cfg.top_k)]
    assert all(h <= min(cfg.routed, m * cfg.top_k) + 1e-9 for h, m in zip(hits, TOKENS, strict=True))
    assert expected_experts_hit(name, 32, ep=8) == pytest.approx(expected_experts_hit(name, 32) / 8)
    with pytest.raises(ValueError, match="0 or more"):
        expected_experts_hit(name, -1)


def test_tokens_ladder() -> None:
    assert list(TOKENS) == sorted(set(TOKENS))
    assert {2**i for i in range(14)} - {4} <= set(TOKENS)
    assert set(ODD_TOKENS) <= set(TOKENS)


def test_odd_shapes() -> None:
    assert {s.m for s in ODD_SHAPES} == {0, 1, 2, 127, 128, 129}
    assert {9216} <= {s.weight.n for s in ODD_SHAPES}
    assert {288, 576} <= {s.weight.k for s in ODD_SHAPES}
    assert all(s.why for s in ODD_SHAPES)
    known = {s.id: s.weight for s in ALL_LINEARS if s.quantized}
    for odd in ODD_WEIGHTS:
        assert odd.real is None or known[odd.real] == odd.weight
    assert [odd.weight.n for odd in ODD_WEIGHTS if odd.real is None] == [9216]


def test_unique_weights_cover_every_quantised_shape_once() -> None:
    users = unique_weight_shapes()
    assert list(users) == sorted(users)
    named = [i for ids in users.values() for i in ids]
    expected = [s.id for s in ALL_LINEARS if s.quantized] + [g.id for g in ALL_GEMMS if g.ep == 1]
    assert sorted(named) == sorted(expected)
    by_id = {s.id: s.weight for s in [*(x for x in ALL_LINEARS if x.quantized), *ALL_GEMMS]}
    assert all(by_id[i] == weight for weight, ids in users.items() for i in ids)
    one = unique_weight_shapes(models=(V4_PRO,), tps=(1,))
    assert WeightShape(6144, 7168) in one
    assert all(i.startswith("v4-pro.tp1.") for ids in one.values() for i in ids)


@pytest.mark.parametrize("name", MODELS)
def test_activations_feed_what_reads_them(name: str) -> None:
    for tp in TP:
        readers = {s.name: s for s in linears(name, tp)} | {g.name: g for g in expert_gemms(name, tp, 1)}
        shapes = tuple(activation_shapes(name, tp, (0, 3)))
        fed = [reader for a in shapes if a.tokens == 3 for reader in a.feeds]
        assert sorted(fed) == sorted(r for r, s in readers.items() if getattr(s, "quantized", True))
        for act in shapes:
            assert {readers[r].k for r in act.feeds} == {act.k}
            assert act.m % 3 == 0
            assert act.bf16_bytes == 2 * act.m * act.k
        rows = {a.name: a.m for a in shapes if a.tokens == 3}
        assert rows["hidden"] == 3
        assert rows["routed_hidden"] == rows["routed_act"] == routed_rows(name, 3) == 18
        assert rows["attention_out"] == 3 * MODELS[name].attention.o_groups // tp
    with pytest.raises(ValueError, match="0 or more"):
        list(activation_shapes(name, 1, (-1,)))


@pytest.mark.parametrize(
    ("name", "topk", "combined", "width", "slots"),
    [
        ("v4-pro", 1024, 1152, 8192, {4: 64, 128: 2}),
        ("v4-flash", 512, 640, 8192, {4: 64, 128: 2}),
        ("v4.1-flash", 512, 640, None, {1: 256, 2: 128}),
    ],
)
def test_sparse_layout(name: str, topk: int, combined: int, width: int | None, slots: dict[int, int]) -> None:
    layout = sparse_layout(name)
    assert (layout.index_topk, layout.combined_width, layout.c128a_width) == (topk, combined, width)
    assert layout.slots_per_page == slots
    assert (layout.token_bytes, layout.scale_bytes, layout.entry_bytes) == (576, 8, 584)
    for count in slots.values():
        page = layout.page_bytes(count)
        assert page % 576 == 0
        assert 0 <= page - count * 584 < 576
    assert sparse_layout("v4-pro", 4096).c128a_width == 128


@pytest.mark.parametrize(
    ("length", "width"), [(1, 128), (2176, 128), (16384, 128), (16385, 256), (1048576, 8192), (1048577, 8320)]
)
def test_c128a_width(length: int, width: int) -> None:
    assert c128a_width(length) == width


@pytest.mark.parametrize(
    ("position", "entries"),
    [(126, 0), (127, 1), (128, 1), (254, 1), (255, 2), (383, 3), (384, 3), (511, 4), (512, 4), (639, 5), (1023, 8)],
)
def test_compressed_entries(position: int, entries: int) -> None:
    assert compressed_entries(position, C128A) == entries


@pytest.mark.parametrize("call", [lambda: slots_per_page(3), lambda: slots_per_page(0), lambda: c128a_width(0)])
def test_impossible_sparse_sizes_are_refused(call: Callable[[], int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        call()
