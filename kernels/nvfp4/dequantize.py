"""NVFP4 back to floats."""

from __future__ import annotations

import torch

from kernels.nvfp4.arguments import BLOCK, require_choice
from kernels.nvfp4.chunks import chunks, piece
from kernels.nvfp4.e2m1 import decode_e2m1, unpack_e2m1
from kernels.nvfp4.layout import SCALE_LAYOUTS, unswizzle_scales

OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _require(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, scale_layout: str) -> torch.Tensor:
    """Check the pair; returns the scales in row-major order."""
    if codes.dtype != torch.uint8 or codes.dim() == 0:
        raise TypeError(
            f"codes: expected packed uint8 (..., K/2), got {tuple(codes.shape)} {codes.dtype}; "
            f"view float4_e2m1fn_x2 as uint8"
        )
    if scales.dtype != torch.float8_e4m3fn:
        raise TypeError(
            f"scales: expected float8_e4m3fn, got {scales.dtype}; for raw bytes use scales.view(torch.float8_e4m3fn)"
        )
    if dtype not in OUTPUT_DTYPES:
        raise TypeError(f"dtype: expected bfloat16, float16 or float32, got {dtype}")
    require_choice(scale_layout, SCALE_LAYOUTS, "scale_layout")
    *rows, half = codes.shape
    if scale_layout == "swizzled":
        if not rows:
            raise ValueError("scale_layout: swizzled scales belong to codes of at least 2 dimensions")
        scales = unswizzle_scales(scales, rows[-1], 2 * half // BLOCK)
    if (2 * half) % BLOCK or tuple(scales.shape) != (*rows, 2 * half // BLOCK):
        raise ValueError(
            f"scales: expected {(*rows, 2 * half // BLOCK)} for codes {tuple(codes.shape)}, got {tuple(scales.shape)}"
        )
    if scales.device != codes.device:
        raise ValueError(f"scales: expected device {codes.device}, got {scales.device}")
    return scales


@torch.no_grad()
def _dequantize_into(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, out: torch.Tensor
) -> None:
    if codes.dim() == 1:
        codes, scales, out = codes.unsqueeze(0), scales.unsqueeze(0), out.unsqueeze(0)
    for at in chunks(tuple(out.shape)):
        g = global_scale
        if g is not None and g.dim():  # one an expert: the leading index of the piece, or the range that it spans
            g = g.select(0, at[0][0]) if at[0] else g.narrow(0, at[1], at[2] - at[1])
        _dequantize_chunk(piece(codes, *at), piece(scales, *at), g, piece(out, *at))


def _dequantize_chunk(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, out: torch.Tensor
) -> None:
    # The product of a code and a block scale has at most 6 significant bits, so it is exact in any output dtype.
    work = out.dtype if global_scale is None else torch.float32
    value = decode_e2m1(unpack_e2m1(codes), work).view(*scales.shape, BLOCK)
    value.mul_(scales.to(work).unsqueeze(-1))
    if global_scale is not None:
        value.mul_(global_scale.view(-1, *[1] * (value.dim() - 1)) if global_scale.dim() else global_scale)
    out.copy_(value.view(out.shape))


def dequantize_nvfp4(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    *,
    scale_layout: str = "linear",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """value(code) * scale [* global_scale] in `dtype`, shape (..., K), contiguous.

    codes uint8 (..., K/2); scales float8_e4m3fn (..., K/16), or their swizzle with `scale_layout="swizzled"`.
    Without `global_scale` the result is exact in bf16, fp16 and fp32 (at most 6 significant bits, 2^-10 to 2688): the
    form for a matrix product whose epilogue applies the global scale as alpha in fp32. With it (fp32, one element, or
    (E,) for a stack (E, N, K)): one fp32 product, then one rounding to `dtype`. NaN scale bytes give NaN.
    """
    linear = _require(codes, scales, dtype, scale_layout)
    shape = (*codes.shape[:-1], 2 * codes.shape[-1])
    if global_scale is not None:
        if not isinstance(global_scale, torch.Tensor) or global_scale.dtype != torch.float32:
            raise TypeError("global_scale: expected a float32 tensor with one element, or one an expert")
        if global_scale.device != codes.device:
            raise ValueError(f"global_scale: expected device {codes.device}, got {global_scale.device}")
        if not (len(shape) >= 3 and tuple(global_scale.shape) == (shape[0],)):
            if global_scale.numel() != 1:
                raise ValueError(
                    f"global_scale: expected one element, or ({shape[0]},) for a stack, got {tuple(global_scale.shape)}"
                )
            global_scale = global_scale.reshape(())
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=codes.device)
    elif tuple(out.shape) != shape or out.dtype != dtype or out.device != codes.device:
        raise ValueError(
            f"out: expected {shape} {dtype} on {codes.device}, got {tuple(out.shape)} {out.dtype} {out.device}"
        )
    if torch.compiler.is_compiling():
        torch.ops.kh_nvfp4.dequantize_out(codes, linear.contiguous().view(torch.uint8), global_scale, out)
    else:
        _dequantize_into(codes, linear, global_scale, out)
    return out
