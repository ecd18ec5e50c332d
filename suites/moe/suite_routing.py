"""Routing of DeepSeek-V4: scores and selection, hash-routed layers, and bringing rows into expert order and back."""

from __future__ import annotations

from typing import Any

import torch

from harness import Bounded, Case, Contract, Cost, Draw, Implementation, Inputs, Suite, Tolerance, grid, register
from kernels.moe import ExpertOrder, combine_routes, route_hashed, route_sqrtsoftplus, sort_by_expert
from kernels.moe.regimes import REGIMES, routed_ids
from suites.models import MODELS

PRO = MODELS["v4-pro"].experts
FP32 = 2.0**-24


def _scores(logits: torch.Tensor) -> torch.Tensor:
    """sqrt(softplus(x)) in float64, by its definition."""
    return torch.log1p(torch.exp(-logits.double().abs())).add(logits.double().clamp(min=0)).sqrt()


def _weights(chosen: torch.Tensor, factor: float) -> Bounded:
    """Renormalised and scaled; a handful of fp32 operations, 2^-20 of the value and of the smallest normal."""
    value = chosen / chosen.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) * factor
    return Bounded(value, 2.0**-20 * value.abs() + 2.0**-120)


def _router_inputs(case: Case, draw: Draw) -> Inputs:
    """Logits on a grid of 2^-6, so that no two scores are nearer than fp32 can tell, and a bias that moves choices."""
    experts = case["e"]

    def logits(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        rows = [torch.randperm(4 * experts, generator=generator)[:experts] for _ in range(shape[0])]
        return (torch.stack(rows) - 2 * experts) / 64.0 if rows else torch.empty(shape)

    return {
        "logits": draw.make(logits, case["m"], experts, dtype="fp32"),
        "top_k": PRO.top_k,
        "bias": draw.make(lambda s, g: torch.randint(-8, 8, s, generator=g) / 8.0, experts, dtype="fp32"),
        "routed_scaling_factor": 2.5,
    }


def _router_reference(
    logits: torch.Tensor, top_k: int, bias: torch.Tensor, routed_scaling_factor: float
) -> tuple[Bounded, torch.Tensor]:
    """The bias chooses and never weighs; of equal sums the lower expert id wins."""
    scores = _scores(logits)
    selection = (scores.float() + bias).double()  # the sum that is compared is fp32 by contract
    order = torch.argsort(-selection, dim=1, stable=True)[:, :top_k]
    return _weights(scores.gather(1, order), routed_scaling_factor), order.to(torch.int32)


register(
    Suite(
        name="route_sqrtsoftplus",
        doc="DeepSeek-V4's router: top-k of score + bias, weights from the scores alone",
        inputs=_router_inputs,
        reference=_router_reference,
        outputs=("weights", "ids"),
        implementations={"torch": Implementation(route_sqrtsoftplus)},
        cases=grid(m=[0, 1, 33], e=[32, PRO.routed], dtype="fp32")
        + grid(m=8192, e=PRO.routed, dtype="fp32", worlds=("fake-cuda", "cuda")),
        tolerance={"weights": Tolerance(), "ids": Tolerance.bitwise()},
        contract=Contract(rows=("logits",), strided=("logits",)),
        cost=lambda case: Cost(bytes=4 * case["m"] * case["e"] + 8 * case["m"] * PRO.top_k),
        # logits, scores, biased scores and the sort's values and int64 indices
        memory=lambda case: case["m"] * (case["e"] * 4 * 8 + 64 * PRO.top_k) + 8 * case["e"] + (1 << 14),
        sweep="m",
    )
)


def _hashed_inputs(case: Case, draw: Draw) -> Inputs:
    """Some token ids are padding: outside the vocabulary."""
    vocabulary = 64
    return {
        "logits": draw.tensor(case["m"], case["e"], dtype="fp32"),
        "token_ids": draw.integers(-3, vocabulary + 3, case["m"], dtype="i64"),
        "token_to_experts": draw.integers(0, case["e"], vocabulary, PRO.top_k, dtype="i64"),
        "routed_scaling_factor": 2.5,
    }


def _hashed_reference(
    logits: torch.Tensor, token_ids: torch.Tensor, token_to_experts: torch.Tensor, routed_scaling_factor: float
) -> tuple[Bounded, torch.Tensor]:
    known = ((token_ids >= 0) & (token_ids < token_to_experts.shape[0])).unsqueeze(1)
    ids = token_to_experts[token_ids.clamp(0, token_to_experts.shape[0] - 1).long()].long()
    weights = _weights(_scores(logits).gather(1, ids), routed_scaling_factor)
    masked = Bounded(torch.where(known, weights.value, 0.0), torch.where(known, weights.bound, 0.0))
    return masked, torch.where(known, ids, -1).to(torch.int32)


register(
    Suite(
        name="route_hashed",
        doc="the first layers: experts by token id, weights by score",
        inputs=_hashed_inputs,
        reference=_hashed_reference,
        outputs=("weights", "ids"),
        implementations={"torch": Implementation(route_hashed)},
        cases=grid(m=[0, 1, 33], e=[32, PRO.routed], dtype="fp32"),
        tolerance={"weights": Tolerance(), "ids": Tolerance.bitwise()},
        contract=Contract(rows=("logits", "token_ids"), strided=("logits",)),
        sweep="m",
    )
)


def _order(topk_ids: torch.Tensor, num_experts: int, experts_start_idx: int) -> tuple[torch.Tensor, ...]:
    order = sort_by_expert(topk_ids, num_experts, experts_start_idx)
    return order.route_of_row, order.row_of_route, order.token_of_row, order.expert_of_row, order.expert_offsets


def _ids(case: Case, draw: Draw) -> torch.Tensor:
    """Global expert ids of a routing regime; this rank's experts start at 3."""

    def make(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        seed = int(torch.randint(0, 1 << 30, (), generator=generator))
        ids = routed_ids(str(case.routing), shape[0], case["e"], shape[1], seed)
        return torch.where(ids >= 0, ids + 3, ids)

    return draw.make(make, case["m"], 4, dtype=case.dtype)


def _order_reference(topk_ids: torch.Tensor, num_experts: int, experts_start_idx: int) -> tuple[torch.Tensor, ...]:
    """Route by route in plain Python: experts ascending, routes ascending within one, those that leave last."""
    local = [expert - experts_start_idx for expert in topk_ids.flatten().tolist()]
    local = [expert if 0 <= expert < num_experts else num_experts for expert in local]
    routes = sorted(range(len(local)), key=lambda route: (local[route], route))
    rows = [0] * len(local)
    for row, route in enumerate(routes):
        rows[route] = row
    offsets = [sum(expert < bound for expert in local) for bound in range(num_experts + 1)]
    device, width = topk_ids.device, max(topk_ids.shape[1], 1)
    long: dict[str, Any] = {"dtype": torch.int64, "device": device}
    return (
        torch.tensor(routes, **long),
        torch.tensor(rows, **long),
        torch.tensor([route // width for route in routes], **long),
        torch.tensor([local[route] for route in routes], **long),
        torch.tensor(offsets, dtype=torch.int32, device=device),
    )


_SORT = grid(m=140, e=12, dtype=["i32", "i64"], routing=list(REGIMES)) + grid(
    m=[0, 1], e=12, dtype="i32", routing="holes"
)

register(
    Suite(
        name="sort_by_expert",
        doc="routes in expert order, and the inverse; routes of other ranks last",
        inputs=lambda case, draw: {"topk_ids": _ids(case, draw), "num_experts": case["e"], "experts_start_idx": 3},
        reference=_order_reference,
        outputs=("route_of_row", "row_of_route", "token_of_row", "expert_of_row", "expert_offsets"),
        implementations={"torch": Implementation(_order)},
        cases=_SORT,
        contract=Contract(strided=("topk_ids",)),
    )
)


def _combine_inputs(case: Case, draw: Draw) -> Inputs:
    ids = _ids(case, draw)
    return {
        "rows": draw.tensor(case["m"] * 4, 96, dtype="bf16", regime="normal"),
        "topk_ids": ids,
        "topk_weights": draw.tensor(case["m"], 4, dtype="fp32", regime="normal"),
        "num_experts": case["e"],
    }


def _combine(rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, num_experts: int) -> torch.Tensor:
    order: ExpertOrder = sort_by_expert(topk_ids, num_experts, 3)
    return combine_routes(rows, order, topk_weights)


def _combine_reference(rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, num_experts: int) -> Any:
    row_of_route, offsets = (_order_reference(topk_ids, num_experts, 3)[i] for i in (1, 4))
    place = row_of_route.view(topk_weights.shape)
    here = (place < offsets[-1]).unsqueeze(-1)
    terms = torch.where(here, rows.double()[place] * topk_weights.double().unsqueeze(-1), 0.0)
    value = terms.sum(1)
    return Bounded(value, 8 * FP32 * terms.abs().sum(1) + 2.0**-8 * value.abs())


register(
    Suite(
        name="combine_routes",
        doc="weighted sum of each token's experts, in the order of its choices",
        inputs=_combine_inputs,
        reference=_combine_reference,
        implementations={"torch": Implementation(_combine)},
        cases=grid(m=140, e=12, dtype="i32", routing=["uniform", "holes", "nowhere", "all_to_one"]),
    )
)
