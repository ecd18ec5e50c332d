"""Bugs that have been met in NVFP4 expert kernels: caches, captures, mathematics, integration."""

from __future__ import annotations

import gc
import inspect
from dataclasses import replace

import pytest
import torch
from host_work import watch
from layer_data import Layer, make_layer
from moe_data import grouped
from peak import peak_bytes

from kernels.linear import CuTeDSLNvfp4Linear
from kernels.moe import (
    CuTeDSLMoERunner,
    clamped_swiglu,
    reference,
    route_sqrtsoftplus,
    run_fused_swiglu_grouped_gemm,
    run_nvfp4_grouped_gemm,
    run_nvfp4_moe,
)


def ready(layer: Layer, fused: bool = False) -> CuTeDSLMoERunner:
    runner = CuTeDSLMoERunner(
        layer.experts, 64, 48, max_num_tokens=32, top_k=3, device="cpu", experts_start_idx=layer.start,
        fused_swiglu=fused,
    )  # fmt: skip
    runner.prepare_weights_from_stacked(*layer.stacked)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    runner.warmup()
    return runner


def run(runner: CuTeDSLMoERunner, layer: Layer) -> torch.Tensor:
    return runner.run(layer.hidden, layer.topk_weights, layer.topk_ids)


# Caches


def test_nothing_is_bound_to_the_addresses_or_shapes_of_an_earlier_call() -> None:
    problems = [grouped([3, 5], 40, 64, seed=1), grouped([1, 0, 9], 24, 32, seed=2), grouped([5, 3], 40, 64, seed=3)]
    fresh = [run_nvfp4_grouped_gemm(*p.arguments) for p in problems]
    for i in (0, 1, 0, 2, 1, 2, 0):
        moved = [t.clone() for t in problems[i].arguments]
        assert torch.equal(run_nvfp4_grouped_gemm(*moved), fresh[i])
    buffers = [t.clone() for t in problems[0].arguments]
    for i in (2, 0):  # the same addresses, other values
        for buffer, value in zip(buffers, problems[i].arguments, strict=True):
            buffer.copy_(value)
        assert torch.equal(run_nvfp4_grouped_gemm(*buffers), fresh[i])


def test_layers_of_one_shape_do_not_collide() -> None:
    layers = [make_layer(seed=s) for s in range(4)]
    runners = [ready(layer) for layer in layers]
    assert len({run(r, layers[0]).double().sum().item() for r in runners}) == 4
    for runner, layer in zip(runners, layers, strict=True):
        assert torch.equal(run(runner, layer), run(ready(layer), layer))


def test_repeated_calls_keep_nothing() -> None:
    layer = make_layer()
    runner = ready(layer)
    run(runner, layer)
    peaks = {peak_bytes(lambda: run(runner, layer)) for _ in range(3)}
    assert len(peaks) == 1
    assert peak_bytes(lambda: three_calls(runner, layer)) == peaks.pop()


def three_calls(runner: CuTeDSLMoERunner, layer: Layer) -> None:
    for _ in range(3):
        run(runner, layer)


# Captures


@pytest.mark.parametrize("fused", [False, True])
def test_no_host_read_host_constant_or_size_from_data(fused: bool) -> None:
    layer = make_layer()
    runner = ready(layer, fused)
    assert watch(lambda: run(runner, layer)).findings == []
    logits = torch.randn(13, 16)
    assert watch(lambda: route_sqrtsoftplus(logits, 6, torch.zeros(16))).findings == []
    linear = CuTeDSLNvfp4Linear(64, 40, device="cpu")
    linear.finalize_from_weight(torch.randn(40, 64), torch.tensor(0.01))
    linear.warmup()
    assert watch(lambda: linear(layer.hidden)).findings == []


def test_the_watch_sees_the_usual_culprits() -> None:
    x = torch.arange(6)
    for culprit in (
        lambda: torch.tensor([1, 2]),
        lambda: x.sum().item(),
        lambda: x[x > 2],
        lambda: x.nonzero(),
        lambda: torch.bincount(x),
        lambda: bool((x > 2).any()),
    ):
        assert watch(culprit).findings


def test_the_work_is_the_same_whatever_the_routing_and_for_any_token_of_a_tile() -> None:
    """A loop over tokens, or a branch on the routing, changes the number of operations."""
    counts = set()
    for tokens, regime in ((22, "uniform"), (22, "all_to_one"), (22, "nowhere"), (30, "uniform"), (40, "zipf")):
        layer = make_layer(tokens=tokens, regime=regime, start=0)
        weights = layer.weights("vllm_cutlass")
        counts.add(
            watch(
                lambda: run_nvfp4_moe(layer.hidden, weights, layer.l1_input_scale, layer.l2_input_scale,  # noqa: B023
                                      layer.topk_weights, layer.topk_ids)  # noqa: B023
            ).operations
        )  # fmt: skip
    assert len(counts) == 1


def test_buffers_outlive_the_callers_and_a_collection() -> None:
    layer = make_layer()
    expected = run(ready(layer), layer)
    runner = ready(make_layer())
    gc.collect()
    junk = [torch.full((size,), 0x7F, dtype=torch.uint8) for size in (4096, 65536, 1 << 20)]
    assert torch.equal(run(runner, layer), expected)
    assert len(junk) == 3


def test_a_new_activation_scale_is_seen_through_the_old_address() -> None:
    layer = make_layer()
    runner = ready(layer)
    before, address = run(runner, layer), runner._input_scales.data_ptr()
    runner.set_activation_global_scales(layer.l1_input_scale * 3, layer.l2_input_scale)
    after = run(runner, layer)
    assert runner._input_scales.data_ptr() == address
    assert not torch.equal(before, after)
    assert torch.equal(after, run(ready(replace(layer, l1_input_scale=layer.l1_input_scale * 3)), layer))


# Mathematics


def test_the_clamp_is_not_forgotten_and_not_on_the_other_side_of_silu() -> None:
    gate, up = torch.tensor([50.0, 1.0, -50.0]), torch.tensor([1.0, 50.0, -50.0])
    right = clamped_swiglu(gate, up, 10.0)
    silu = torch.nn.functional.silu
    forgotten = silu(gate) * up
    late = silu(gate).clamp(max=10.0) * up
    one_sided = silu(gate.clamp(-10.0, 10.0)) * up.clamp(-10.0, 10.0)
    raw = silu((gate / 4).clamp(max=10.0) * 4) * (up / 4).clamp(-10.0, 10.0) * 4  # clamped before alpha = 4
    for wrong in (forgotten, late, one_sided, raw):
        assert not torch.allclose(right, wrong)


def test_the_clamp_acts_after_alpha() -> None:
    problem = grouped([6], 32, 64, seed=5)
    for alpha in (0.2, 0.001):
        scaled = replace(problem, alpha=torch.full((1,), alpha))
        a = reference.decode(problem.a_codes, problem.a_linear)
        b = reference.decode(problem.b_codes, problem.b_linear)
        real = reference.grouped_gemm(a, b, problem.offsets, scaled.alpha).view(6, 2, 2, 8)
        expected = reference.clamped_swiglu(real[:, :, 0], real[:, :, 1], 10.0).reshape(6, 16)
        got = run_fused_swiglu_grouped_gemm(*scaled.arguments, out_dtype=torch.float32)
        assert torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_routed_scaling_factor_is_applied_once() -> None:
    logits = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    weights, _ = route_sqrtsoftplus(logits, 6, None, 2.5)
    assert torch.allclose(weights.sum(1), torch.full((5,), 2.5))


def test_router_weights_stay_fp32() -> None:
    logits = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    weights, _ = route_sqrtsoftplus(logits, 6)
    assert weights.dtype == torch.float32
    assert not torch.equal(weights, weights.bfloat16().float())
    layer = make_layer(start=0)
    with pytest.raises(TypeError, match="topk_weights"):
        run_nvfp4_moe(layer.hidden, layer.weights("vllm_cutlass"), layer.l1_input_scale, layer.l2_input_scale,
                      layer.topk_weights.bfloat16(), layer.topk_ids)  # fmt: skip


def test_e4m3_by_hand_agrees_on_all_bytes() -> None:
    """Bias, subnormals, mantissa carry, 448 and not 480, NaN at 0x7F."""
    raw = torch.arange(256, dtype=torch.uint8)
    expected = raw.view(torch.float8_e4m3fn).double()
    got = reference.decode_e4m3(raw)
    assert torch.equal(got.nan_to_num(12345.0), expected.nan_to_num(12345.0))
    assert got[:127].max() == 448


def test_every_argument_of_the_fused_product_changes_the_result() -> None:
    """Arguments bound to the wrong place, or ignored, leave the result as it was."""
    problem = grouped([4, 3], 128, 64, halves=True, seed=8)
    problem = replace(problem, alpha=problem.alpha * 20)
    arguments = problem.arguments
    base = run_fused_swiglu_grouped_gemm(*arguments, limit=10.0, granularity=8)
    a, b, a_scales, b_scales, offsets, alpha = arguments
    others = [
        run_fused_swiglu_grouped_gemm(*arguments, limit=3.0, granularity=8),
        run_fused_swiglu_grouped_gemm(*arguments, limit=None, granularity=8),
        run_fused_swiglu_grouped_gemm(*arguments, granularity=16),
        run_fused_swiglu_grouped_gemm(*arguments, order="up_gate", granularity=8),
        run_fused_swiglu_grouped_gemm(a, b, a_scales, b_scales, offsets, alpha.flip(1), granularity=8),
        run_fused_swiglu_grouped_gemm(a, b, a_scales, b_scales, offsets, alpha.flip(0), granularity=8),
        run_fused_swiglu_grouped_gemm(a, b, a_scales, b_scales, (offsets + 1).clamp(max=7), alpha, granularity=8),
        run_fused_swiglu_grouped_gemm(a ^ 1, b, a_scales, b_scales, offsets, alpha, granularity=8),
    ]
    assert all(not torch.equal(base, other) for other in others)


# Integration


def test_two_scales_of_an_expert_are_never_read_as_one_number() -> None:
    layer = make_layer(halves=True)
    assert watch(lambda: run(ready_halves(layer), layer)).findings == []


def ready_halves(layer: Layer) -> CuTeDSLMoERunner:
    runner = ready(layer)
    assert runner.weights is not None
    assert runner.weights.l1_global_scale.shape == (layer.experts, 2)
    return runner


def test_warm_up_leaves_the_scales_alone() -> None:
    layer = make_layer()
    runner = ready(layer)
    before = runner._input_scales.clone()
    runner.warmup()
    run(runner, replace(layer, hidden=layer.hidden * 1000))
    assert torch.equal(runner._input_scales, before)


def test_no_function_chooses_another_implementation_by_itself() -> None:
    for function in (run_nvfp4_grouped_gemm, run_fused_swiglu_grouped_gemm, run_nvfp4_moe):
        assert inspect.signature(function).parameters["implementation"].default == "torch"
        assert "except" not in inspect.getsource(inspect.getmodule(function))
