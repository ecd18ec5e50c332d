"""Everything a grouped product does once, done eagerly: before buffers are allocated and before a graph is captured.

The torch implementation compiles nothing; its first call still makes libraries load and allocate (cuBLAS handles and
workspaces), which a capture must not meet. Compiled implementations build here, and only here.
"""

from __future__ import annotations

import torch

from kernels.moe.arguments import require_implementation
from kernels.moe.grouped_gemm import (
    IMPLEMENTATIONS,
    run_fused_swiglu_grouped_gemm,
    run_nvfp4_grouped_gemm,
)
from kernels.nvfp4.layout import grouped_padded_rows, padded_columns, padded_rows


def warmup_compilation(columns: int, depth: int, device: torch.device | str, *, implementation: str = "torch") -> None:
    """Make `run_nvfp4_grouped_gemm` ready for N = `columns`, K = `depth` and any number of rows and experts."""
    refuse_capture(device)
    require_implementation(implementation, IMPLEMENTATIONS)
    run_nvfp4_grouped_gemm(*_zeros(columns, depth, device), implementation=implementation)
    _synchronize(device)


def warmup_fused_swiglu_compilation(
    columns: int,
    depth: int,
    device: torch.device | str,
    *,
    limit: float | None,
    granularity: int = 8,
    implementation: str = "torch",
) -> None:
    """Make `run_fused_swiglu_grouped_gemm` ready; `columns` is 2*I."""
    refuse_capture(device)
    require_implementation(implementation, IMPLEMENTATIONS)
    run_fused_swiglu_grouped_gemm(
        *_zeros(columns, depth, device), limit=limit, granularity=granularity, implementation=implementation
    )
    _synchronize(device)


def refuse_capture(device: torch.device | str) -> None:
    """Raise if a graph capture is under way on the current stream."""
    if torch.device(device).type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("warm-up inside a graph capture: call it before the capture begins")


def _zeros(columns: int, depth: int, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """One row of one expert, all zero."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8, device=device)

    wide = padded_columns(depth // 16)
    return (
        zeros(1, depth // 2),
        zeros(1, columns, depth // 2),
        zeros(grouped_padded_rows(1, 1), wide),
        zeros(1, padded_rows(columns), wide),
        torch.arange(2, dtype=torch.int32, device=device),
        torch.ones(1, device=device),
    )


def _synchronize(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
