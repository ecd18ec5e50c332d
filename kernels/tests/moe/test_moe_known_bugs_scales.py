"""Bugs that have been met in NVFP4 expert kernels: scales and indices. Each test shows that the buggy form fails.

The buggy form is written out beside the right one, and must be told apart by the same criterion that the right one
passes: the bound of fp32 accumulation, or equality of bytes.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import pytest
import torch
from layer_data import make_layer
from moe_data import Grouped, grouped, random_scales

from kernels.linear import CuTeDSLNvfp4Linear
from kernels.moe import (
    CuTeDSLMoERunner,
    MoEWorkspace,
    collapse_input_scales,
    interleave_l1_weights,
    pad_l1_weights,
    reference,
    run_fused_swiglu_grouped_gemm,
    run_nvfp4_grouped_gemm,
    run_nvfp4_moe,
    run_nvfp4_moe_fused,
    sort_by_expert,
    split_gate_up,
    stack_moe_weights,
)
from kernels.moe.tiles import padded_row_of_row
from kernels.nvfp4 import compute_global_scale, quantize_activation_nvfp4, swizzle_scales
from kernels.nvfp4.layout import grouped_padded_rows


def within_bound(problem: Grouped, got: torch.Tensor) -> bool:
    a = reference.decode(problem.a_codes, problem.a_linear)
    b = reference.decode(problem.b_codes, problem.b_linear)
    arguments = (a, b, problem.offsets, problem.alpha)
    difference = (got.double() - reference.grouped_gemm(*arguments)).abs()
    return bool((difference <= reference.accumulation_bound(*arguments)).all())


def product(*arguments: torch.Tensor) -> torch.Tensor:
    return run_nvfp4_grouped_gemm(*arguments, out_dtype=torch.float32)


# Scales


def test_swizzle_of_the_whole_buffer_instead_of_each_expert() -> None:
    problem = grouped([3, 5, 2], 40, 64)
    a, b, _, b_scales, offsets, alpha = problem.arguments
    assert within_bound(problem, product(*problem.arguments))
    whole = torch.zeros(grouped_padded_rows(10, 3), 4, dtype=torch.uint8)
    whole[:10] = problem.a_linear.view(torch.uint8)
    assert not within_bound(problem, product(a, b, swizzle_scales(whole), b_scales, offsets, alpha))


def test_scales_transposed_between_n_and_k() -> None:
    problem = grouped([3, 5], 32, 512)  # N = K/16, so that no shape gives it away
    a, b, a_scales, _, offsets, alpha = problem.arguments
    wrong = swizzle_scales(problem.b_linear.transpose(1, 2).contiguous())
    assert within_bound(problem, product(*problem.arguments))
    assert not within_bound(problem, product(a, b, a_scales, wrong, offsets, alpha))
    uneven = grouped([3], 40, 64)
    wrong = swizzle_scales(uneven.b_linear.transpose(1, 2).contiguous())
    with pytest.raises(ValueError, match="b_scales"):
        product(*uneven.arguments[:3], wrong, *uneven.arguments[4:])


def test_global_scale_folded_into_the_fp8_block_scales() -> None:
    problem = grouped([3, 5], 40, 64)
    a, b, a_scales, _, offsets, alpha = problem.arguments
    folded = (problem.b_linear.float() * alpha[:, None, None]).to(torch.float8_e4m3fn)
    got = product(a, b, a_scales, swizzle_scales(folded), offsets, torch.ones(2))
    assert not within_bound(problem, got)


def test_one_global_scale_for_gate_and_up_quantised_apart() -> None:
    problem = grouped([3, 5], 64, 64, halves=True)
    merged = replace(problem, alpha=problem.alpha.amax(dim=1))
    assert within_bound(problem, product(*problem.arguments))
    assert not within_bound(problem, product(*merged.arguments))


def test_one_activation_scale_for_both_products() -> None:
    layer = make_layer()
    arguments = (layer.topk_weights, layer.topk_ids)
    weights = layer.weights("vllm_cutlass")
    right = run_nvfp4_moe(layer.hidden, weights, layer.l1_input_scale, layer.l2_input_scale, *arguments,
                          experts_start_idx=layer.start)  # fmt: skip
    wrong = run_nvfp4_moe(layer.hidden, weights, layer.l1_input_scale, layer.l1_input_scale / 500, *arguments,
                          experts_start_idx=layer.start)  # fmt: skip
    exact = reference.mixture(
        layer.hidden, layer.gate, layer.up, layer.down, layer.topk_ids, layer.topk_weights, 10.0, layer.start
    )
    errors = [float((y.double() - exact).norm() / exact.norm()) for y in (right, wrong)]
    assert errors[0] < 0.35 < errors[1]


def test_a_scale_thousands_of_times_too_small_saturates_and_never_gives_nan() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    right = compute_global_scale(x)
    codes, scales = quantize_activation_nvfp4(x, right / 3977)
    assert (scales.view(torch.uint8) == 0x7E).all()
    back = reference.decode(codes, scales) * float(right / 3977)
    assert back.abs().max() < x.abs().max() / 1000  # saturated: visible in any value check
    good = reference.decode(*quantize_activation_nvfp4(x, right)) * float(right)
    assert (good - x).norm() / x.norm() < 0.15


def test_no_activation_scale_has_a_default() -> None:
    for function in (run_nvfp4_moe, run_nvfp4_moe_fused):
        for name in ("l1_input_scale", "l2_input_scale"):
            assert inspect.signature(function).parameters[name].default is inspect.Parameter.empty
    parameters = inspect.signature(CuTeDSLNvfp4Linear.finalize_weights).parameters
    assert parameters["input_global_scale"].default is inspect.Parameter.empty
    layer = make_layer()
    runner = CuTeDSLMoERunner(5, 64, 48, top_k=3, device="cpu")
    runner.prepare_weights_from_stacked(*layer.stacked)
    assert runner._input_scales.isnan().all()  # should a check ever be missed, the result is loud


def test_swizzled_scales_survive_a_second_preparation_and_the_warm_up() -> None:
    layer = make_layer()
    runner = CuTeDSLMoERunner(5, 64, 48, max_num_tokens=16, top_k=3, device="cpu", experts_start_idx=layer.start)
    for _ in range(2):
        runner.prepare_weights_from_stacked(*layer.stacked)
        runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
        runner.warmup()
    assert runner.weights is not None
    expected = layer.weights("vllm_cutlass")
    for name in ("l1_scales", "l2_scales"):
        assert torch.equal(getattr(runner.weights, name).view(torch.uint8), getattr(expected, name).view(torch.uint8))


def test_input_scales_of_experts_are_not_averaged() -> None:
    scales = torch.tensor([0.001, 0.02, 0.004])
    x = torch.full((1, 16), 0.02 * 2688)  # the largest activation of the second expert
    for collapsed, saturates in ((collapse_input_scales(scales), False), (scales.mean(), True)):
        back = reference.decode(*quantize_activation_nvfp4(x, collapsed)) * float(collapsed)
        assert bool(back[0, 0] < 0.9 * x[0, 0]) == saturates


# Indices


def test_row_at_an_expert_boundary_goes_to_the_next_expert() -> None:
    offsets = torch.tensor([0, 3, 3, 5])
    rows = torch.arange(5)
    padded = padded_row_of_row(offsets, 5)
    assert padded.tolist() == [0, 1, 2, 128, 129]
    wrong = torch.searchsorted(offsets[1:], rows, right=False)
    right = torch.searchsorted(offsets[1:], rows, right=True)
    assert right.tolist() == [0, 0, 0, 2, 2]
    assert wrong.tolist() != right.tolist()


def test_offsets_with_and_without_the_leading_zero_are_not_confused() -> None:
    problem = grouped([3, 5, 2], 40, 64)
    arguments = list(problem.arguments)
    arguments[4] = problem.offsets[1:]
    with pytest.raises(ValueError, match=r"expert_offsets: expected shape \(4\)"):
        product(*arguments)
    arguments[4] = torch.cat([problem.offsets[1:], problem.offsets[-1:]])  # the right length, shifted by one
    assert not within_bound(problem, product(*arguments))


def test_global_expert_ids_are_made_local_and_foreign_ones_dropped() -> None:
    ids = torch.tensor([[96, 5], [143, 144], [-1, 95]], dtype=torch.int32)
    order = sort_by_expert(ids, 48, 96)
    assert order.expert_offsets[-1] == 2
    assert order.expert_of_row.tolist() == [0, 47, 48, 48, 48, 48]
    taken_as_local = ids.clamp(0, 47)  # never out of bounds, and wrong
    assert sort_by_expert(taken_as_local, 48, 0).expert_offsets[-1] != 2


def test_output_width_is_the_logical_one() -> None:
    problem = grouped([2, 1], 48, 32)
    assert run_nvfp4_grouped_gemm(*problem.arguments).shape == (3, 48)
    assert run_fused_swiglu_grouped_gemm(*problem.arguments).shape == (3, 24)
    for width in (24, 96, 128):
        with pytest.raises(ValueError, match="out: expected shape"):
            run_nvfp4_grouped_gemm(*problem.arguments, out=torch.zeros(3, width))


def test_halves_are_split_at_half_the_width_when_they_were_padded() -> None:
    codes, scales = torch.arange(2 * 40 * 8).view(80, 8).to(torch.uint8), torch.full((80, 1), 0x38, dtype=torch.uint8)
    padded, _ = pad_l1_weights(codes, scales, 64)
    x = padded[:, 0].repeat(2, 1).float()  # as if each output column were its weight row's first code
    gate, up = split_gate_up(x)
    assert torch.equal(gate[0, :40], codes[:40, 0].float())
    assert torch.equal(up[0, :40], codes[40:, 0].float())
    assert not torch.equal(x[0, 40:80], codes[40:, 0].float())  # split at the unpadded size


def test_more_routed_rows_than_max_num_tokens() -> None:
    layer = make_layer(tokens=16, start=0)
    runner = CuTeDSLMoERunner(5, 64, 48, max_num_tokens=16, top_k=3, device="cpu")
    runner.prepare_weights_from_stacked(*layer.stacked)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    runner.warmup()
    assert runner.run(layer.hidden, layer.topk_weights, layer.topk_ids).shape == (16, 64)


def test_l1_product_has_both_halves_and_nothing_is_written_beside_a_buffer() -> None:
    layer = make_layer(start=0)
    tokens, top_k = layer.topk_ids.shape
    shape = {"hidden": 64, "intermediate": 48, "fused": False, "device": "cpu"}
    buffers = MoEWorkspace.allocate(tokens, top_k, **shape)
    assert buffers.l1_rows is not None
    assert buffers.l1_rows.shape == (tokens * top_k, 2 * 48)
    guards = {}
    for name in ("x_codes", "row_codes", "l1_rows", "mid_codes", "l2_rows"):
        tensor = getattr(buffers, name)
        arena = torch.full((tensor.numel() + 128,), 77, dtype=tensor.dtype)
        guards[name] = arena
        buffers = replace(buffers, **{name: arena[64 : 64 + tensor.numel()].view(tensor.shape)})
    run_nvfp4_moe(layer.hidden, layer.weights("vllm_cutlass"), layer.l1_input_scale, layer.l2_input_scale,
                  layer.topk_weights, layer.topk_ids, workspace=buffers)  # fmt: skip
    for name, arena in guards.items():
        assert (arena[:64] == 77).all(), name
        assert (arena[-64:] == 77).all(), name


def test_every_tile_is_read_and_not_always_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = 128
    monkeypatch.setattr("kernels.moe.grouped_gemm.WEIGHT_ROWS", tile)
    problem = grouped([2 * tile + 1], 2 * tile + 24, 2048, seed=3)
    assert within_bound(problem, product(*problem.arguments))
    codes = problem.a_codes.clone()
    codes[tile : 2 * tile] = codes[:tile]  # as if the second row tile were the first
    assert not within_bound(problem, product(codes, *problem.arguments[1:]))
    columns = problem.b_codes.clone()
    columns[:, tile : 2 * tile] = columns[:, :tile]
    assert not within_bound(problem, product(problem.a_codes, columns, *problem.arguments[2:]))


def test_halves_of_the_wrong_order_are_told_apart() -> None:
    layer = make_layer(start=0)
    swapped = stack_moe_weights(*layer.in_layout("flashinfer_cutlass"), source="vllm_cutlass")
    arguments = (layer.l1_input_scale, layer.l2_input_scale, layer.topk_weights, layer.topk_ids)
    right = run_nvfp4_moe(layer.hidden, layer.weights("vllm_cutlass"), *arguments).double()
    wrong = run_nvfp4_moe(layer.hidden, swapped, *arguments).double()
    assert (right - wrong).norm() / right.norm() > 0.5


def test_scales_left_behind_when_the_weights_are_interleaved() -> None:
    problem = grouped([3], 64, 64)
    codes, scales = interleave_l1_weights(problem.b_codes, problem.b_linear)
    a, _, a_scales, old_scales, offsets, alpha = problem.arguments
    right = run_fused_swiglu_grouped_gemm(a, codes, a_scales, swizzle_scales(scales), offsets, alpha)
    wrong = run_fused_swiglu_grouped_gemm(a, codes, a_scales, old_scales, offsets, alpha)
    assert not torch.allclose(right, wrong, rtol=0.1)


def test_a_poisoned_scale_byte_is_seen_where_it_belongs() -> None:
    problem = grouped([2, 2], 24, 32)
    b_scales = problem.b_linear.view(torch.uint8).clone()
    b_scales[1, 7, 1] = 0x7F
    bad = replace(problem, b_linear=b_scales.view(torch.float8_e4m3fn))
    out = product(*bad.arguments)
    assert out.isnan().nonzero().tolist() == [[2, 7], [3, 7]]
    assert math.isfinite(float(random_scales(torch.Generator(), 4).float().sum()))
