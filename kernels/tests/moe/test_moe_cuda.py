"""On a GPU: the layer captured and replayed with other routes and scales, on two streams, and at full size."""

from __future__ import annotations

import pytest
import torch
from layer_data import Layer, make_layer
from moe_data import random_codes, random_scales

from kernels.linear import CuTeDSLNvfp4Linear
from kernels.moe import CuTeDSLMoERunner, reference, sort_by_expert
from kernels.moe.regimes import routed_ids
from kernels.nvfp4 import quantize_activation_nvfp4

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def ready(layer: Layer, fused: bool) -> CuTeDSLMoERunner:
    runner = CuTeDSLMoERunner(
        layer.experts, layer.hidden.shape[1], layer.gate.shape[1], max_num_tokens=64, top_k=3, device="cuda",
        experts_start_idx=layer.start, fused_swiglu=fused,
    )  # fmt: skip
    runner.prepare_weights_from_stacked(*layer.stacked)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    runner.warmup()
    return runner


@pytest.mark.parametrize("fused", [False, True])
def test_replay_follows_new_tokens_routes_and_scales(fused: bool) -> None:
    layer = make_layer(tokens=40, device="cuda")
    runner = ready(layer, fused)
    hidden, weights, ids = layer.hidden.clone(), layer.topk_weights.clone(), layer.topk_ids.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = runner.run(hidden, weights, ids)
    for step, regime in enumerate(("uniform", "all_to_one", "nowhere", "zipf", "holes")):
        new = make_layer(tokens=40, regime=regime, seed=step, device="cuda")
        hidden.copy_(new.hidden)
        weights.copy_(new.topk_weights)
        ids.copy_(new.topk_ids)
        runner.set_activation_global_scales(layer.l1_input_scale * (1 + step), layer.l2_input_scale)
        captured.fill_(torch.nan)
        junk = torch.full((1 << 22,), 0x7F, dtype=torch.uint8, device="cuda")
        graph.replay()
        found = captured.clone()
        assert torch.equal(found, runner.run(hidden, weights, ids)), regime
        del junk


def test_two_streams_with_a_workspace_each() -> None:
    layer = make_layer(tokens=40, device="cuda")
    runner = ready(layer, True)
    expected = runner.run(layer.hidden, layer.topk_weights, layer.topk_ids)
    other = runner.new_workspace()
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(5):
        for stream, workspace in zip(streams, (None, other), strict=True):
            with torch.cuda.stream(stream):
                results.append(runner.run(layer.hidden, layer.topk_weights, layer.topk_ids, workspace=workspace))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


def test_linear_captured_and_replayed() -> None:
    layer = CuTeDSLNvfp4Linear(512, 300)
    layer.finalize_from_weight(torch.randn(300, 512, device="cuda"), torch.full((), 5.0 / 2688, device="cuda"))
    layer.warmup()
    x = torch.randn(33, 512, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(y.clone(), layer(x))


@pytest.mark.parametrize("fused", [False, True])
def test_one_rank_of_v4_pro_against_the_emulated_oracle(fused: bool) -> None:
    """48 of 384 experts, hidden 7168, intermediate 3072, 64 tokens: down product and sum per expert and per token."""
    experts, hidden, inter, tokens, top_k, start = 48, 7168, 3072, 64, 6, 96
    g = torch.Generator().manual_seed(0)
    stacked = [
        random_codes(g, experts, 2 * inter, hidden // 2), random_scales(g, experts, 2 * inter, hidden // 16),
        torch.rand(experts, generator=g) * 0.004 + 0.001,
        random_codes(g, experts, hidden, inter // 2), random_scales(g, experts, hidden, inter // 16),
        torch.rand(experts, generator=g) * 0.004 + 0.001,
    ]  # fmt: skip
    runner = CuTeDSLMoERunner(experts, hidden, inter, tokens, top_k, "cuda", start, fused)
    runner.prepare_weights_from_stacked(*(t.cuda() for t in stacked))
    l1, l2 = torch.full((), 4.5 / 2688, device="cuda"), torch.full((), 100.0 / 2688, device="cuda")
    runner.set_activation_global_scales(l1, l2)
    runner.warmup()
    x = torch.randn(tokens, hidden, generator=g).bfloat16().cuda()
    ids = (routed_ids("zipf", tokens, experts, top_k) + start).cuda()
    topk_weights = torch.rand(tokens, top_k, generator=g).cuda()
    out = runner.run(x, topk_weights, ids)

    order = sort_by_expert(ids, experts, start)
    codes, scales = quantize_activation_nvfp4(x, l1)
    rows = reference.decode(codes, scales)[order.token_of_row]
    offsets = order.expert_offsets.tolist()
    work = runner._workspace
    assert work is not None
    mid = reference.decode(work.mid_codes, work.mid_scales)
    for e in range(experts):
        mine = slice(offsets[e], offsets[e + 1])
        if offsets[e] == offsets[e + 1]:
            continue
        l1_weights = reference.decode(stacked[0][e].cuda(), stacked[1][e].cuda())
        product = rows[mine] @ l1_weights.T * float(l1) * float(stacked[2][e])
        y = reference.clamped_swiglu(*product.chunk(2, dim=1), 10.0)
        # A quarter of a step of the largest code: rounding to NVFP4, and bf16 before it in the plain form.
        step = y.view(len(y), -1, 16).abs().amax(-1, keepdim=True).expand(-1, -1, 16).reshape(y.shape)
        assert ((mid[mine] * float(l2) - y).abs() <= 0.26 * step + 1e-3).all(), e
        l2_weights = reference.decode(stacked[3][e].cuda(), stacked[4][e].cuda())
        alpha = float(l2) * float(stacked[5][e])
        exact = mid[mine] @ l2_weights.T * alpha
        bound = (mid[mine].abs() @ l2_weights.abs().T * alpha) * (inter + 1) * 2.0**-24 + exact.abs() * 2.0**-8
        assert ((work.l2_rows[mine].double() - exact).abs() <= bound).all(), e
    chosen = work.l2_rows.float()[order.row_of_route.view(tokens, top_k)]
    expected = (chosen * topk_weights[..., None]).sum(1)
    error = (out.float() - expected).abs().amax(1) / expected.abs().amax(1)
    assert error.max() < 2.0**-8
