"""The whole layer as one custom operator: inside torch.compile it is opaque, so no batch size is ever traced anew.

Traced step by step, the layer's loops over tiles would specialise the graph to the number of tokens.
"""

from __future__ import annotations

import torch

from kernels.moe.layer import _layer_into
from kernels.moe.layouts import L1Layout
from kernels.moe.weights import MoEWeights
from kernels.moe.workspace import MoEWorkspace


@torch.library.custom_op("kh_moe::moe_out", mutates_args=("workspace", "out"))
def moe_out(
    hidden: torch.Tensor,
    weights: list[torch.Tensor],
    order: str,
    granularity: int | None,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    limit: float | None,
    experts_start_idx: int,
    implementation: str,
    workspace: list[torch.Tensor],
    out: torch.Tensor,
) -> None:
    """weights and workspace: the tensors of `MoEWeights` and `MoEWorkspace`, the latter of the batch's size; block
    scales as bytes."""
    tokens, top_k = topk_ids.shape
    l1_codes, l1_scales, l1_global, l2_codes, l2_scales, l2_global = weights
    x_codes, x_scales, *middle, mid_scales, l2_rows = workspace
    e4m3 = torch.float8_e4m3fn
    buffers = [x_codes, x_scales.view(e4m3), *middle, mid_scales.view(e4m3), l2_rows]
    _layer_into(
        hidden,
        MoEWeights(l1_codes, l1_scales, l1_global, l2_codes, l2_scales, l2_global, L1Layout(order, granularity)),
        l1_input_scale,
        l2_input_scale,
        topk_weights,
        topk_ids,
        limit,
        experts_start_idx,
        implementation,
        MoEWorkspace.from_tensors(tokens, top_k, buffers),
        out,
    )


@moe_out.register_fake
def _(
    hidden: torch.Tensor,
    weights: list[torch.Tensor],
    order: str,
    granularity: int | None,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    limit: float | None,
    experts_start_idx: int,
    implementation: str,
    workspace: list[torch.Tensor],
    out: torch.Tensor,
) -> None:
    return None
