"""Triton launches. Recorded, not run, by the lint; the cases are skipped where Triton is not installed."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import STATE, case

try:
    import triton
    import triton.language as tl

    @triton.jit
    def _double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

except ImportError:
    triton = None


@case("ok", needs="triton")
def triton_warm(x):
    y = torch.empty_like(x)
    _double[(4,)](x, y, x.numel(), BLOCK=128)
    return y


@case("break", needs="triton")
def triton_cold(x):
    STATE.calls += 1
    y = torch.empty_like(x)
    _double[(64,)](x, y, x.numel(), BLOCK=8 << STATE.calls)
    return y


@case("break", needs="triton")
def triton_cpu_tensor(x):
    y = torch.empty_like(x)
    _double[(4,)](torch.ones(8, 64, dtype=x.dtype), y, x.numel(), BLOCK=128)
    return y
