"""Clamped SwiGLU from its formula in double precision, and its quantisation byte by byte."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.moe.layouts import GRANULARITIES, L1Layout, l1_row_order
from kernels.moe.swiglu import (
    clamped_swiglu,
    split_gate_up,
    swiglu_quantize_nvfp4,
    swiglu_quantize_peak_bytes,
)
from kernels.nvfp4 import quantize_activation_nvfp4


def formula(gate: float, up: float, limit: float | None) -> float:
    if limit is not None:
        gate, up = min(gate, limit), max(-limit, min(up, limit))
    return gate / (1 + math.exp(-gate)) * up if gate > -700 else -0.0 * up


GATES = (-700.0, -50.0, -10.1, -10.0, -1.0, -1e-30, -0.0, 0.0, 0.5, 9.9, 10.0, 10.1, 50.0, 3e38)
UPS = (-3e38, -50.0, -10.1, -10.0, -9.9, -0.5, 0.0, 1e-30, 2.0, 9.9, 10.0, 10.1, 50.0, 3e38)


@pytest.mark.parametrize("limit", [10.0, 7.0, None])
def test_against_the_formula(limit: float | None) -> None:
    gate = torch.tensor(GATES).repeat_interleave(len(UPS))
    up = torch.tensor(UPS).repeat(len(GATES))
    got = clamped_swiglu(gate, up, limit).tolist()
    for g, u, y in zip(gate.tolist(), up.tolist(), got, strict=True):
        expected = formula(g, u, limit)
        if abs(expected) < 3.4e38:
            assert y == pytest.approx(expected, rel=2e-6, abs=1e-37), (g, u)


def test_golden_clamp_edges() -> None:
    gate = torch.tensor([9.9, 10.0, 10.1, 50.0, -50.0, 1.0, 1.0])
    up = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 10.1, -10.1])
    got = clamped_swiglu(gate, up, 10.0)
    assert got[1] == got[2] == got[3]
    assert got[0] < got[1]
    assert got[1].item() == pytest.approx(9.99954602, rel=1e-6)
    assert got[4].item() == pytest.approx(-50 * math.exp(-50), rel=1e-5)
    assert (got[5], got[6]) == (clamped_swiglu(gate[5], torch.tensor(10.0)), -got[5])


def test_nan_is_not_swallowed_by_the_clamp() -> None:
    nan, one = torch.tensor([math.nan]), torch.ones(1)
    assert clamped_swiglu(nan, one).isnan().all()
    assert clamped_swiglu(one, nan).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_rounding_at_the_end(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    gate = (torch.randn(512, generator=generator) * 4).to(dtype)
    up = (torch.randn(512, generator=generator) * 8 + 3).to(dtype)
    exact = torch.tensor([formula(g, u, 10.0) for g, u in zip(gate.tolist(), up.tolist(), strict=True)])
    got = clamped_swiglu(gate, up)
    assert got.dtype == dtype
    bound = exact.abs() * torch.finfo(dtype).eps * (2 if dtype == torch.float32 else 0.51) + 1e-7
    assert ((got.double() - exact).abs() <= bound).all()


def l1_product(rows: int, intermediate: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gate and up of different spread and mean, and gate beyond the clamp; canonical (M, 2*I)."""
    generator = torch.Generator().manual_seed(rows + intermediate)
    gate = torch.randn(rows, intermediate, generator=generator) * 6 + 1
    up = torch.randn(rows, intermediate, generator=generator) * 0.7 - 0.3
    return gate, up, torch.cat((gate, up), dim=1)


@pytest.mark.parametrize("granularity", [None, *GRANULARITIES])
@pytest.mark.parametrize("order", ["gate_up", "up_gate"])
def test_split_undoes_the_row_order_of_the_weights(order: str, granularity: int | None) -> None:
    gate, up, canonical = l1_product(5, 192)
    stored = canonical.index_select(1, l1_row_order(L1Layout(order, granularity), 192))
    got = split_gate_up(stored, order, granularity)
    assert torch.equal(got[0], gate)
    assert torch.equal(got[1], up)


@pytest.mark.parametrize("rows", [0, 1, 7, 130])
@pytest.mark.parametrize("granularity", [None, 8, 16])
def test_quantised_result_is_the_quantised_fp32_result(
    rows: int, granularity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.moe.swiglu.CHUNK_ELEMENTS", 48 * 20)  # several chunks, the last one short
    gate, up, canonical = l1_product(rows, 48)
    x = canonical.index_select(1, l1_row_order(L1Layout("up_gate", granularity), 48)).bfloat16()
    scale = torch.tensor(0.013)
    y = clamped_swiglu(gate.bfloat16(), up.bfloat16(), out_dtype=torch.float32)
    expected = quantize_activation_nvfp4(y, scale)
    got = swiglu_quantize_nvfp4(x, scale, order="up_gate", granularity=granularity)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1].view(torch.uint8), expected[1].view(torch.uint8))


def test_out_is_what_is_written() -> None:
    _, _, x = l1_product(6, 32)
    out = torch.full((6, 16), 99, dtype=torch.uint8), torch.zeros(6, 2, dtype=torch.float8_e4m3fn)
    got = swiglu_quantize_nvfp4(x, torch.tensor(0.02), out=out)
    assert got[0].data_ptr() == out[0].data_ptr()
    assert torch.equal(out[0], swiglu_quantize_nvfp4(x, torch.tensor(0.02))[0])


def test_peak_formula_grows_with_the_output_only() -> None:
    small, large = (swiglu_quantize_peak_bytes(rows, 3072) for rows in (8192, 16384))
    assert large - small == 8192 * 3072 * 9 // 16


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_limits_that_are_none(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        clamped_swiglu(torch.ones(1), torch.ones(1), limit)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="shape and device of gate"):
        clamped_swiglu(torch.ones(2), torch.ones(3))
    with pytest.raises(TypeError, match="float16"):
        clamped_swiglu(torch.ones(2).double(), torch.ones(2).double())
    with pytest.raises(ValueError, match="multiple of 16"):
        swiglu_quantize_nvfp4(torch.ones(2, 16), torch.tensor(1.0))
    with pytest.raises(ValueError, match="divides I"):
        split_gate_up(torch.ones(2, 24), granularity=8)
