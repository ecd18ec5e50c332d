"""The routed experts of a layer, from hidden states to hidden states, in two forms of the same mathematics.

    x -> NVFP4 -> expert order -> gate/up product -> clamped SwiGLU -> NVFP4 -> down product -> weighted sum

`run_nvfp4_moe` stores the gate/up product in bf16 before SwiGLU; `run_nvfp4_moe_fused` applies SwiGLU to the fp32
sums in the product's epilogue, so its intermediate is rounded once less. Both combine in the order of a token's
choices: deterministic, and independent of the other tokens in the batch. Nothing is read on the host.
"""

from __future__ import annotations

import torch

from kernels.moe.arguments import INDEX_DTYPES, require_implementation, require_limit, require_tensor
from kernels.moe.grouped_gemm import (
    IMPLEMENTATIONS,
    run_fused_swiglu_quantize_grouped_gemm,
    run_nvfp4_grouped_gemm,
)
from kernels.moe.grouped_scales import gather_swizzled_peak_bytes, gather_swizzled_scales
from kernels.moe.operands import tile_workspace_bytes
from kernels.moe.permute import CHUNK_ELEMENTS, combine_routes, sort_by_expert
from kernels.moe.swiglu import DEEPSEEK_V4_LIMIT, swiglu_quantize_nvfp4, swiglu_quantize_peak_bytes
from kernels.moe.weights import MoEWeights
from kernels.moe.workspace import MoEWorkspace, workspace_bytes
from kernels.nvfp4 import quantize_activation_nvfp4, quantize_peak_bytes

HIDDEN_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def run_nvfp4_moe(
    hidden: torch.Tensor,
    weights: MoEWeights,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    experts_start_idx: int = 0,
    workspace: MoEWorkspace | None = None,
    out: torch.Tensor | None = None,
    implementation: str = "torch",
) -> torch.Tensor:
    """The layer with the gate/up product and SwiGLU as separate steps.

    hidden (T, H) bf16, fp16 or fp32, any strides. weights: L1 in whole halves, either order (`stack_moe_weights`).
    l1_input_scale, l2_input_scale: fp32, one element each, the calibrated global scales of the two activations; two
    different numbers. topk_weights fp32 (T, top_k), already renormalised and scaled; topk_ids int32 or int64
    (T, top_k), global: this rank holds [experts_start_idx, experts_start_idx + E), any other id (and -1) adds
    nothing. limit: SwiGLU's, None for no clamp. workspace: None allocates one for this call. out: (T, H) in hidden's
    dtype, allocated if None; never part of the workspace.
    """
    if weights.layout.granularity is not None:
        raise ValueError(
            f"weights: expected whole halves of gate and up, got {weights.layout}; run_nvfp4_moe_fused takes these, "
            "or stack them with target='vllm_cutlass'"
        )
    return _run(hidden, weights, l1_input_scale, l2_input_scale, topk_weights, topk_ids, limit, experts_start_idx,
                workspace, out, implementation, fused=False)  # fmt: skip


def run_nvfp4_moe_fused(
    hidden: torch.Tensor,
    weights: MoEWeights,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    experts_start_idx: int = 0,
    workspace: MoEWorkspace | None = None,
    out: torch.Tensor | None = None,
    implementation: str = "torch",
) -> torch.Tensor:
    """The layer with SwiGLU and the second quantisation in the epilogue of the gate/up product.

    Arguments as in `run_nvfp4_moe`, with L1 weights interleaved (`stack_moe_weights(..., target="deepgemm")`).
    """
    if weights.layout.granularity is None or weights.layout.shuffled:
        raise ValueError(
            f"weights: expected interleaved gate and up, got {weights.layout}; run_nvfp4_moe takes whole halves, or "
            "stack them with target='deepgemm'"
        )
    return _run(hidden, weights, l1_input_scale, l2_input_scale, topk_weights, topk_ids, limit, experts_start_idx,
                workspace, out, implementation, fused=True)  # fmt: skip


def _run(
    hidden: torch.Tensor,
    weights: MoEWeights,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    limit: float | None,
    experts_start_idx: int,
    workspace: MoEWorkspace | None,
    out: torch.Tensor | None,
    implementation: str,
    fused: bool,
) -> torch.Tensor:
    device = weights.l1_codes.device
    require_implementation(implementation, IMPLEMENTATIONS)
    require_limit(limit)
    require_tensor("hidden", hidden, (None, weights.hidden), HIDDEN_DTYPES, device)
    tokens = hidden.shape[0]
    require_tensor("topk_ids", topk_ids, (tokens, None), INDEX_DTYPES, device)
    top_k = topk_ids.shape[1]
    require_tensor("topk_weights", topk_weights, (tokens, top_k), (torch.float32,), device)
    if workspace is None:
        workspace = MoEWorkspace.allocate(
            tokens, top_k, weights.hidden, weights.intermediate, fused=fused, device=device
        )
    buffers = workspace.of(tokens, top_k, fused)
    if out is None:
        out = torch.empty((tokens, weights.hidden), dtype=hidden.dtype, device=device)
    if torch.compiler.is_compiling():
        torch.ops.kh_moe.moe_out(
            hidden, as_bytes(weights.tensors()), weights.layout.order, weights.layout.granularity, l1_input_scale,
            l2_input_scale, topk_weights, topk_ids, limit, experts_start_idx, implementation,
            as_bytes(buffers.tensors()), out,
        )  # fmt: skip
    else:
        _layer_into(hidden, weights, l1_input_scale, l2_input_scale, topk_weights, topk_ids, limit,
                    experts_start_idx, implementation, buffers, out)  # fmt: skip
    return out


def as_bytes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """E4M3 tensors as uint8 views: what crosses an operator's boundary, where float8 has few operations."""
    return [t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in tensors]


@torch.no_grad()
def _layer_into(
    hidden: torch.Tensor,
    weights: MoEWeights,
    l1_input_scale: torch.Tensor,
    l2_input_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    limit: float | None,
    experts_start_idx: int,
    implementation: str,
    buffers: MoEWorkspace,
    out: torch.Tensor,
) -> None:
    """The steps, on checked arguments and buffers of the batch's size; fused if L1 is interleaved."""
    if topk_ids.numel() == 0:
        out.zero_()
        return
    quantize_activation_nvfp4(hidden, l1_input_scale, out=(buffers.x_codes, buffers.x_scales))
    order = sort_by_expert(topk_ids, weights.experts, experts_start_idx)
    torch.index_select(buffers.x_codes, 0, order.token_of_row, out=buffers.row_codes)
    row_scales = gather_swizzled_scales(buffers.x_scales, order.token_of_row, order.expert_offsets)
    operands = (buffers.row_codes, weights.l1_codes, row_scales, weights.l1_scales, order.expert_offsets,
                weights.l1_global_scale * l1_input_scale.reshape(()))  # fmt: skip
    mid = (buffers.mid_codes, buffers.mid_scales)
    layout = weights.layout
    if layout.granularity is not None:
        run_fused_swiglu_quantize_grouped_gemm(
            *operands, l2_input_scale, limit=limit, order=layout.order, granularity=layout.granularity, out=mid,
            implementation=implementation,
        )  # fmt: skip
    else:
        assert buffers.l1_rows is not None
        run_nvfp4_grouped_gemm(*operands, out=buffers.l1_rows, implementation=implementation)
        swiglu_quantize_nvfp4(buffers.l1_rows, l2_input_scale, limit, order=layout.order, out=mid)
    del row_scales, operands
    mid_scales = gather_swizzled_scales(buffers.mid_scales, None, order.expert_offsets)
    run_nvfp4_grouped_gemm(
        buffers.mid_codes, weights.l2_codes, mid_scales, weights.l2_scales, order.expert_offsets,
        weights.l2_global_scale * l2_input_scale.reshape(()), out=buffers.l2_rows, implementation=implementation,
    )  # fmt: skip
    combine_routes(buffers.l2_rows, order, topk_weights, out=out)


def moe_peak_bytes(
    tokens: int, top_k: int, experts: int, hidden: int, intermediate: int, *, fused: bool, itemsize: int = 2
) -> int:
    """Upper bound of the bytes that a forward pass allocates at its peak: output, workspace and temporaries.

    Inputs and weights do not count. The weights enter only by one piece of one expert, whatever their number.
    """
    rows = tokens * top_k
    indices = 96 * (rows + experts + 1)
    steps = (
        quantize_peak_bytes((tokens, hidden)),
        gather_swizzled_peak_bytes(rows, experts, hidden)
        + tile_workspace_bytes(rows, experts, 2 * intermediate, hidden)
        + (quantize_peak_bytes((min(rows, 1024), intermediate)) if fused else 0),
        swiglu_quantize_peak_bytes(rows, intermediate),
        gather_swizzled_peak_bytes(rows, experts, intermediate)
        + tile_workspace_bytes(rows, experts, hidden, intermediate),
        gather_swizzled_peak_bytes(rows, experts, intermediate)
        + 16 * min(tokens * hidden, max(CHUNK_ELEMENTS, hidden)),
    )
    own = workspace_bytes(tokens, top_k, hidden, intermediate, fused=fused)
    return own + tokens * hidden * itemsize + indices + max(steps)
