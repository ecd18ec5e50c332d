"""Peak memory of the layer against its formula: small sizes for real, full sizes with fake tensors."""

from __future__ import annotations

import pytest
import torch
from layer_data import make_layer
from moe_data import grouped
from peak import peak_bytes
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.moe import (
    CONVENTIONS,
    moe_peak_bytes,
    run_fused_swiglu_grouped_gemm,
    run_nvfp4_grouped_gemm,
    run_nvfp4_moe,
    run_nvfp4_moe_fused,
    swiglu_quantize_nvfp4,
    swiglu_quantize_peak_bytes,
    tile_workspace_bytes,
    workspace_bytes,
)
from kernels.moe.grouped_scales import gather_swizzled_peak_bytes, gather_swizzled_scales

FORMS = {False: (run_nvfp4_moe, "vllm_cutlass"), True: (run_nvfp4_moe_fused, "deepgemm")}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_peak_is_within_the_formula_and_no_weights_are_dequantised(tokens: int, fused: bool) -> None:
    layer = make_layer(tokens=tokens, experts=16, hidden=256, intermediate=128, start=0)
    function, target = FORMS[fused]
    weights = layer.weights(target)
    peak = peak_bytes(
        lambda: function(layer.hidden, weights, layer.l1_input_scale, layer.l2_input_scale, layer.topk_weights,
                         layer.topk_ids)
    )  # fmt: skip
    assert peak <= moe_peak_bytes(tokens, 3, 16, 256, 128, fused=fused)


@pytest.mark.parametrize("fused", [False, True])
def test_peak_at_full_size_with_fake_tensors(fused: bool) -> None:
    """V4-Pro sizes, hidden 7168, intermediate 3072, 256 tokens on 3 experts. Nothing is really allocated."""
    tokens, top_k, experts, hidden, intermediate = 256, 3, 3, 7168, 3072
    function, target = FORMS[fused]
    with FakeTensorMode():
        u8, e4m3 = torch.uint8, torch.float8_e4m3fn
        from kernels.moe import L1Layout, MoEWeights

        weights = MoEWeights(
            torch.empty(experts, 2 * intermediate, hidden // 2, dtype=u8),
            torch.empty(experts, 2 * intermediate, hidden // 16, dtype=e4m3), torch.empty(experts),
            torch.empty(experts, hidden, intermediate // 2, dtype=u8),
            torch.empty(experts, hidden, intermediate // 16, dtype=e4m3), torch.empty(experts),
            CONVENTIONS[target] if fused else L1Layout(),
        )  # fmt: skip
        arguments = (
            torch.empty(tokens, hidden, dtype=torch.bfloat16), weights, torch.empty(()), torch.empty(()),
            torch.empty(tokens, top_k), torch.empty(tokens, top_k, dtype=torch.int32),
        )  # fmt: skip
        peak = peak_bytes(lambda: function(*arguments))
    budget = moe_peak_bytes(tokens, top_k, experts, hidden, intermediate, fused=fused)
    one_expert = 3 * intermediate * hidden * 2  # in bf16
    assert peak <= budget
    assert budget < workspace_bytes(tokens, top_k, hidden, intermediate, fused=fused) + 3 * one_expert


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 6144, 1024), (300, 512, 1024), (2000, 96, 288)])
def test_grouped_products_stay_within_their_formula(rows: int, columns: int, depth: int) -> None:
    problem = grouped([rows // 3, 0, rows - rows // 3], columns, depth)
    arguments = problem.arguments
    workspace = tile_workspace_bytes(rows, 3, columns, depth)
    assert peak_bytes(lambda: run_nvfp4_grouped_gemm(*arguments)) <= workspace + rows * columns * 2
    assert peak_bytes(lambda: run_fused_swiglu_grouped_gemm(*arguments)) <= workspace + rows * columns


@pytest.mark.parametrize("rows", [1, 500])
def test_swiglu_and_scales_stay_within_their_formulas(rows: int) -> None:
    x, scale = torch.randn(rows, 2 * 768), torch.tensor(0.01)
    assert peak_bytes(lambda: swiglu_quantize_nvfp4(x, scale)) <= swiglu_quantize_peak_bytes(rows, 768)
    problem = grouped([rows, 0, 3], 32, 768)
    assert peak_bytes(
        lambda: gather_swizzled_scales(problem.a_linear, None, problem.offsets)
    ) <= gather_swizzled_peak_bytes(rows + 3, 3, 768)
