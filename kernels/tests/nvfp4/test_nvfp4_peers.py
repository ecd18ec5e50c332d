"""Byte for byte against other people's quantisers: where they agree with the contract, and exactly where they do
not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from kernels.nvfp4 import (
    compute_global_scale,
    decode_e2m1,
    dequantize_nvfp4,
    quantize_activation_nvfp4,
    quantize_to_nvfp4,
    quantize_weight_to_nvfp4,
    unpack_e2m1,
    unswizzle_scales,
)
from kernels.nvfp4.convert import quantize_by_encode_scale
from kernels.nvfp4.regimes import regimes

REGIMES = {r.name: r for r in regimes()}
# Where amax / 2688 is 0 in fp32 ModelOpt divides 0 by 0 and writes NaN scale bytes; the contract forbids that.
MODELOPT_WRITES_NAN = {"all_zero", "smallest"}


def operand(regime):
    return torch.from_numpy(regime.x.copy()).to(getattr(torch, regime.dtype))


def raw(t):
    return t.view(torch.uint8)


# --- ModelOpt 0.47: the producer of NVIDIA's NVFP4 checkpoints ---------------------------------------------------


@pytest.mark.parametrize("name", REGIMES)
def test_modelopt_every_regime(name, modelopt, quantized):
    regime = REGIMES[name]
    g = None if regime.global_scale is None else torch.tensor(regime.global_scale)
    theirs, scales, g2 = modelopt.quantize(operand(regime).clone(), 16, weights_scaling_factor_2=g)
    # x86 gives 0 / 0 the sign bit, a GPU does not: 0xFF and 0x7F are the same NaN.
    scales = raw(scales).numpy() & np.uint8(0x7F)
    codes, ours, own = quantized(regime, "modelopt")
    if name in MODELOPT_WRITES_NAN:
        assert g2 == 0
        assert not ((ours & 0x7F) == 0x7F).any()
        return
    np.testing.assert_array_equal(codes, theirs._quantized_data.numpy())
    np.testing.assert_array_equal(ours, scales)
    np.testing.assert_array_equal(own, np.float32(g2.item()))


def test_modelopt_every_real_weight(modelopt, real_weights):
    """100 % equal bytes on every 2-D tensor of a trained model, in fp32 and bf16, with and without compat."""
    elements = 0
    for name, w in real_weights.items():
        if w.shape[0] > 4096:  # the vocabulary: a slice keeps the test quick
            w = w[:2048]
        for x in (w.float(), w.bfloat16()):
            theirs, scales, g2 = modelopt.quantize(x.clone(), 16)
            for compat in (None, "modelopt"):
                codes, ours, g = quantize_weight_to_nvfp4(x, compat=compat)
                assert torch.equal(codes, theirs._quantized_data), name
                assert torch.equal(raw(ours), raw(scales)), name
                assert torch.equal(g, g2), name
            elements += x.numel()
    assert len(real_weights) >= 30
    assert elements > 20_000_000


def test_modelopt_export_path(modelopt, real_weights):
    """`to_quantized_weight`, the function that writes checkpoints, on one real weight."""
    from peer_packages import oracle

    def load():
        from modelopt.torch.export.quant_utils import QUANTIZATION_NVFP4, to_quantized_weight

        return QUANTIZATION_NVFP4, to_quantized_weight

    kind, export = oracle("nvidia-modelopt export", load)
    w = next(t for n, t in real_weights.items() if n.endswith("intermediate.dense.weight")).bfloat16()
    codes, scales, g = quantize_weight_to_nvfp4(w)
    assert torch.equal(raw(export(w.clone(), scales, kind, g, 16)), codes)


# --- FlashInfer 0.7.4: the specification of its kernels ----------------------------------------------------------

FLASHINFER_SAME = [
    n for n, r in REGIMES.items() if r.finite and n not in ("zero_global_scale", "all_zero", "smallest", "subnormals")
]


@pytest.mark.parametrize("name", FLASHINFER_SAME)
def test_flashinfer_in_its_convention(name, flashinfer_reference):
    """Scale bytes equal everywhere (padding included); codes equal wherever the scale is not 0; decoded values equal
    everywhere, as 0 * (+-6) is 0."""
    x = operand(REGIMES[name])
    encode = 1.0 / compute_global_scale(x)
    codes, scales = quantize_by_encode_scale(x, encode)
    packed, swizzled, _ = flashinfer_reference.quantize_reference(x, encode)
    assert torch.equal(raw(scales), swizzled)
    linear = unswizzle_scales(swizzled, x.shape[0], x.shape[1] // 16)
    alive = (linear != 0).repeat_interleave(8, dim=1)
    assert torch.equal(codes[alive], packed[alive])
    assert not codes[~alive].any()
    e4m3 = linear.view(torch.float8_e4m3fn)
    assert torch.equal(dequantize_nvfp4(codes, e4m3), dequantize_nvfp4(packed, e4m3))


def test_flashinfer_real_weights(flashinfer_reference, real_weights):
    w = next(t for n, t in real_weights.items() if n.endswith("output.dense.weight")).bfloat16()
    encode = 1.0 / compute_global_scale(w)
    codes, scales = quantize_by_encode_scale(w, encode)
    packed, swizzled, _ = flashinfer_reference.quantize_reference(w, encode)
    assert torch.equal(codes, packed)
    assert torch.equal(raw(scales), swizzled)


def test_flashinfer_differs_from_division_only_next_to_midpoints(flashinfer_reference):
    """The reason for two rules: a rounded reciprocal moves a few codes by one step, and never more."""
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(1), dtype=torch.float32).bfloat16()
    g = compute_global_scale(x)
    packed, swizzled, _ = flashinfer_reference.quantize_reference(x, 1.0 / g)
    codes, scales = quantize_activation_nvfp4(x, g, scale_layout="swizzled")
    assert (raw(scales) != swizzled).float().mean() < 1e-3
    ours, theirs = unpack_e2m1(codes).int(), unpack_e2m1(packed).int()
    assert 0 < (ours != theirs).float().mean() < 1e-3
    assert ((ours & 7) - (theirs & 7)).abs().max() == 1


# --- torchao 0.18 and compressed-tensors 0.20: equal on ordinary data, different rules at the edges --------------


def test_torchao_agrees_on_ordinary_data(torchao_quantize):
    quantize, to_scale = torchao_quantize
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(2))
    g = to_scale(x.abs().amax())
    scales, packed = quantize(x, 16, g)
    codes, ours, own = quantize_to_nvfp4(x)
    # Its s is (amax_block / 6) / g with two roundings where ours has amax_block / (6 g): a scale byte may differ
    # next to a midpoint, and codes follow.
    assert torch.equal(own, g)
    assert (raw(ours) != raw(scales)).float().mean() < 1e-3
    assert (codes != packed).float().mean() < 1e-3


def test_torchao_differs_on_small_scales(torchao_quantize):
    """Its scale is at least 2^-6, so E4M3's subnormals are never used: a zero block is 0x08, and 2^-9 is 0x08."""
    quantize, _ = torchao_quantize
    x = torch.zeros(1, 32)
    x[0, 16] = 6 * 2.0**-9
    scales, _ = quantize(x, 16, torch.tensor(1.0))
    assert raw(scales).tolist() == [[0x08, 0x08]]
    assert raw(quantize_activation_nvfp4(x, torch.tensor(1.0))[1]).tolist() == [[0x00, 0x01]]


@pytest.fixture(scope="session")
def compressed_tensors_quantize():
    from peer_packages import oracle

    def load():
        from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

        args = QuantizationArgs(
            num_bits=4,
            type="float",
            strategy="tensor_group",
            symmetric=True,
            group_size=16,
            scale_dtype=torch.float8_e4m3fn,
        )

        def run(x):
            encode = generate_gparam(x.min(), x.max())
            blocks = x.view(x.shape[0], -1, 16)
            scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, encode)
            packed = quantize_and_pack_fp4(x, scales, global_scale=encode, zero_point=None, group_size=16)
            return packed, scales.to(torch.float8_e4m3fn), encode

        return run

    return oracle("compressed-tensors", load)


def test_compressed_tensors_agrees_on_ordinary_fp32(compressed_tensors_quantize):
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(3))
    packed, scales, encode = compressed_tensors_quantize(x)
    codes, ours, g = quantize_to_nvfp4(x)
    assert abs(float(encode) * float(g) - 1) < 2e-7  # reciprocals of each other
    assert (raw(ours) != raw(scales)).float().mean() < 1e-3
    assert (codes != packed).float().mean() < 1e-3


def test_compressed_tensors_differs_on_zero_blocks(compressed_tensors_quantize):
    """A scale that rounds to 0 becomes 0.125 (0x20) there."""
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(4))
    x[1, :16] = 0
    _, scales, _ = compressed_tensors_quantize(x)
    assert raw(scales)[1, 0] == 0x20
    assert raw(quantize_to_nvfp4(x)[1])[1, 0] == 0


def test_no_peer_zeroes_what_the_contract_keeps(modelopt):
    """s in (2^-10, 2^-9] is representable: scale byte 1. ModelOpt agrees; a threshold at 2^-9 would zero it."""
    x = torch.zeros(1, 16)
    x[0, 0] = 6 * 1.5 * 2.0**-10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, scales, _ = modelopt.quantize(x.clone(), 16, weights_scaling_factor_2=torch.tensor(1.0))
    codes, ours = quantize_activation_nvfp4(x, torch.tensor(1.0))
    assert raw(ours).item() == raw(scales).item() == 1
    assert decode_e2m1(codes[0, :1] & 15).item() == 4.0  # 9 * 2^-10 / 2^-9 = 4.5
