"""The exact references of ``kernels.nvfp4``, called on tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kernels.nvfp4.reference import reference_dequantize, reference_global_scale, reference_quantize

_CHUNK = 1 << 15
"""Elements a chunk: temporaries stay in cache, which more than halves the time per element. Threads do not help:
numpy's operations are too short at this size, and memory-bound at a larger one (measured on 2 and on 16 cores)."""


def global_scale(x: torch.Tensor, compat: str | None = None) -> torch.Tensor:
    """fp32 0-d global scale of a tensor, on its device."""
    values = _numpy(x)
    if values.size:  # the largest magnitude is exact however it is found, and NaN stays NaN
        values = np.abs(values).max(keepdims=True)
    return torch.tensor(reference_global_scale(values, compat), device=x.device)


def quantize(x: torch.Tensor, scale: torch.Tensor, compat: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 (..., K/2) and scales float8_e4m3fn (..., K/16) of x (..., K) under a given global scale."""
    values = _numpy(x)
    *rows, k = values.shape
    flat = values.reshape(-1, k)
    given = np.float32(scale.cpu())
    step = max(1, _CHUNK // max(k, 1))
    parts = [reference_quantize(flat[at : at + step], given, compat)[:2] for at in range(0, flat.shape[0], step)]
    codes = np.concatenate([part[0] for part in parts]) if parts else np.zeros((0, k // 2), np.uint8)
    scales = np.concatenate([part[1] for part in parts]) if parts else np.zeros((0, k // 16), np.uint8)
    return (
        torch.from_numpy(codes.reshape(*rows, k // 2)).to(x.device),
        torch.from_numpy(scales.reshape(*rows, k // 16)).view(torch.float8_e4m3fn).to(x.device),
    )


def dequantize(codes: torch.Tensor, scales: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """value(code) * scale * global_scale in float64."""
    given = None if scale is None else np.float32(scale.cpu())
    values = reference_dequantize(codes.cpu().numpy(), scales.view(torch.uint8).cpu().numpy(), given)
    return torch.from_numpy(values).to(codes.device)


def _numpy(x: torch.Tensor) -> npt.NDArray[np.float32]:
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"expected bf16, fp16 or fp32, got {x.dtype}")
    return x.detach().float().cpu().contiguous().numpy()
