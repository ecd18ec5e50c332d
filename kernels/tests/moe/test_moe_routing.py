"""The router from its formula in plain Python, and the expert order from its definition."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.moe.permute import combine_routes, sort_by_expert
from kernels.moe.regimes import REGIMES, routed_ids
from kernels.moe.routing import route_hashed, route_sqrtsoftplus, router_scores


def score(logit: float) -> float:
    return math.sqrt(math.log1p(math.exp(-abs(logit))) + max(logit, 0.0))


def route_by_hand(logits: list[float], bias: list[float], top_k: int, factor: float) -> tuple[list[float], list[int]]:
    scores = [score(x) for x in logits]
    ids = sorted(range(len(logits)), key=lambda e: (-(scores[e] + bias[e]), e))[:top_k]
    total = sum(scores[e] for e in ids)
    return [scores[e] / total * factor for e in ids], ids


def test_scores() -> None:
    logits = [-100.0, -20.0, -1.0, 0.0, 1.0, 19.9, 20.1, 1000.0]
    got = router_scores(torch.tensor(logits))
    assert got.tolist() == pytest.approx([score(x) for x in logits], rel=1e-6, abs=1e-21)


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.5])
def test_route_against_the_formula(factor: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 24, generator=generator) * 3
    bias = torch.randn(24, generator=generator)
    weights, ids = route_sqrtsoftplus(logits, 6, bias, factor)
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int32
    for t in range(40):
        expected = route_by_hand(logits[t].tolist(), bias.tolist(), 6, factor)
        assert ids[t].tolist() == expected[1]
        assert weights[t].tolist() == pytest.approx(expected[0], rel=1e-5)
    assert torch.allclose(weights.sum(1), torch.full((40,), factor))


def test_bias_selects_and_does_not_weigh() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    weights, ids = route_sqrtsoftplus(logits, 2, torch.tensor([0.0, 0.0, 0.0, 100.0]))
    assert ids.tolist() == [[3, 0]]
    total = score(0.0) + score(3.0)
    assert weights[0].tolist() == pytest.approx([score(0.0) / total, score(3.0) / total], rel=1e-6)


def test_without_renormalisation() -> None:
    weights, ids = route_sqrtsoftplus(torch.tensor([[1.0, 4.0]]), 1, None, 2.5, renormalize=False)
    assert ids.tolist() == [[1]]
    assert weights.item() == pytest.approx(2.5 * score(4.0), rel=1e-6)


def test_equal_scores_go_to_the_lower_expert() -> None:
    _, ids = route_sqrtsoftplus(torch.zeros(3, 384), 6)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 3


def test_nan_rows_keep_ids_distinct_and_in_range_and_stay_in_their_row() -> None:
    logits = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    clean_weights, clean_ids = route_sqrtsoftplus(logits, 6)
    logits[1] = math.nan
    weights, ids = route_sqrtsoftplus(logits, 6)
    assert len(set(ids[1].tolist())) == 6
    assert set(ids[1].tolist()) <= set(range(16))
    for t in (0, 2):
        assert torch.equal(ids[t], clean_ids[t])
        assert torch.equal(weights[t], clean_weights[t])


def test_scores_that_underflow_give_no_nan() -> None:
    weights, ids = route_sqrtsoftplus(torch.full((2, 8), -500.0), 3)
    assert weights.tolist() == [[0.0] * 3] * 2
    assert ids.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_hashed_layers_take_experts_from_the_table_and_weights_from_the_scores(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0], [9.0, 9.0, 9.0, 9.0], [0.0] * 4])
    table = torch.tensor([[0, 1], [3, 2], [1, 3]], dtype=torch.int64)
    weights, ids = route_hashed(logits, torch.tensor([1, 0, -1, 3], dtype=dtype), table, 1.5)
    assert ids.tolist() == [[3, 2], [0, 1], [-1, -1], [-1, -1]]
    total = score(3.0) + score(2.0)
    expected = [1.5 * score(3.0) / total, 1.5 * score(2.0) / total]
    assert weights[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert weights[1].tolist() == pytest.approx(expected, rel=1e-6)
    assert weights[2:].tolist() == [[0.0, 0.0]] * 2


def test_routing_refusals() -> None:
    with pytest.raises(ValueError, match="top_k"):
        route_sqrtsoftplus(torch.zeros(2, 4), 5)
    with pytest.raises(TypeError, match="bias"):
        route_sqrtsoftplus(torch.zeros(2, 4), 2, torch.zeros(4, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="float32"):
        router_scores(torch.zeros(2).double())
    with pytest.raises(ValueError, match="token_ids"):
        route_hashed(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64), torch.zeros(5, 2, dtype=torch.int64))


def check_order(ids: torch.Tensor, experts: int, start: int) -> None:
    order = sort_by_expert(ids, experts, start)
    flat = ids.reshape(-1).tolist()
    expected = [[r for r, e in enumerate(flat) if e == start + local] for local in range(experts)]
    away = [r for r, e in enumerate(flat) if not start <= e < start + experts]
    offsets = order.expert_offsets.tolist()
    assert order.expert_offsets.dtype == torch.int32
    assert offsets[0] == 0
    assert offsets[-1] == len(flat) - len(away)
    rows = order.route_of_row.tolist()
    for local in range(experts):
        assert rows[offsets[local] : offsets[local + 1]] == expected[local]
    assert rows[offsets[-1] :] == away
    assert [order.row_of_route.tolist()[r] for r in rows] == list(range(len(flat)))
    assert order.token_of_row.tolist() == [r // ids.shape[1] for r in rows]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("experts", [6, 7, 36])
def test_order_of_every_regime(regime: str, experts: int) -> None:
    ids = routed_ids(regime, 130, experts + 3, 3)
    check_order(ids, experts, 0)
    check_order(ids.long(), experts, 3)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_order_of_any_ids(data: st.DataObject) -> None:
    tokens, top_k = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 4))
    flat = data.draw(st.lists(st.integers(-2, 9), min_size=tokens * top_k, max_size=tokens * top_k))
    ids = torch.tensor(flat, dtype=torch.int32).view(tokens, top_k)
    check_order(ids, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 4)))


@pytest.mark.parametrize("regime", REGIMES)
def test_combine_is_the_weighted_sum_in_choice_order(regime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.moe.permute.CHUNK_ELEMENTS", 24 * 50)
    generator = torch.Generator().manual_seed(2)
    ids = routed_ids(regime, 130, 12, 4)
    order = sort_by_expert(ids, 8, 2)
    rows = torch.randn(520, 24, generator=generator)
    weights = torch.rand(130, 4, generator=generator)
    rows[int(order.expert_offsets[-1]) :] = math.nan  # rows of no expert hold whatever they like
    weights[(ids < 2) | (ids >= 10)] = math.nan
    expected = torch.zeros(130, 24)
    for t in range(130):
        for j in range(4):
            if 2 <= ids[t, j] < 10:
                expected[t] += weights[t, j] * rows[int(order.row_of_route[t * 4 + j])]
    poisoned = torch.full((130, 24), math.nan)
    assert combine_routes(rows, order, weights, out=poisoned) is poisoned
    assert torch.equal(poisoned, expected)
    assert combine_routes(rows, order, weights, out_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_combine_of_no_tokens_and_refusals() -> None:
    order = sort_by_expert(torch.empty((0, 2), dtype=torch.int32), 4)
    assert combine_routes(torch.empty(0, 8), order, torch.empty(0, 2)).shape == (0, 8)
    order = sort_by_expert(torch.zeros((3, 2), dtype=torch.int32), 4)
    with pytest.raises(ValueError, match="routes"):
        combine_routes(torch.zeros(6, 8), order, torch.zeros(4, 2))
    with pytest.raises(TypeError, match="topk_ids"):
        sort_by_expert(torch.zeros(3, 2), 4)
    with pytest.raises(ValueError, match="num_experts"):
        sort_by_expert(torch.zeros((3, 2), dtype=torch.int32), 0)


def test_traces_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# layer 7\n3 1\n4, -1\n\n0 2\n")
    assert routed_ids(f"trace:{path}", 2, 8, 2).tolist() == [[3, 1], [4, -1]]
    with pytest.raises(ValueError, match="at least 9"):
        routed_ids(f"trace:{path}", 9, 8, 2)
    with pytest.raises(ValueError, match="3 expert ids"):
        routed_ids(f"trace:{path}", 2, 8, 3)


def test_regimes_are_what_their_names_say() -> None:
    counts = {name: torch.bincount(ids[ids >= 0], minlength=8) for name in REGIMES
              for ids in [routed_ids(name, 200, 8, 3).reshape(-1).long()]}  # fmt: skip
    assert counts["one_empty"].tolist().index(0) == 4
    assert counts["first_and_last_empty"][[0, -1]].tolist() == [0, 0]
    assert (counts["all_but_top_k_empty"] > 0).sum() == 3
    assert counts["all_to_one"][4] == counts["all_to_one"].sum() == 200
    assert counts["tile_plus_1"].tolist() == [129] + [0] * 7
    assert counts["nowhere"].sum() == 0
    with pytest.raises(ValueError, match="to choose from"):
        routed_ids("one_empty", 4, 3, 3)
