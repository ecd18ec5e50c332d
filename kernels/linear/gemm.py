"""NVFP4 matrix product y = (x @ w.T) * alpha, activations quantised to NVFP4 (W4A4).

The torch implementation dequantises one piece of the weights at a time, in fp32, where a code times its block scale
is exact and so is the product of two; the sum over K is fp32, and alpha, the product of the two global scales, comes
last.
"""

from __future__ import annotations

import torch

from kernels.nvfp4 import dequantize_nvfp4, quantize_activation_nvfp4, quantize_peak_bytes, unswizzle_scales
from kernels.nvfp4.chunks import CHUNK_ELEMENTS
from kernels.nvfp4.layout import padded_columns, padded_rows

IMPLEMENTATIONS = ("torch",)
INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

#: Rows of activations and of weights dequantised at a time; multiples of 128, so that a piece is whole swizzle atoms.
ACTIVATION_ROWS = 512
WEIGHT_ROWS = 1024


def run_nvfp4_linear(
    x: torch.Tensor,
    weight_codes: torch.Tensor,
    weight_scales: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    implementation: str = "torch",
) -> torch.Tensor:
    """Quantise x (M, K) with `input_global_scale` and multiply by the weights.

    x bf16, fp16 or fp32, any strides, K a multiple of 16. weight_codes uint8 (N, K/2), K-major; weight_scales bytes
    or E4M3 (padded N, padded K/16), swizzled. alpha fp32, one element: weight times input global scale.
    Returns (M, N) in `out_dtype` (default: x's), `out` if given; N is the logical N.

    Raises:
        TypeError, ValueError: shapes, dtypes or devices that do not fit; an unknown implementation.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation: expected one of {IMPLEMENTATIONS}, got {implementation!r}; there is no silent fallback"
        )
    if x.dim() != 2 or x.dtype not in INPUT_DTYPES:
        raise TypeError(f"x: expected (M, K) of {INPUT_DTYPES}, got {tuple(x.shape)} {x.dtype}")
    columns, depth = weight_codes.shape[0], 2 * weight_codes.shape[1]
    if x.shape[1] != depth:
        raise ValueError(f"x: expected K = {depth}, that of the weights, got {x.shape[1]}")
    wanted = (padded_rows(columns), padded_columns(depth // 16))
    if weight_codes.dtype != torch.uint8 or tuple(weight_scales.shape) != wanted or weight_scales.element_size() != 1:
        raise ValueError(
            f"weight_scales: expected swizzled bytes {wanted} for uint8 codes {tuple(weight_codes.shape)}, got "
            f"{tuple(weight_scales.shape)} {weight_scales.dtype}; swizzle with kernels.nvfp4.swizzle_scales"
        )
    for name, scale in (("alpha", alpha), ("input_global_scale", input_global_scale)):
        if scale.dtype != torch.float32 or scale.numel() != 1:
            raise ValueError(f"{name}: expected one fp32 element, got {tuple(scale.shape)} {scale.dtype}")
    for name, tensor in (("weight_codes", weight_codes), ("weight_scales", weight_scales), ("alpha", alpha)):
        if tensor.device != x.device:
            raise ValueError(f"{name}: expected a tensor on {x.device}, got {tensor.device}; move it before the call")
    shape = (x.shape[0], columns)
    if out is None:
        out = torch.empty(shape, dtype=out_dtype or x.dtype, device=x.device)
    elif tuple(out.shape) != shape or out.device != x.device or out.dtype not in INPUT_DTYPES:
        raise ValueError(f"out: expected {shape} on {x.device}, got {tuple(out.shape)} {out.dtype} on {out.device}")
    if torch.compiler.is_compiling():
        torch.ops.kh_linear.nvfp4_linear_out(x, weight_codes, weight_scales, alpha, input_global_scale, out)
    else:
        _linear_into(x, weight_codes, weight_scales, alpha, input_global_scale, out)
    return out


@torch.no_grad()
def _linear_into(
    x: torch.Tensor,
    weight_codes: torch.Tensor,
    weight_scales: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    rows, columns, depth = x.shape[0], weight_codes.shape[0], x.shape[1]
    if rows == 0:
        return
    codes, scales = quantize_activation_nvfp4(x, input_global_scale)
    raw, alpha = weight_scales.view(torch.uint8), alpha.reshape(())
    for n in range(0, columns, WEIGHT_ROWS):
        width = min(WEIGHT_ROWS, columns - n)
        linear = unswizzle_scales(raw.narrow(0, n, padded_rows(width)), width, depth // 16)
        w = dequantize_nvfp4(weight_codes.narrow(0, n, width), linear.view(torch.float8_e4m3fn), dtype=torch.float32)
        for m in range(0, rows, ACTIVATION_ROWS):
            height = min(ACTIVATION_ROWS, rows - m)
            a = dequantize_nvfp4(codes.narrow(0, m, height), scales.narrow(0, m, height), dtype=torch.float32)
            out.narrow(0, m, height).narrow(1, n, width).copy_((a @ w.t()).mul_(alpha))
            del a  # before the next piece is made: two of a kind at once would double the workspace
        del w, linear


def linear_peak_bytes(rows: int, columns: int, depth: int, itemsize: int = 2) -> int:
    """Upper bound of the bytes that `run_nvfp4_linear` allocates at its peak: output, quantised activations and one
    piece of each operand. Never the weights as a whole."""
    height, width = min(rows, ACTIVATION_ROWS), min(columns, WEIGHT_ROWS)
    quantised = 9 * rows * depth // 16
    pieces = 4 * (height + width) * depth + 4 * height * width
    pieces += 3 * padded_rows(width) * padded_columns(depth // 16)
    # What `dequantize_nvfp4` holds of one chunk while it decodes.
    pieces += 16 * min(max(height, width) * depth, max(CHUNK_ELEMENTS, depth))
    return rows * columns * itemsize + quantised + max(pieces, quantize_peak_bytes((rows, depth))) + (1 << 16)
