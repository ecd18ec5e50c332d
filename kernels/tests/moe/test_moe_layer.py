"""The whole layer, stage by stage against fp64 on the very operands of each stage, and end to end."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from layer_data import Layer, make_layer
from torch._dynamo.testing import CompileCounterWithBackend

from kernels.moe import (
    CONVENTIONS,
    MoEWorkspace,
    pad_l1_weights,
    pad_l2_weights,
    reference,
    run_nvfp4_moe,
    run_nvfp4_moe_fused,
    sort_by_expert,
    stack_moe_weights,
)
from kernels.moe.layer import as_bytes
from kernels.moe.regimes import REGIMES
from kernels.nvfp4 import quantize_activation_nvfp4
from kernels.nvfp4.reference import reference_quantize

FORMS = {False: (run_nvfp4_moe, "vllm_cutlass"), True: (run_nvfp4_moe_fused, "deepgemm")}


def run(layer: Layer, fused: bool, **keywords: object) -> torch.Tensor:
    function, target = FORMS[fused]
    return function(
        layer.hidden, layer.weights(target), layer.l1_input_scale, layer.l2_input_scale, layer.topk_weights,
        layer.topk_ids, experts_start_idx=layer.start, **keywords,
    )  # fmt: skip


def workspace(layer: Layer, fused: bool, tokens: int | None = None) -> MoEWorkspace:
    rows = layer.hidden.shape[0] if tokens is None else tokens
    return MoEWorkspace.allocate(
        rows, layer.topk_ids.shape[1], layer.hidden.shape[1], layer.gate.shape[1], fused=fused, device="cpu"
    )


def poison(buffers: MoEWorkspace) -> None:
    for name in ("x_codes", "x_scales", "row_codes", "l1_rows", "mid_codes", "mid_scales", "l2_rows"):
        tensor = getattr(buffers, name)
        if tensor is not None:
            (tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor).fill_(
                0x7F if tensor.element_size() == 1 else math.nan
            )


def check_stages(layer: Layer, fused: bool) -> None:
    """Each stage is judged on the operands that the stage before it really produced."""
    buffers = workspace(layer, fused)
    poison(buffers)
    out = torch.full_like(layer.hidden, math.nan)
    assert run(layer, fused, workspace=buffers, out=out) is out
    order = sort_by_expert(layer.topk_ids, layer.experts, layer.start)
    local = int(order.expert_offsets[-1])

    codes, scales = quantize_activation_nvfp4(layer.hidden, layer.l1_input_scale)
    assert torch.equal(buffers.x_codes, codes)
    assert torch.equal(buffers.row_codes[:local], codes[order.token_of_row[:local]])
    x = (reference.decode(codes, scales) * layer.l1_input_scale.double())[order.token_of_row]
    gate_w, up_w, down_w = layer.decoded()
    ones = torch.ones(layer.experts, dtype=torch.float64)
    sides = []
    for weight in (gate_w, up_w):
        exact = reference.grouped_gemm(x, weight, order.expert_offsets, ones)
        bound = reference.accumulation_bound(x, weight, order.expert_offsets, ones) * 1.5
        sides.append((exact, bound + (0 if fused else 1) * exact.abs() * 2.0**-8))
    (gate, gate_bound), (up, up_bound) = sides
    if not fused:
        stored = buffers.l1_rows
        assert stored is not None
        assert ((stored.double() - torch.cat([gate, up], 1)).abs() <= torch.cat([gate_bound, up_bound], 1)).all()
        gate, up = stored.double().chunk(2, dim=1)
    y = reference.clamped_swiglu(gate, up, 10.0)

    # The quantised middle: the bytes of y, but for values that fp32 puts on the other side of a rounding boundary.
    expected_codes, expected_scales = quantise_by_reference(y.float(), layer.l2_input_scale)
    mid = buffers.mid_codes
    assert (mid[:local] != expected_codes[:local]).sum() <= 0.01 * mid[:local].numel()
    mid_value = reference.decode(mid, buffers.mid_scales)
    expected_value = reference.decode(expected_codes, expected_scales)
    assert ((mid_value - expected_value).abs()[:local] <= 0.51 * expected_value.abs()[:local] + 2.0**-8).all()

    h = mid_value * layer.l2_input_scale.double()
    exact = reference.grouped_gemm(h, down_w, order.expert_offsets, ones)
    bound = reference.accumulation_bound(h, down_w, order.expert_offsets, ones) * 1.5 + exact.abs() * 2.0**-8
    assert ((buffers.l2_rows.double() - exact).abs() <= bound + 1e-30).all()

    total = torch.zeros(layer.hidden.shape)
    for t in range(total.shape[0]):
        for j in range(layer.topk_ids.shape[1]):
            row = int(order.row_of_route[t * layer.topk_ids.shape[1] + j])
            if row < local:
                total[t] += layer.topk_weights[t, j] * buffers.l2_rows[row].float()
    assert torch.equal(out, total.bfloat16())


def quantise_by_reference(y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales, _ = reference_quantize(y.numpy().astype(np.float32), np.float32(scale.item()))
    return torch.from_numpy(codes), torch.from_numpy(scales)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("regime", [r for r in REGIMES if not r.startswith("tile")])
def test_stages_in_every_regime(regime: str, fused: bool) -> None:
    check_stages(make_layer(regime=regime, seed=len(regime)), fused)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("regime", ["tile_minus_1", "tile", "tile_plus_1"])
def test_stages_around_a_tile(regime: str, fused: bool) -> None:
    check_stages(make_layer(tokens=131, regime=regime, start=0), fused)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("hidden", "intermediate"), [(112, 80), (48, 144), (160, 16)])
def test_stages_at_sizes_that_are_no_powers_of_two(hidden: int, intermediate: int, fused: bool) -> None:
    check_stages(make_layer(tokens=5, hidden=hidden, intermediate=intermediate), fused)


@pytest.mark.parametrize("fused", [False, True])
def test_stages_with_gate_and_up_quantised_apart(fused: bool) -> None:
    layer = make_layer(halves=True)
    ratio = layer.stacked[2][:, 0] / layer.stacked[2][:, 1]
    assert (ratio.log2().abs() > 0.1).all()
    check_stages(layer, fused)


@pytest.mark.parametrize("fused", [False, True])
def test_one_token_alone_and_in_a_batch(fused: bool) -> None:
    layer = make_layer(tokens=9)
    full = run(layer, fused)
    for t in range(9):
        one = replace(
            layer, hidden=layer.hidden[t : t + 1], topk_weights=layer.topk_weights[t : t + 1],
            topk_ids=layer.topk_ids[t : t + 1],
        )  # fmt: skip
        assert torch.allclose(run(one, fused).float(), full[t : t + 1].float(), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_ranks_of_expert_parallelism_add_up(fused: bool) -> None:
    whole = make_layer(experts=8, start=0, tokens=20)
    function, target = FORMS[fused]
    parts = torch.zeros(20, 64)
    for start in (0, 3, 5):
        stop = {0: 3, 3: 5, 5: 8}[start]
        mine = replace(whole, stacked=tuple(t[start:stop] for t in whole.stacked), start=start)
        out = function(
            mine.hidden.float(), mine.weights(target), mine.l1_input_scale, mine.l2_input_scale, mine.topk_weights,
            mine.topk_ids, experts_start_idx=start,
        )  # fmt: skip
        parts += out
    full = function(whole.hidden.float(), whole.weights(target), whole.l1_input_scale, whole.l2_input_scale,
                    whole.topk_weights, whole.topk_ids)  # fmt: skip
    assert torch.allclose(parts, full, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", CONVENTIONS)
@pytest.mark.parametrize("fused", [False, True])
def test_weights_of_every_convention_give_the_same_bits(source: str, fused: bool) -> None:
    layer = make_layer(intermediate=64)
    function, target = FORMS[fused]
    weights = stack_moe_weights(*layer.in_layout(source), source=source, target=target)
    got = function(layer.hidden, weights, layer.l1_input_scale, layer.l2_input_scale, layer.topk_weights,
                   layer.topk_ids, experts_start_idx=layer.start)  # fmt: skip
    assert torch.equal(got, run(layer, fused))


@pytest.mark.parametrize("fused", [False, True])
def test_far_from_the_unquantised_layer_only_as_far_as_four_bits_are(fused: bool) -> None:
    """Reported, never a gate: W4A4 is about 20 % away by nature. It shows a layer that computes something else."""
    layer = make_layer(tokens=40, hidden=128, intermediate=96)
    exact = reference.mixture(
        layer.hidden, layer.gate, layer.up, layer.down, layer.topk_ids, layer.topk_weights, 10.0, layer.start
    )
    error = (run(layer, fused).double() - exact).norm() / exact.norm()
    assert 0.02 < error < 0.35


@pytest.mark.parametrize("fused", [False, True])
def test_each_half_padded_by_itself_changes_no_result(fused: bool) -> None:
    layer = make_layer(intermediate=48)
    codes, scales, l1_global, *down, down_global = layer.stacked
    padded = (*pad_l1_weights(codes, scales, 64), l1_global, *pad_l2_weights(*down, 64), down_global)
    got, expected = run(replace(layer, stacked=padded), fused), run(layer, fused)
    assert torch.allclose(got.float(), expected.float(), rtol=2.0**-7, atol=1e-3)
    at_the_end = (
        torch.nn.functional.pad(codes, (0, 0, 0, 32)),
        torch.nn.functional.pad(scales.view(torch.uint8), (0, 0, 0, 32)).view(scales.dtype),
    )
    wrong = run(replace(layer, stacked=(*at_the_end, *padded[2:])), fused)
    assert not torch.allclose(wrong.float(), expected.float(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_nan_stays_with_its_token(fused: bool) -> None:
    layer = make_layer(start=0)
    expected = run(layer, fused)
    layer.hidden[3, 5] = math.nan
    got = run(layer, fused)
    others = [t for t in range(13) if t != 3]
    assert torch.equal(got[others], expected[others])
    assert got[3].isnan().all() or bool((layer.topk_ids[3] >= layer.experts).all())


@pytest.mark.parametrize("fused", [False, True])
def test_no_tokens(fused: bool) -> None:
    assert run(make_layer(tokens=0), fused).shape == (0, 64)


@pytest.mark.parametrize("fused", [False, True])
def test_a_workspace_may_be_larger_and_used_again(fused: bool) -> None:
    large, small = make_layer(tokens=13), make_layer(tokens=4, seed=3)
    buffers = workspace(large, fused)
    first = run(large, fused)
    assert torch.equal(run(large, fused, workspace=buffers), first)
    assert torch.equal(run(small, fused, workspace=buffers), run(small, fused))
    assert torch.equal(run(large, fused, workspace=buffers), first)
    with pytest.raises(ValueError, match="at most 4 tokens"):
        run(large, fused, workspace=workspace(small, fused))


def test_refusals() -> None:
    layer = make_layer()
    with pytest.raises(ValueError, match="run_nvfp4_moe_fused takes"):
        run_nvfp4_moe(layer.hidden, layer.weights("deepgemm"), layer.l1_input_scale, layer.l2_input_scale,
                      layer.topk_weights, layer.topk_ids)  # fmt: skip
    with pytest.raises(ValueError, match="run_nvfp4_moe takes"):
        run_nvfp4_moe_fused(layer.hidden, layer.weights("vllm_cutlass"), layer.l1_input_scale, layer.l2_input_scale,
                            layer.topk_weights, layer.topk_ids)  # fmt: skip
    with pytest.raises(ValueError, match="no L1 product"):
        run(layer, False, workspace=workspace(layer, True))
    with pytest.raises(ValueError, match="no silent fallback"):
        run(layer, False, implementation="cute-sm100")
    with pytest.raises(ValueError, match="K-major"):
        layer.weights("nvfp4_megamoe")


@pytest.mark.parametrize("fused", [False, True])
def test_compiled_equals_eager(fused: bool) -> None:
    layer = make_layer()
    function, target = FORMS[fused]
    weights = layer.weights(target)

    def step(hidden: torch.Tensor, topk_weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return function(hidden, weights, layer.l1_input_scale, layer.l2_input_scale, topk_weights, ids,
                        experts_start_idx=layer.start) * 2  # fmt: skip

    arguments = (layer.hidden, layer.topk_weights, layer.topk_ids)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), step(*arguments))


@pytest.mark.parametrize("fused", [False, True])
def test_one_graph_serves_every_number_of_tokens(fused: bool) -> None:
    layer = make_layer(start=0)
    function, target = FORMS[fused]
    weights = layer.weights(target)
    graphs = CompileCounterWithBackend("aot_eager")

    def step(hidden: torch.Tensor, topk_weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return function(hidden, weights, layer.l1_input_scale, layer.l2_input_scale, topk_weights, ids) + 1

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend=graphs, dynamic=True)
    counts = set()
    for tokens in (7, 11, 13, 29, 130):
        batch = make_layer(tokens=tokens, start=0, seed=tokens)
        arguments = (batch.hidden, batch.topk_weights, batch.topk_ids)
        assert torch.equal(compiled(*arguments), step(*arguments))
        counts.add(graphs.frame_count)
    assert len(counts) == 1  # whatever the first call compiled, no later one compiled anything


@pytest.mark.parametrize("fused", [False, True])
def test_operator_passes_opcheck(fused: bool) -> None:
    layer = make_layer(start=0)
    weights = layer.weights(FORMS[fused][1])
    arguments = (
        layer.hidden, as_bytes(weights.tensors()), "gate_up", weights.layout.granularity, layer.l1_input_scale,
        layer.l2_input_scale, layer.topk_weights, layer.topk_ids, 10.0, 0, "torch",
        [torch.zeros_like(t) for t in as_bytes(workspace(layer, fused).tensors())], torch.zeros_like(layer.hidden),
    )  # fmt: skip
    torch.library.opcheck(torch.ops.kh_moe.moe_out, arguments)
