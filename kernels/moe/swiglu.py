"""Clamped SwiGLU, alone and with the NVFP4 quantisation of its result.

    gate' = min(gate, L)        only from above: a very negative gate is already shut
    up'   = clamp(up, -L, L)
    y     = gate' * sigmoid(gate') * up'

in fp32, on real values: after the global scales (alpha) of the matrix product have been applied, and before the
sigmoid. Clamping silu(gate) instead, or raw accumulators, is another function. DeepSeek-V4 has L = 10.
NaN in gate or up gives NaN; a gate of -inf gives NaN (-inf * 0).
"""

from __future__ import annotations

import torch

from kernels.moe.arguments import require_limit
from kernels.moe.layouts import GRANULARITIES, ORDERS
from kernels.nvfp4 import quantize_activation_nvfp4, quantize_peak_bytes

DEEPSEEK_V4_LIMIT = 10.0
FLOATS = (torch.bfloat16, torch.float16, torch.float32)

#: fp32 elements of one half worked on at a time: bounds the temporaries whatever the number of rows.
CHUNK_ELEMENTS = 1 << 20


def clamped_swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """y of the module's formula. gate and up: bf16, fp16 or fp32 of one shape, any strides.

    limit: L, or None for plain SwiGLU. The arithmetic is fp32; the result is rounded once, to `out_dtype` (default:
    gate's dtype).
    """
    if gate.shape != up.shape or gate.device != up.device:
        raise ValueError(
            f"up: expected the shape and device of gate, {tuple(gate.shape)} on {gate.device}, got "
            f"{tuple(up.shape)} on {up.device}"
        )
    if gate.dtype not in FLOATS or up.dtype not in FLOATS:
        raise TypeError(f"gate, up: expected bfloat16, float16 or float32, got {gate.dtype} and {up.dtype}")
    require_limit(limit)
    g, u = gate.float(), up.float()
    if limit is not None:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    return (torch.nn.functional.silu(g) * u).to(out_dtype or gate.dtype)


def split_gate_up(
    x: torch.Tensor, order: str = "gate_up", granularity: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns (M, 2*I) of an L1 product, in the row order of its weights, to gate and up, (M, I) each.

    Views where the layout allows it. The halves meet at half of x's own width, which is not the intermediate size if
    that was padded.
    """
    if x.dim() != 2 or x.shape[1] % 2:
        raise ValueError(f"x: expected (M, 2*I), got {tuple(x.shape)}")
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {ORDERS}, got {order!r}")
    rows, half = x.shape[0], x.shape[1] // 2
    if granularity is None:
        first, second = x.narrow(1, 0, half), x.narrow(1, half, half)
    else:
        if granularity not in GRANULARITIES or half % granularity:
            raise ValueError(f"granularity: expected one of {GRANULARITIES} that divides I = {half}, got {granularity}")
        blocks = x.reshape(rows, half // granularity, 2, granularity)
        first, second = (blocks.select(2, i).reshape(rows, half) for i in range(2))
    return (first, second) if order == "gate_up" else (second, first)


def swiglu_quantize_nvfp4(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    limit: float | None = DEEPSEEK_V4_LIMIT,
    *,
    order: str = "gate_up",
    granularity: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU of an L1 product (M, 2*I), quantised to what L2 consumes.

    x: bf16, fp16 or fp32, columns in the row order of the L1 weights. global_scale: fp32, one element on x's device,
    multiplies on dequantisation. The fp32 value of y is quantised as it is, without a stop in bf16.
    out: contiguous (codes uint8 (M, I/2), scales float8_e4m3fn (M, I/16)); returned, or allocated if None.
    """
    require_limit(limit)
    if x.dim() != 2 or x.shape[1] % 32:
        raise ValueError(f"x: expected (M, 2*I) with I a multiple of 16, got {tuple(x.shape)}; pad each half")
    rows, half = x.shape[0], x.shape[1] // 2
    if out is None:
        codes = torch.empty((rows, half // 2), dtype=torch.uint8, device=x.device)
        out = codes, torch.empty((rows, half // 16), dtype=torch.float8_e4m3fn, device=x.device)
    step = _chunk_rows(half)
    for start in range(0, rows, step):
        size = min(step, rows - start)
        gate, up = split_gate_up(x.narrow(0, start, size), order, granularity)
        y = clamped_swiglu(gate, up, limit, out_dtype=torch.float32)
        quantize_activation_nvfp4(y, global_scale, out=(out[0].narrow(0, start, size), out[1].narrow(0, start, size)))
    return out


def swiglu_quantize_peak_bytes(rows: int, intermediate: int) -> int:
    """Upper bound of the bytes that `swiglu_quantize_nvfp4` allocates at its peak, outputs included, input not."""
    chunk = (min(rows, _chunk_rows(intermediate)), intermediate)
    # At most five fp32 temporaries of a chunk: copies of gate and up, their clamps, and silu or the product.
    return rows * intermediate * 9 // 16 + 20 * chunk[0] * chunk[1] + quantize_peak_bytes(chunk, torch.float32)


def _chunk_rows(intermediate: int) -> int:
    return max(1, CHUNK_ELEMENTS // max(intermediate, 1))
