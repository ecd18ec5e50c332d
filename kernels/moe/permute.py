"""Bring the routed rows of a batch into expert order, and their results back.

A route is one (token, choice) pair, numbered token * top_k + choice; a row is its place in expert order. Rows of
expert e are [offsets[e], offsets[e + 1]). Routes that leave this rank (another rank's expert, or -1) come last,
behind offsets[E], and belong to no expert. Sizes are static: a batch of T tokens has T * top_k rows, however it is
routed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe.arguments import INDEX_DTYPES, require_tensor

ROW_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

#: fp32 elements of the combined output worked on at a time.
CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class ExpertOrder:
    """A batch's routes in expert order."""

    route_of_row: torch.Tensor
    """int64 (R,): the route in each row; within an expert in ascending order, so equal inputs give equal orders."""

    row_of_route: torch.Tensor
    """int64 (R,): the inverse."""

    token_of_row: torch.Tensor
    """int64 (R,)."""

    expert_of_row: torch.Tensor
    """int64 (R,): local expert, E for a row of none."""

    expert_offsets: torch.Tensor
    """int32 (E + 1,), first element 0, last the number of rows of this rank."""


def sort_by_expert(topk_ids: torch.Tensor, num_experts: int, experts_start_idx: int = 0) -> ExpertOrder:
    """Order the routes of `topk_ids` (T, top_k), int32 or int64 of global expert ids, by expert.

    This rank holds the experts [experts_start_idx, experts_start_idx + num_experts). Any other id leaves the rank.
    """
    require_tensor("topk_ids", topk_ids, (None, None), INDEX_DTYPES, topk_ids.device)
    if num_experts < 1 or experts_start_idx < 0:
        raise ValueError(
            f"num_experts, experts_start_idx: expected >= 1 and >= 0, got {num_experts} and {experts_start_idx}"
        )
    top_k = topk_ids.shape[1]
    local = topk_ids.reshape(-1).long() - experts_start_idx
    local = torch.where((local >= 0) & (local < num_experts), local, num_experts)
    expert_of_row, route_of_row = local.sort(stable=True)
    row_of_route = torch.empty_like(route_of_row)
    row_of_route.scatter_(0, route_of_row, torch.arange(local.shape[0], device=local.device))
    experts = torch.arange(num_experts + 1, device=local.device)
    # Rows before the first one of expert e: those whose expert is below e. Empty experts get an empty range.
    offsets = torch.searchsorted(expert_of_row, experts, right=False, out_int32=True)
    return ExpertOrder(
        route_of_row, row_of_route, route_of_row.div(max(top_k, 1), rounding_mode="floor"), expert_of_row, offsets
    )


def combine_routes(
    rows: torch.Tensor,
    order: ExpertOrder,
    topk_weights: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """out[t] = sum over choices j of topk_weights[t, j] * rows[row of (t, j)], choices in order, in fp32.

    rows (R, H) in expert order; topk_weights fp32 (T, top_k). Choices that left the rank add nothing, whatever their
    row or weight holds. The order of the sum is that of the choices and not of the experts, so a token's result does
    not depend on its neighbours. Returns (T, H) in `out_dtype` (default: the rows' dtype); all of it is written.
    """
    require_tensor("rows", rows, (None, None), ROW_DTYPES, rows.device)
    count, width = rows.shape
    tokens, top_k = topk_weights.shape
    require_tensor("topk_weights", topk_weights, (tokens, top_k), (torch.float32,), rows.device)
    if tokens * top_k != count:
        raise ValueError(
            f"topk_weights: expected {count} routes, one a row, got {tokens} x {top_k}; pass the weights of the same "
            "batch as the expert order"
        )
    if out is None:
        out = torch.empty((tokens, width), dtype=out_dtype or rows.dtype, device=rows.device)
    elif tuple(out.shape) != (tokens, width) or out.device != rows.device:
        raise ValueError(f"out: expected {(tokens, width)} on {rows.device}, got {tuple(out.shape)} on {out.device}")
    if count == 0:
        return out.zero_()
    row_of_choice = order.row_of_route.view(tokens, top_k)
    here = row_of_choice < order.expert_offsets[-1]
    step = max(1, CHUNK_ELEMENTS // max(width, 1))
    for start in range(0, tokens, step):
        size = min(step, tokens - start)
        total = torch.zeros((size, width), dtype=torch.float32, device=rows.device)
        for choice in range(top_k):
            part = rows.index_select(0, row_of_choice[start : start + size, choice]).float()
            part.mul_(topk_weights[start : start + size, choice, None])
            total.add_(part.masked_fill_(~here[start : start + size, choice, None], 0.0))
        out[start : start + size].copy_(total)
    return out
