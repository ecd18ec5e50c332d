"""Any strides, sizes and dtypes give the right result or an error that says expected, got and how to mend."""

from __future__ import annotations

import pytest
import torch

from kernels.nvfp4 import chunks as chunking
from kernels.nvfp4 import (
    compute_global_scale,
    dequantize_nvfp4,
    quantize_activation_nvfp4,
    quantize_to_nvfp4,
    quantize_weight_to_nvfp4,
    unswizzle_scales,
)
from kernels.nvfp4 import quantize as implementation


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(a, b):
    assert len(a) == len(b)
    for s, t in zip(a, b, strict=True):
        assert s.dtype == t.dtype
        assert s.shape == t.shape
        assert torch.equal(
            s.view(torch.uint8) if s.dtype.itemsize == 1 else s, t.view(torch.uint8) if t.dtype.itemsize == 1 else t
        )


@pytest.fixture(params=[None, 64, 200], ids=["whole", "limit 64", "limit 200"])
def small_chunks(request, monkeypatch):
    """The same inputs cut into chunks much smaller than real ones."""
    if request.param:
        cut = chunking.chunks
        monkeypatch.setattr(implementation, "chunks", lambda shape, limit: cut(shape, request.param))
        monkeypatch.setattr("kernels.nvfp4.dequantize.chunks", lambda shape: cut(shape, request.param))


VIEWS = {
    "transposed": lambda: normal(48, 20).t(),
    "sliced columns": lambda: normal(7, 96)[:, 16:64],
    "strided rows": lambda: normal(14, 48)[::2],
    "strided columns": lambda: normal(5, 96)[:, ::2],
    "offset": lambda: normal(1000)[3 : 3 + 960].view(20, 48),
    "expanded": lambda: normal(1, 48).expand(6, 48),
    "reversed batch": lambda: normal(3, 4, 48).transpose(0, 1),
    "4-d": lambda: normal(2, 3, 4, 32).permute(1, 2, 0, 3),
    "1-d": lambda: normal(48),
    "1-d strided": lambda: normal(96)[::2],
    "long row": lambda: normal(2, 4096),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, dtype, small_chunks):
    base = VIEWS[view]()
    flat = base.as_strided((base.untyped_storage().nbytes() // 4,), (1,), 0)
    x = flat.to(dtype).as_strided(base.shape, base.stride(), base.storage_offset())  # cast, strides kept
    plain = torch.empty(x.shape, dtype=dtype).copy_(x)
    before = plain.clone()
    got = quantize_to_nvfp4(x)
    same(got, quantize_to_nvfp4(plain))
    same(quantize_activation_nvfp4(x, got[2]), got[:2])
    assert torch.equal(x, before)
    assert all(t.is_contiguous() for t in got)
    back = dequantize_nvfp4(*got, dtype=torch.float32)
    assert back.shape == x.shape
    assert (back - x.float()).abs().max() <= x.abs().max() / 6 + 1e-6


@pytest.mark.parametrize("shape", [(0, 48), (3, 0), (0, 0), (2, 0, 32), (0,), (1, 16), (127, 16), (129, 48)])
@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_sizes(shape, layout):
    if layout == "swizzled" and len(shape) < 2:
        pytest.skip("the swizzle needs rows")
    x = normal(*shape)
    codes, scales, g = quantize_to_nvfp4(x, scale_layout=layout)
    assert codes.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.isfinite(g)
    assert g > 0
    back = dequantize_nvfp4(codes, scales, g, torch.float32, scale_layout=layout)
    assert back.shape == x.shape
    if layout == "swizzled":
        linear = quantize_to_nvfp4(x)[1]
        assert torch.equal(
            unswizzle_scales(scales, shape[-2], shape[-1] // 16).view(torch.uint8), linear.view(torch.uint8)
        )


def test_gradients_are_not_recorded():
    x = normal(4, 32).requires_grad_()
    for t in quantize_to_nvfp4(x):
        assert not t.requires_grad
    same(quantize_to_nvfp4(x), quantize_to_nvfp4(x.detach()))


def test_out():
    x = normal(8, 64)
    g = compute_global_scale(x)
    want = quantize_activation_nvfp4(x, g)
    for fill in (0x00, 0xFF):
        out = (
            torch.full((8, 32), fill, dtype=torch.uint8),
            torch.full((8, 4), fill, dtype=torch.uint8).view(torch.float8_e4m3fn),
        )
        got = quantize_activation_nvfp4(x, g, out=out)
        assert got[0] is out[0]
        assert got[1] is out[1]
        same(got, want)
    buffer = torch.full((8, 64), 9.0)
    assert dequantize_nvfp4(*want, g, torch.float32, out=buffer) is buffer
    assert torch.equal(buffer, dequantize_nvfp4(*want, g, torch.float32))
    with pytest.raises(ValueError, match=r"out\[0\] \(codes\): expected shape"):
        quantize_activation_nvfp4(x, g, out=(torch.empty(8, 31, dtype=torch.uint8), out[1]))
    with pytest.raises(TypeError, match=r"out\[1\]"):
        quantize_activation_nvfp4(x, g, out=(out[0], out[0]))
    with pytest.raises(ValueError, match="contiguous"):
        quantize_activation_nvfp4(x, g, out=(torch.empty(32, 8, dtype=torch.uint8).t(), out[1]))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x, g: quantize_to_nvfp4(x.double()),
            TypeError,
            "expected bfloat16, float16 or float32, got torch.float64",
        ),
        (lambda x, g: quantize_to_nvfp4(x.to(torch.int32)), TypeError, "got torch.int32"),
        (lambda x, g: quantize_to_nvfp4(x[:, :24]), ValueError, r"multiple of 16, got shape \(4, 24\); pad K to 32"),
        (lambda x, g: quantize_to_nvfp4(x[0, 0]), ValueError, "0-d"),
        (lambda x, g: quantize_to_nvfp4([1.0]), TypeError, "got list"),
        (
            lambda x, g: quantize_to_nvfp4(x, compat="trtllm"),
            ValueError,
            "expected one of None, 'modelopt', got 'trtllm'",
        ),
        (lambda x, g: quantize_to_nvfp4(x, scale_layout="8x4"), ValueError, "'linear', 'swizzled'"),
        (lambda x, g: quantize_activation_nvfp4(x, 0.5), TypeError, "got float; make it once"),
        (lambda x, g: quantize_activation_nvfp4(x, g.double()), TypeError, "expected float32, got torch.float64"),
        (lambda x, g: quantize_activation_nvfp4(x, g.expand(4)), ValueError, r"one element.*got shape \(4,\)"),
        (lambda x, g: quantize_activation_nvfp4(x, g.to("meta")), ValueError, "expected it on cpu.*got meta"),
        (lambda x, g: quantize_weight_to_nvfp4(x[0]), ValueError, r"expected \(N, K\)"),
        (lambda x, g: quantize_weight_to_nvfp4(x, k_dim=0, check_finite=True), ValueError, "multiple of 16"),
        (lambda x, g: quantize_weight_to_nvfp4(x, k_dim=-3), ValueError, "k_dim: expected -1"),
        (lambda x, g: quantize_weight_to_nvfp4(x * float("nan")), ValueError, "got 128 NaN or infinite of 128"),
        (
            lambda x, g: quantize_weight_to_nvfp4(x.clone().index_fill_(1, torch.tensor([3]), float("inf"))),
            ValueError,
            "got 4 NaN",
        ),
        (lambda x, g: dequantize_nvfp4(x, x), TypeError, "expected packed uint8"),
        (
            lambda x, g: dequantize_nvfp4(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2)),
            TypeError,
            "float8_e4m3fn",
        ),
        (
            lambda x, g: dequantize_nvfp4(
                torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 3).to(torch.float8_e4m3fn)
            ),
            ValueError,
            r"expected \(4, 2\)",
        ),
        (
            lambda x, g: dequantize_nvfp4(
                torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2).to(torch.float8_e4m3fn), g.expand(4)
            ),
            ValueError,
            "one element",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(normal(4, 32), torch.tensor(0.5))


def test_weights_pack_k_whatever_the_layout():
    w = normal(3, 32, 96)  # (E, N, K)
    want = quantize_weight_to_nvfp4(w)
    assert [tuple(t.shape) for t in want] == [(3, 32, 48), (3, 32, 6), (3,)]
    same(quantize_weight_to_nvfp4(w.transpose(1, 2).contiguous(), k_dim=-2), want)
    same(quantize_weight_to_nvfp4(w.transpose(1, 2).contiguous(), k_dim=1), want)
    for e in range(3):
        same(quantize_weight_to_nvfp4(w[e]), [t[e] for t in want])
        same(quantize_weight_to_nvfp4(w[e].t().contiguous(), k_dim=-2), [t[e] for t in want])
        same(quantize_to_nvfp4(w[e]), [t[e] for t in want])
    square = normal(64, 64)
    assert not torch.equal(quantize_weight_to_nvfp4(square)[0], quantize_weight_to_nvfp4(square, k_dim=-2)[0])
    back = dequantize_nvfp4(*want, dtype=torch.float32)
    assert (back - w).norm() / w.norm() < 0.11


def test_weights_global_scales():
    w = normal(3, 16, 32)
    shared = torch.tensor(0.01)
    codes, scales, g = quantize_weight_to_nvfp4(w, global_scale=shared)
    assert g.tolist() == [shared.item()] * 3
    each = torch.tensor([0.01, 0.02, 0.03])
    codes, scales, g = quantize_weight_to_nvfp4(w, global_scale=each)
    for e in range(3):
        same(quantize_activation_nvfp4(w[e], each[e]), (codes[e], scales[e]))
    nan = w.clone()
    nan[1, 2, 3] = float("nan")
    assert (quantize_weight_to_nvfp4(nan, check_finite=False)[1].view(torch.uint8)[1] == 0x7F).all()


def test_swizzled_weights_are_padded_per_expert():
    w = normal(2, 40, 96)
    _, linear, _ = quantize_weight_to_nvfp4(w)
    _, swizzled, _ = quantize_weight_to_nvfp4(w, scale_layout="swizzled")
    assert swizzled.shape == (2, 128, 8)
    assert torch.equal(unswizzle_scales(swizzled, 40, 6).view(torch.uint8), linear.view(torch.uint8))


def test_dequantize_is_exact_without_global_scale():
    """All 16 codes under all 127 scales: the same numbers in bf16, fp16 and fp32, none rounded."""
    codes = torch.arange(16, dtype=torch.uint8).view(1, 16)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).expand(127, 8).contiguous()
    scales = torch.arange(127, dtype=torch.uint8).view(127, 1).view(torch.float8_e4m3fn)
    exact = dequantize_nvfp4(packed, scales, dtype=torch.float32).double()
    from kernels.nvfp4.reference import reference_dequantize

    want = torch.from_numpy(reference_dequantize(packed.numpy(), scales.view(torch.uint8).numpy()))
    assert torch.equal(exact, want)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(dequantize_nvfp4(packed, scales, dtype=dtype).double(), want)
