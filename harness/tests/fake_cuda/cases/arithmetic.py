"""Plain kernels that must not raise a false alarm."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import case


@case("ok")
def topk(x):
    return torch.topk(x, 2)


@case("ok")
def sort(x):
    return torch.sort(x)


@case("ok")
def cumsum(x):
    return x.float().cumsum(0)


@case("ok")
def amax_clamp(x):
    return (x.float().abs().amax(-1) / 6).clamp(min=1e-12)


@case("ok")
def f8cast(x):
    return x.to(torch.float8_e4m3fn)


@case("ok")
def matmul(x):
    return x @ x.t()
