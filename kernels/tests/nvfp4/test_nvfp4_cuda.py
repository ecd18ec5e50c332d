"""On a GPU: the same bytes as the reference, a real capture with new data on replay, peak memory within the
formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.nvfp4 import (
    compute_global_scale,
    dequantize_nvfp4,
    quantize_activation_nvfp4,
    quantize_peak_bytes,
    quantize_to_nvfp4,
    quantize_weight_to_nvfp4,
    swizzle_scales_grouped,
)
from kernels.nvfp4.reference import reference_quantize
from kernels.nvfp4.regimes import regimes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.uint8) if t.dtype.itemsize == 1 else t.view(torch.int32)


@pytest.mark.parametrize("compat", [None, "modelopt"])
@pytest.mark.parametrize("regime", list(regimes()), ids=lambda r: r.name)
def test_regime(regime, compat, quantized):
    g = None if regime.global_scale is None else np.float32(regime.global_scale)
    for a, b in zip(quantized(regime, compat, "cuda"), reference_quantize(regime.x, g, compat), strict=True):
        np.testing.assert_array_equal(a, b)


def test_global_scale_is_divided_not_multiplied_by_a_reciprocal():
    x = torch.rand(4096, 1, generator=torch.Generator().manual_seed(0)) * 100
    on_gpu = torch.stack([compute_global_scale(row) for row in x.cuda()]).cpu()
    assert torch.equal(on_gpu, torch.stack([compute_global_scale(row) for row in x]))


def test_large_input_equals_cpu():
    x = torch.randn(2048, 7168, dtype=torch.bfloat16, device="cuda")
    g = compute_global_scale(x)
    for layout in ("linear", "swizzled"):
        got = quantize_activation_nvfp4(x, g, scale_layout=layout)
        want = quantize_activation_nvfp4(x.cpu(), g.cpu(), scale_layout=layout)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(bits(a).cpu(), bits(b))


def test_capture_and_replay_with_new_data():
    x = torch.randn(1024, 7168, dtype=torch.bfloat16, device="cuda")
    g = compute_global_scale(x)
    offsets = torch.tensor([0, 100, 100, 1000], dtype=torch.int32, device="cuda")

    def call():
        codes, scales = quantize_activation_nvfp4(x, g, scale_layout="swizzled")
        own = quantize_to_nvfp4(x)
        back = dequantize_nvfp4(own[0], own[1], own[2])
        return codes, scales, *own, back.view(torch.int16), swizzle_scales_grouped(own[1], offsets)

    call()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = call()
    x.copy_(torch.randn(1024, 7168, device="cuda") * 3)
    g.copy_(compute_global_scale(x) * 1.1)
    offsets.copy_(torch.tensor([0, 1, 513, 1024], dtype=torch.int32))
    for o in out:
        o.view(torch.uint8).fill_(0x5A) if o.dim() else o.fill_(7.0)
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(out, call(), strict=True):
        assert torch.equal(a.view(torch.uint8) if a.dim() else a, b.view(torch.uint8) if b.dim() else b)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, g: quantize_to_nvfp4(x),
        lambda x, g: quantize_activation_nvfp4(x, g),
        lambda x, g: quantize_to_nvfp4(x.view(2, 4096, 7168).transpose(0, 1)),
    ],
    ids=["own", "given", "strided"],
)
def test_peak_bytes(make):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    x = torch.randn(8192, 7168, dtype=torch.bfloat16, device="cuda")
    g = compute_global_scale(x)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    make(x, g)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - base
    print("peak", peak, peak / x.nbytes, quantize_peak_bytes(tuple(x.shape)))
    assert peak <= quantize_peak_bytes(tuple(x.shape)) + (10 << 20)  # at most 1 MiB of block rounding a live tensor
    assert peak <= 2.3 * x.nbytes


def test_expert_stack_peak():
    w = torch.randn(48, 7168, 6144, dtype=torch.bfloat16, device="cuda")
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    quantize_weight_to_nvfp4(w, k_dim=-2, check_finite=False)
    peak = torch.cuda.max_memory_allocated() - base + w.nbytes
    print("stack peak", peak / w.nbytes)
    assert peak <= quantize_peak_bytes((48, 6144, 7168)) + (10 << 20)


def test_compiled_equals_eager():
    x = torch.randn(300, 1024, dtype=torch.bfloat16, device="cuda")
    compiled = torch.compile(quantize_to_nvfp4, fullgraph=True)
    for a, b in zip(compiled(x), quantize_to_nvfp4(x), strict=True):
        assert torch.equal(bits(a), bits(b))
