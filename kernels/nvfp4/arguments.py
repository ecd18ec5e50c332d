"""Argument checks of the public functions: each error says what was expected, what came, and how to mend it.

None of them reads a value of a tensor, so none waits for a GPU; `require_finite` does and is for offline use only.
"""

from __future__ import annotations

import torch

BLOCK = 16
INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def require_operand(x: torch.Tensor, name: str = "x") -> None:
    """A tensor of bf16, fp16 or fp32 with at least one dimension, the last a multiple of 16."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in INPUT_DTYPES:
        raise TypeError(f"{name}: expected bfloat16, float16 or float32, got {x.dtype}; cast it with {name}.to(...)")
    if x.dim() == 0:
        raise ValueError(f"{name}: expected (..., K) with K a multiple of {BLOCK}, got a 0-d tensor")
    if x.shape[-1] % BLOCK:
        raise ValueError(
            f"{name}: expected K (the last dimension) to be a multiple of {BLOCK}, got shape {tuple(x.shape)}; "
            f"pad K to {-(-x.shape[-1] // BLOCK) * BLOCK} with zeros, or pass k_dim if K is another axis of a weight"
        )


def require_global_scale(g: torch.Tensor, like: torch.Tensor, name: str = "global_scale") -> torch.Tensor:
    """One fp32 element on the device of `like`; returned as a 0-d view."""
    if not isinstance(g, torch.Tensor):
        raise TypeError(
            f"{name}: expected a 0-d float32 tensor on {like.device}, got {type(g).__name__}; "
            f"make it once, outside the hot path: torch.full((), value, device=x.device)"
        )
    if g.dtype != torch.float32:
        raise TypeError(f"{name}: expected float32, got {g.dtype}; cast it with .float()")
    if g.numel() != 1:
        raise ValueError(f"{name}: expected one element for the whole tensor, got shape {tuple(g.shape)}")
    if g.device != like.device:
        raise ValueError(
            f"{name}: expected it on {like.device} with the operand, got {g.device}; move it once, outside the hot "
            f"path (a copy inside the call would break CUDA-graph capture)"
        )
    return g.reshape(())


def require_choice(value: str | None, allowed: tuple[str | None, ...], name: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def require_output(
    t: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, name: str
) -> None:
    """`out=` buffers: exact shape, dtype and device, contiguous (they are written through flat views)."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(t).__name__}")
    if t.dtype != dtype:
        raise TypeError(f"{name}: expected {dtype}, got {t.dtype}")
    if tuple(t.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(t.shape)}")
    if t.device != device:
        raise ValueError(f"{name}: expected device {device}, got {t.device}")
    if not t.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous buffer, got strides {t.stride()}")


def require_finite(x: torch.Tensor, name: str) -> None:
    """Refuse NaN and infinities. Reads the result on the host, so never call it on a hot path."""
    if x.numel() == 0:
        return
    low, high = torch.aminmax(x)  # no temporary of x's size; a NaN propagates into both
    if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
        bad = sum(int((~torch.isfinite(row)).sum()) for row in x.reshape(-1, x.shape[-1]).split(4096))
        raise ValueError(
            f"{name}: expected finite values, got {bad} NaN or infinite of {x.numel()}; mend the source, or pass "
            f"check_finite=False to get the documented hot-path rule for them"
        )
