"""The reference against the Fraction evaluator and IEEE hardware; the implementation against the reference."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels.nvfp4 import decode_e2m1, encode_e2m1, quantize_activation_nvfp4, quantize_to_nvfp4
from kernels.nvfp4 import reference as R
from kernels.nvfp4.e4m3 import to_scale_e4m3
from kernels.nvfp4.exact import E2M1, E4M3, fp32, nearest
from kernels.nvfp4.golden import expected
from kernels.nvfp4.regimes import regimes

REGIMES = list(regimes())
BITS = np.random.RandomState(0).randint(0, 1 << 32, size=(1 << 12, 16), dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("compat", [None, "modelopt"])
@pytest.mark.parametrize("regime", REGIMES, ids=lambda r: r.name)
def test_reference_equals_fractions(regime, compat):
    g = None if regime.global_scale is None else np.float32(regime.global_scale)
    found = R.reference_quantize(regime.x, g, compat)
    for a, b in zip(found, expected(regime, compat), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("compat", [None, "modelopt"])
@pytest.mark.parametrize("regime", REGIMES, ids=lambda r: r.name)
def test_torch_equals_reference(regime, compat, quantized):
    g = None if regime.global_scale is None else np.float32(regime.global_scale)
    for a, b in zip(quantized(regime, compat), R.reference_quantize(regime.x, g, compat), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("regime", [r for r in REGIMES if r.finite], ids=lambda r: r.name)
def test_finite_input_never_gives_nan_and_zero_scale_means_zero_codes(regime, quantized):
    for compat in (None, "modelopt"):
        _, scales, g = quantized(regime, compat)
        assert np.isfinite(g)
        assert not np.any((scales & 0x7F) == 0x7F)
        assert not np.any(scales & 0x80)
    codes, scales, _ = quantized(regime)
    zero = np.repeat(scales == 0, 8, axis=-1)
    assert not codes[zero].any()


def test_fp32_arithmetic_of_the_reference_is_ieee():
    """Quotients and products of 65,536 random bit patterns (NaN, inf and subnormals among them)."""
    a = BITS.view(np.float32).reshape(-1)
    b = np.roll(a, 12345)
    with np.errstate(all="ignore"):
        wanted = (np.abs(a / b), np.abs(a * b))
    sa, sb = R._split(a)[:2], R._split(b)[:2]
    for found, want in zip((R._divide(sa, sb), R._multiply(sa, sb)), wanted, strict=True):
        got = R._join_fp32(found)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all()


@pytest.mark.parametrize("g", [1.0, 3e-30, 1e-38, 1e-40, 1e-44, 0.0, 1e30, 1e38, float("inf"), float("nan"), -1.0])
def test_random_bit_patterns_under_any_global_scale(g):
    """Inputs are raw fp32 patterns: every magnitude, NaN and inf. Implementation and reference agree to the bit."""
    x = BITS[:512].view(np.float32)
    codes, scales = quantize_activation_nvfp4(torch.from_numpy(x), torch.tensor(g))
    want = R.reference_quantize(x, np.float32(g))
    np.testing.assert_array_equal(codes.numpy(), want[0])
    np.testing.assert_array_equal(scales.view(torch.uint8).numpy(), want[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_a_16_bit_dtype(dtype):
    """All 65,536 patterns of the dtype as elements, with the scale byte spread over its range by the neighbours."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(-1, 16)
    for g in (1.0, 2.0**-6):
        codes, scales = quantize_activation_nvfp4(x, torch.tensor(g))
        want = R.reference_quantize(x.float().numpy(), np.float32(g))
        np.testing.assert_array_equal(codes.numpy(), want[0])
        np.testing.assert_array_equal(scales.view(torch.uint8).numpy(), want[1])


def _grid(table):
    """Every value and midpoint of a format with its fp32 neighbours on both sides."""
    points = [float(v) for v in table] + [float((a + b) / 2) for a, b in pairwise(table)]
    centre = np.array(points, np.float32)
    return np.concatenate(
        (np.nextafter(centre, -np.inf, dtype=np.float32), centre, np.nextafter(centre, np.inf, dtype=np.float32))
    )


def test_e2m1_codec_on_every_midpoint_and_neighbour():
    x = np.concatenate((_grid(E2M1), np.array([7, 1e30, np.inf], np.float32)))
    x = np.abs(x)
    want = [nearest(min(Fraction(float(min(v, 1e9))), Fraction(10)), E2M1) for v in x]
    assert encode_e2m1(torch.from_numpy(x)).tolist() == want
    assert encode_e2m1(torch.from_numpy(-x)).tolist() == [w + 8 for w in want]
    assert encode_e2m1(torch.tensor([float("nan"), -float("nan"), -0.0, 0.0])).tolist() == [7, 7, 8, 0]
    values = decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert values.tolist() == [float(v) for v in E2M1] + [-float(v) for v in E2M1]
    assert torch.signbit(values[8])


def test_e2m1_rounding_on_a_fine_sweep():
    """2^17 equidistant values of [0, 8): every regime, every tie, against the list search."""
    x = torch.arange(1 << 17, dtype=torch.float32) / (1 << 14)
    thresholds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below = (x.unsqueeze(-1) > thresholds).sum(-1)
    tie_up = ((x.unsqueeze(-1) == thresholds) & torch.tensor([False, True] * 3 + [False])).sum(-1)
    assert torch.equal(encode_e2m1(x).long(), below + tie_up)


def test_e4m3_cast_on_every_midpoint_and_neighbour():
    x = np.abs(np.concatenate((_grid(E4M3), np.array([449, 463, 464, 465, 480, 500, 1e30, np.inf], np.float32))))
    want = [nearest(Fraction(float(min(v, 1e9))), E4M3) for v in x]
    assert to_scale_e4m3(torch.from_numpy(x)).view(torch.uint8).tolist() == want
    nan = torch.tensor([float("nan"), -float("nan")])
    assert to_scale_e4m3(nan).view(torch.uint8).tolist() == [0x7F, 0x7F]


def test_fraction_rounding_to_fp32_is_numpys():
    for v in (1 / 3, 2688.0, 1e-40, 1e-45, 7e-46, 3.4e38, 16777217.0, 0.1):
        assert fp32(Fraction(v)) == Fraction(float(np.float32(v)))
    with pytest.raises(OverflowError):
        fp32(Fraction(2) ** 128)


def test_special_block_does_not_touch_its_neighbours():
    """Under a given scale, a NaN or inf block leaves all other bytes as they are without it."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    g = torch.tensor(0.01)
    plain = quantize_activation_nvfp4(x, g)
    for value in (float("nan"), float("inf"), -float("inf"), 0.0, 1e-30, 3e38):
        y = x.clone()
        y[3, 16:32] = value
        codes, scales = quantize_activation_nvfp4(y, g)
        other = torch.ones(8, 4, dtype=torch.bool)
        other[3, 1] = False
        assert torch.equal(scales.view(torch.uint8)[other], plain[1].view(torch.uint8)[other])
        assert torch.equal(codes.view(8, 4, 8)[other], plain[0].view(8, 4, 8)[other])


def test_nan_and_inf_rule():
    x = torch.ones(1, 48)
    x[0, 3], x[0, 20], x[0, 21] = float("nan"), float("inf"), -float("inf")
    codes, scales = quantize_activation_nvfp4(x, torch.tensor(0.01))
    assert scales.view(torch.uint8).tolist()[0][:2] == [0x7F, 0x7E]
    assert codes[0, :8].tolist() == [0x77] * 8
    assert codes[0, 10].item() == 0xF7
    x[0, 3] = 1.0
    codes, scales, g = quantize_to_nvfp4(x)
    assert torch.isinf(g)
    from kernels.nvfp4 import dequantize_nvfp4

    assert torch.isnan(dequantize_nvfp4(codes, scales, g)).all()
