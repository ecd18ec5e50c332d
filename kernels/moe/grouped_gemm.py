"""Grouped NVFP4 matrix products of a mixture of experts: plain, and with clamped SwiGLU in the epilogue.

The torch implementations dequantise one row tile and one piece of one expert's weights at a time, in fp32, where the
products are exact; the sum over K is fp32. They read no value on the host: the routing may change between replays of
a captured graph. Speed is not their purpose.
"""

from __future__ import annotations

import torch

from kernels.moe.arguments import require_implementation, require_limit, require_tensor
from kernels.moe.layouts import GRANULARITIES, ORDERS
from kernels.moe.operands import WEIGHT_ROWS, GroupedOperands
from kernels.moe.swiglu import DEEPSEEK_V4_LIMIT, clamped_swiglu, split_gate_up
from kernels.moe.tiles import store_tile
from kernels.nvfp4 import quantize_activation_nvfp4

IMPLEMENTATIONS = ("torch",)
OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def run_nvfp4_grouped_gemm(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    implementation: str = "torch",
) -> torch.Tensor:
    """out[m] = alpha[e] * (a[m] @ b[e].T) for the expert e that owns row m; 0 for a row of no expert.

    a_codes uint8 (M, K/2), rows in expert order; a_scales (>= grouped_padded_rows(M, E), padded K/16), each expert's
    rows padded to 128 and swizzled separately. b_codes uint8 (E, N, K/2), K-major; b_scales (E, padded N, padded
    K/16), swizzled. expert_offsets int32 or int64 (E + 1,): expert e owns rows [offsets[e], offsets[e + 1]), empty
    experts anywhere, rows outside all of them allowed. alpha fp32 (E,), activation times weight global scale; or
    (E, 2), the second column for the second half of the N columns (gate and up quantised apart).

    Returns (M, N) in `out_dtype`, `out` if given; N is the logical N whatever the padding. Every element is written.

    Raises:
        TypeError, ValueError: an operand of another dtype, shape, layout or device; an unknown implementation.
    """
    require_implementation(implementation, IMPLEMENTATIONS)
    operands = GroupedOperands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha)
    if alpha.dim() == 2 and operands.columns % 2:
        raise ValueError(f"alpha: (E, 2) needs an even N, got {operands.columns}; pass (E,)")
    shape = (operands.rows, operands.columns)
    if torch.compiler.is_compiling():
        if out is None:
            out = torch.empty(shape, dtype=out_dtype, device=a_codes.device)
        torch.ops.kh_moe.grouped_gemm_out(a_codes, b_codes, a_scales, b_scales, expert_offsets, alpha, out)
        return out
    out = _output(out, shape, out_dtype, a_codes.device)
    _grouped_gemm_into(operands, out)
    return out


def run_fused_swiglu_grouped_gemm(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    *,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    order: str = "gate_up",
    granularity: int = 8,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    implementation: str = "torch",
) -> torch.Tensor:
    """The grouped product with clamped SwiGLU in its epilogue; weights interleaved by `interleave_l1_weights`.

    Operands as in `run_nvfp4_grouped_gemm` with N = 2*I rows in blocks of `granularity`, `order` naming the half that
    leads. alpha fp32 (E,), or (E, 2) for gate and up, in this sequence whatever the order. alpha, clamp and SwiGLU
    act on fp32 sums; the result (M, I) is rounded once. Rows of no expert are 0.
    """
    require_implementation(implementation, IMPLEMENTATIONS)
    operands = _fused_operands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha, order, granularity, limit)
    shape = (operands.rows, operands.columns // 2)
    if torch.compiler.is_compiling():
        if out is None:
            out = torch.empty(shape, dtype=out_dtype, device=a_codes.device)
        torch.ops.kh_moe.fused_swiglu_grouped_gemm_out(
            a_codes, b_codes, a_scales, b_scales, expert_offsets, alpha, limit, order, granularity, out
        )
        return out
    out = _output(out, shape, out_dtype, a_codes.device)
    _fused_into(operands, limit, order, granularity, out)
    return out


def run_fused_swiglu_quantize_grouped_gemm(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    out_global_scale: torch.Tensor,
    *,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    order: str = "gate_up",
    granularity: int = 8,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    implementation: str = "torch",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`run_fused_swiglu_grouped_gemm`, its fp32 result quantised to NVFP4 with no stop in bf16.

    out_global_scale fp32, one element. Returns codes uint8 (M, I/2) and linear scales float8_e4m3fn (M, I/16), `out`
    if given; zero for rows of no expert.
    """
    require_implementation(implementation, IMPLEMENTATIONS)
    operands = _fused_operands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha, order, granularity, limit)
    rows, half, device = operands.rows, operands.columns // 2, a_codes.device
    if half % 16:
        raise ValueError(f"b_codes: expected I a multiple of 16, the scale block, got {half}; pad each half")
    if out is None:
        codes = torch.empty((rows, half // 2), dtype=torch.uint8, device=device)
        out = codes, torch.empty((rows, half // 16), dtype=torch.float8_e4m3fn, device=device)
    require_tensor("out codes", out[0], (rows, half // 2), (torch.uint8,), device)
    require_tensor("out scales", out[1], (rows, half // 16), (torch.float8_e4m3fn,), device)
    if torch.compiler.is_compiling():
        torch.ops.kh_moe.fused_swiglu_quantize_grouped_gemm_out(
            a_codes, b_codes, a_scales, b_scales, expert_offsets, alpha, out_global_scale, limit, order, granularity,
            out[0], out[1].view(torch.uint8),
        )  # fmt: skip
        return out
    _fused_into(operands, limit, order, granularity, out, out_global_scale)
    return out


def _output(out: torch.Tensor | None, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if out is None:
        if dtype not in OUTPUT_DTYPES:
            raise TypeError(f"out_dtype: expected one of {OUTPUT_DTYPES}, got {dtype}")
        return torch.empty(shape, dtype=dtype, device=device)
    require_tensor("out", out, shape, OUTPUT_DTYPES, device)
    return out


def _fused_operands(
    a_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_codes: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    order: str,
    granularity: int,
    limit: float | None,
) -> GroupedOperands:
    require_limit(limit)
    operands = GroupedOperands(a_codes, a_scales, b_codes, b_scales, expert_offsets, alpha)
    if order not in ORDERS or granularity not in GRANULARITIES:
        raise ValueError(
            f"order, granularity: expected one of {ORDERS} and of {GRANULARITIES}, got {order!r} and {granularity}"
        )
    if operands.columns % (2 * granularity):
        raise ValueError(
            f"b_codes: expected N a multiple of {2 * granularity}, got {operands.columns}; interleave padded weights "
            "(pad_l1_weights, interleave_l1_weights)"
        )
    return operands


@torch.no_grad()
def _grouped_gemm_into(operands: GroupedOperands, out: torch.Tensor) -> None:
    out.zero_()
    if operands.rows == 0:
        return
    tiles, scales = operands.tiles(), operands.padded_a_scales()
    for index in range(tiles.count):
        expert = tiles.expert.narrow(0, index, 1)
        alpha = operands.column_alpha(expert)
        a = operands.a_tile(tiles, index, scales)
        for start in range(0, operands.columns, WEIGHT_ROWS):
            size = min(WEIGHT_ROWS, operands.columns - start)
            product = a @ operands.b_piece(expert, start, size).t()
            product.mul_(alpha.narrow(0, start, size))
            store_tile(out.narrow(1, start, size), tiles, index, product.to(out.dtype))


@torch.no_grad()
def _fused_into(
    operands: GroupedOperands,
    limit: float | None,
    order: str,
    granularity: int,
    out: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    out_global_scale: torch.Tensor | None = None,
) -> None:
    """Write SwiGLU of the product to `out`, or its codes and scales to the pair `out`."""
    parts = out if isinstance(out, tuple) else (out,)
    raw = tuple(part.view(torch.uint8) if part.element_size() == 1 else part for part in parts)
    for part in raw:
        part.zero_()
    if operands.rows == 0:
        return
    tiles, scales = operands.tiles(), operands.padded_a_scales()
    both = operands.alpha if operands.alpha.dim() == 2 else operands.alpha.unsqueeze(1).expand(-1, 2)
    for index in range(tiles.count):
        expert = tiles.expert.narrow(0, index, 1)
        alpha = both.index_select(0, expert)
        a = operands.a_tile(tiles, index, scales)
        pieces = []
        for start in range(0, operands.columns, WEIGHT_ROWS):
            size = min(WEIGHT_ROWS, operands.columns - start)
            product = a @ operands.b_piece(expert, start, size).t()
            gate, up = split_gate_up(product, order, granularity)
            pieces.append(clamped_swiglu(gate * alpha[:, :1], up * alpha[:, 1:], limit))
        y = torch.cat(pieces, dim=1)
        if out_global_scale is None:
            store_tile(raw[0], tiles, index, y.to(raw[0].dtype))
            continue
        codes, block_scales = quantize_activation_nvfp4(y, out_global_scale)
        store_tile(raw[0], tiles, index, codes)
        store_tile(raw[1], tiles, index, block_scales.view(torch.uint8))
