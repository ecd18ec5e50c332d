"""Argument checks of this package's operators. They look at shapes, dtypes and devices, never at values."""

from __future__ import annotations

import torch

BLOCK = 16
SCALE_DTYPES = (torch.float8_e4m3fn, torch.uint8)
INDEX_DTYPES = (torch.int32, torch.int64)


def require_codes_and_scales(codes: torch.Tensor, scales: torch.Tensor) -> int:
    """codes uint8 (..., N, K/2) with scales (..., N, K/16), row by row. Returns N."""
    if codes.dtype != torch.uint8:
        raise TypeError(f"codes: expected packed uint8, got {codes.dtype}; view float4_e2m1fn_x2 as uint8")
    if scales.dtype not in SCALE_DTYPES:
        raise TypeError(f"scales: expected float8_e4m3fn or uint8 bytes, got {scales.dtype}")
    wanted = (*codes.shape[:-1], codes.shape[-1] * 2 // BLOCK)
    if codes.dim() < 2 or codes.shape[-1] % (BLOCK // 2) or tuple(scales.shape) != wanted:
        raise ValueError(
            f"scales: expected {wanted}, one scale for 16 elements of codes {tuple(codes.shape)}, got "
            f"{tuple(scales.shape)}; pass linear scales, and swizzle after the rows are in order"
        )
    return codes.shape[-2]


def require_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Refuse another dtype, shape (None: any size) or device."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: expected {wanted}, got {tensor.dtype}; convert it before the call")
    matches = tensor.dim() == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not matches:
        text = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: expected shape ({text}), got {tuple(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, got {tensor.device}; move it before the call")


def require_limit(limit: float | None) -> None:
    """The SwiGLU limit: a positive finite number, or None for no clamp."""
    if limit is not None and not 0 < limit < float("inf"):
        raise ValueError(f"limit: expected a positive finite number or None for no clamp, got {limit}")


def require_implementation(implementation: str, available: tuple[str, ...]) -> None:
    """Refuse an implementation that is not there; none is ever substituted for another."""
    if implementation not in available:
        raise ValueError(
            f"implementation: expected one of {available}, got {implementation!r}; there is no silent fallback"
        )
