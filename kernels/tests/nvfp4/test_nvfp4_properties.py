"""Properties over generated inputs: what must hold for any block, not only for the named regimes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kernels.nvfp4 import (
    dequantize_nvfp4,
    encode_e2m1,
    pack_e2m1,
    quantize_activation_nvfp4,
    quantize_to_nvfp4,
    unpack_e2m1,
)
from kernels.nvfp4.reference import reference_dequantize, reference_quantize

settings.register_profile("nvfp4", max_examples=150, deadline=None)
settings.load_profile("nvfp4")

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = st.floats(width=32)
SCALES = st.floats(min_value=2.0**-126, max_value=2.0**100, width=32)


def blocks(elements, rows=2, k=32):
    return arrays.arrays(np.float32, (rows, k), elements=elements)


@given(blocks(ANY), st.sampled_from([None, "modelopt"]))
def test_equals_reference_own_scale(x, compat):
    codes, scales, g = quantize_to_nvfp4(torch.from_numpy(x), compat=compat)
    want = reference_quantize(x, None, compat)
    np.testing.assert_array_equal(codes.numpy(), want[0])
    np.testing.assert_array_equal(scales.view(torch.uint8).numpy(), want[1])
    np.testing.assert_array_equal(np.float32(g.item()), want[2])


@given(blocks(ANY), SCALES)
def test_equals_reference_given_scale(x, g):
    codes, scales = quantize_activation_nvfp4(torch.from_numpy(x), torch.tensor(g))
    want = reference_quantize(x, np.float32(g))
    np.testing.assert_array_equal(codes.numpy(), want[0])
    np.testing.assert_array_equal(scales.view(torch.uint8).numpy(), want[1])


@given(blocks(FINITE))
def test_error_is_within_half_a_step(x):
    """|x - decoded| <= half the widest step of the block, in exact arithmetic, wherever nothing saturates: steps
    are at most 2 d above 4 d and the block's largest value is at most 6.5 d after rounding its scale."""
    codes, scales, g = quantize_to_nvfp4(torch.from_numpy(x))
    back = reference_dequantize(codes.numpy(), scales.view(torch.uint8).numpy(), np.float32(g.item()))
    d = reference_dequantize(np.full_like(codes.numpy(), 0x22), scales.view(torch.uint8).numpy(), np.float32(g.item()))
    zero = d == 0
    error = np.abs(x.astype(np.float64) - back)
    floor = 6 * 2.0**-10 * float(g) * (1 + 1e-6)
    assert np.all(error[zero] <= floor)
    assert np.all(error[~zero] <= np.maximum(d[~zero] * (1 + 1e-6), np.abs(x.astype(np.float64))[~zero] / 3))


@given(arrays.arrays(np.uint8, (3, 8)), st.integers(1, 126), st.integers(-30, 30))
def test_values_on_the_grid_come_back(packed, byte, exponent):
    """Idempotence: decoded values quantise to themselves, if the block uses its largest code (else its scale
    changes)."""
    packed = packed.copy()
    packed[:, 0] = packed[:, 0] & 0xF0 | 7
    scales = torch.full((3, 1), byte, dtype=torch.uint8).view(torch.float8_e4m3fn)
    g = torch.tensor(2.0**exponent)
    x = dequantize_nvfp4(torch.from_numpy(packed), scales, g, torch.float32)
    codes, again = quantize_activation_nvfp4(x, g)
    assert torch.equal(again.view(torch.uint8), scales.view(torch.uint8))
    assert torch.equal(codes, torch.from_numpy(packed))


@given(arrays.arrays(np.float32, 64, elements=FINITE))
def test_rounding_is_monotonic(x):
    x = np.sort(np.abs(x))
    codes = encode_e2m1(torch.from_numpy(x))
    assert bool((codes.diff().to(torch.int8) >= 0).all())


@given(blocks(FINITE))
def test_sign_symmetry(x):
    """quantise(-x) is quantise(x) with the signs turned, wherever the block is not zero."""
    codes, scales, g = quantize_to_nvfp4(torch.from_numpy(x))
    minus, scales_minus, g_minus = quantize_to_nvfp4(torch.from_numpy(-x))
    assert torch.equal(g, g_minus)
    assert torch.equal(scales.view(torch.uint8), scales_minus.view(torch.uint8))
    alive = (scales.view(torch.uint8) != 0).repeat_interleave(16, dim=1)
    assert torch.equal(unpack_e2m1(minus), unpack_e2m1(codes) ^ (alive.to(torch.uint8) * 8))


@given(blocks(FINITE, rows=3), st.permutations(range(3)))
def test_rows_do_not_see_each_other(x, order):
    g = torch.tensor(0.5)
    codes, scales = quantize_activation_nvfp4(torch.from_numpy(x), g)
    moved = quantize_activation_nvfp4(torch.from_numpy(x)[list(order)], g)
    assert torch.equal(moved[0], codes[list(order)])
    assert torch.equal(moved[1].view(torch.uint8), scales.view(torch.uint8)[list(order)])


@given(blocks(FINITE), st.integers(-20, 20))
def test_power_of_two_scaling_moves_only_the_global_scale(x, exponent):
    amax = float(np.abs(x).max())
    if not 1e-20 < amax < 1e20:
        return
    x = np.where(np.abs(x) < amax * 1e-6, 0, x).astype(np.float32)  # keep clear of subnormals
    codes, scales, g = quantize_to_nvfp4(torch.from_numpy(x))
    moved = quantize_to_nvfp4(torch.from_numpy(x * np.float32(2.0**exponent)))
    assert torch.equal(moved[0], codes)
    assert torch.equal(moved[1].view(torch.uint8), scales.view(torch.uint8))
    assert moved[2].item() == g.item() * 2.0**exponent


@given(arrays.arrays(np.uint8, (2, 7, 32), elements=st.integers(0, 15)))
def test_packing_round_trip(codes):
    t = torch.from_numpy(codes)
    packed = pack_e2m1(t)
    assert torch.equal(unpack_e2m1(packed), t)
    assert packed[0, 0, 0].item() == codes[0, 0, 0] + 16 * codes[0, 0, 1]
