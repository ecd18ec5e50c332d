"""Custom-op registration: what torch.compile sees of the grouped products, one opaque operation each.

Inside a compiled graph the public functions call these; in eager mode they call the same code directly, so that
dispatch modes see every allocation. They write into a buffer and return nothing, so no output aliases an input.
"""

from __future__ import annotations

import torch

from kernels.moe.grouped_gemm import _fused_into, _grouped_gemm_into
from kernels.moe.operands import GroupedOperands


@torch.library.custom_op("kh_moe::grouped_gemm_out", mutates_args=("out",))
def grouped_gemm_out(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    out: torch.Tensor,
) -> None:
    _grouped_gemm_into(GroupedOperands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha), out)


@grouped_gemm_out.register_fake
def _(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    out: torch.Tensor,
) -> None:
    return None


@torch.library.custom_op("kh_moe::fused_swiglu_grouped_gemm_out", mutates_args=("out",))
def fused_swiglu_grouped_gemm_out(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    limit: float | None,
    order: str,
    granularity: int,
    out: torch.Tensor,
) -> None:
    operands = GroupedOperands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha)
    _fused_into(operands, limit, order, granularity, out)


@fused_swiglu_grouped_gemm_out.register_fake
def _(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    limit: float | None,
    order: str,
    granularity: int,
    out: torch.Tensor,
) -> None:
    return None


@torch.library.custom_op("kh_moe::fused_swiglu_quantize_grouped_gemm_out", mutates_args=("out_codes", "out_scales"))
def fused_swiglu_quantize_grouped_gemm_out(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    out_global_scale: torch.Tensor,
    limit: float | None,
    order: str,
    granularity: int,
    out_codes: torch.Tensor,
    out_scales: torch.Tensor,
) -> None:
    operands = GroupedOperands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha)
    _fused_into(operands, limit, order, granularity, (out_codes, out_scales), out_global_scale)


@fused_swiglu_quantize_grouped_gemm_out.register_fake
def _(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    out_global_scale: torch.Tensor,
    limit: float | None,
    order: str,
    granularity: int,
    out_codes: torch.Tensor,
    out_scales: torch.Tensor,
) -> None:
    return None
