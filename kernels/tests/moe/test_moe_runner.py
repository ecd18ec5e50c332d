"""The runner: states, ownership, replaced weights and scales, two runners, two workspaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_data import Layer, make_layer

from kernels.moe import CuTeDSLMoERunner, collapse_input_scales, run_nvfp4_moe, run_nvfp4_moe_fused
from kernels.nvfp4 import compute_global_scale


def make_runner(layer: Layer, fused: bool = False, **keywords: Any) -> CuTeDSLMoERunner:
    return CuTeDSLMoERunner(
        layer.experts, layer.hidden.shape[1], layer.gate.shape[1], max_num_tokens=32, top_k=layer.topk_ids.shape[1],
        device="cpu", experts_start_idx=layer.start, fused_swiglu=fused, **keywords,
    )  # fmt: skip


def ready_runner(layer: Layer, fused: bool = False, **keywords: Any) -> CuTeDSLMoERunner:
    runner = make_runner(layer, fused, **keywords)
    runner.prepare_weights_from_stacked(*layer.stacked)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    runner.warmup()
    return runner


def run(runner: CuTeDSLMoERunner, layer: Layer, **keywords: Any) -> torch.Tensor:
    return runner.run(layer.hidden, layer.topk_weights, layer.topk_ids, **keywords)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("source", ["vllm_cutlass", "flashinfer_cutlass", "deepgemm", "nvfp4_megamoe"])
def test_equals_the_function(fused: bool, source: str) -> None:
    layer = make_layer()
    runner = make_runner(layer, fused)
    runner.prepare_weights_from_stacked(*layer.in_layout(source), layout=source)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    runner.warmup()
    function, target = (run_nvfp4_moe_fused, "deepgemm") if fused else (run_nvfp4_moe, "vllm_cutlass")
    expected = function(
        layer.hidden, layer.weights(target), layer.l1_input_scale, layer.l2_input_scale, layer.topk_weights,
        layer.topk_ids, experts_start_idx=layer.start,
    )  # fmt: skip
    assert torch.equal(run(runner, layer), expected)


def test_states_are_enforced_with_a_way_out() -> None:
    layer = make_layer()
    runner = make_runner(layer)
    with pytest.raises(RuntimeError, match="prepare_weights_from_stacked"):
        runner.warmup()
    with pytest.raises(RuntimeError, match="prepare_weights_from_stacked"):
        run(runner, layer)
    runner.prepare_weights_from_stacked(*layer.stacked)
    with pytest.raises(RuntimeError, match="set_activation_global_scales"):
        run(runner, layer)
    runner.set_activation_global_scales(layer.l1_input_scale, layer.l2_input_scale)
    with pytest.raises(RuntimeError, match="warmup"):
        run(runner, layer)
    runner.warmup()
    run(runner, layer)
    with pytest.raises(RuntimeError, match="make a new runner"):
        runner.set_swiglu_limit(7.0)


def test_nothing_is_shared_with_the_caller() -> None:
    layer = make_layer()
    runner = ready_runner(layer)
    expected = run(runner, layer)
    for tensor in (*layer.stacked, layer.l1_input_scale, layer.l2_input_scale):
        (tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor).zero_()
    assert torch.equal(run(runner, layer), expected)


def test_results_of_two_calls_are_apart_and_no_workspace() -> None:
    layer = make_layer()
    runner = ready_runner(layer)
    first = run(runner, layer)
    kept = first.clone()
    layer.hidden.neg_()
    second = run(runner, layer)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


def test_new_weights_and_scales_keep_every_address() -> None:
    first, second = make_layer(seed=1), make_layer(seed=2)
    runner = ready_runner(first)
    weights = runner.weights
    assert weights is not None
    addresses = [t.data_ptr() for t in vars(weights).values() if isinstance(t, torch.Tensor)]
    runner.prepare_weights_from_stacked(*second.stacked)
    runner.set_activation_global_scales(second.l1_input_scale * 2, second.l2_input_scale)
    assert runner.weights is weights
    assert [t.data_ptr() for t in vars(weights).values() if isinstance(t, torch.Tensor)] == addresses
    other = ready_runner(second)
    other.set_activation_global_scales(second.l1_input_scale * 2, second.l2_input_scale)
    assert torch.equal(run(runner, second), run(other, second))


def test_two_layers_share_no_buffer_and_do_not_disturb_each_other() -> None:
    layers = [make_layer(seed=1), make_layer(seed=2)]
    runners = [ready_runner(layer) for layer in layers]
    alone = [run(runner, layer) for runner, layer in zip(runners, layers, strict=True)]
    storages = [
        {t.untyped_storage().data_ptr() for part in (runner.weights, runner._workspace) for t in vars(part).values()
         if isinstance(t, torch.Tensor)} for runner in runners
    ]  # fmt: skip
    assert not storages[0] & storages[1]
    for i in (0, 1, 1, 0):
        assert torch.equal(run(runners[i], layers[i]), alone[i])


def test_a_second_workspace_holds_a_second_stream() -> None:
    layer = make_layer()
    runner = ready_runner(layer)
    expected = run(runner, layer)
    other = runner.new_workspace()
    assert torch.equal(run(runner, layer, workspace=other), expected)
    assert runner._workspace is not None
    assert other.l2_rows.data_ptr() != runner._workspace.l2_rows.data_ptr()


@pytest.mark.parametrize("fused", [False, True])
def test_history_does_not_matter(fused: bool) -> None:
    """A batch after a longer one, an empty one, and one of other routes gives the bits of a fresh runner."""
    batches = ((3, "uniform"), (32, "zipf"), (0, "nowhere"), (9, "holes"))
    layers = [make_layer(tokens=tokens, regime=regime, seed=tokens) for tokens, regime in batches]
    base = layers[0]
    runner = ready_runner(base, fused)
    fresh = [run(ready_runner(base, fused), layer) for layer in layers]
    for i in (0, 1, 0, 2, 0, 3, 1, 3):
        assert torch.equal(run(runner, layers[i]), fresh[i])


def test_the_limit_changes_the_output_and_none_lifts_it() -> None:
    layer = make_layer()
    outputs = [run(ready_runner(layer, swiglu_limit=limit), layer) for limit in (10.0, 2.0, None)]
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_calibration_gives_the_scales_of_the_real_activations() -> None:
    layer = make_layer(start=0, regime="uniform")
    for fused in (False, True):
        runner = make_runner(layer, fused)
        runner.prepare_weights_from_stacked(*layer.stacked)
        l1, l2 = runner.compute_activation_global_scales(layer.hidden, layer.topk_ids)
        assert torch.equal(l1, compute_global_scale(layer.hidden))
        assert l1 != l2
        runner.warmup()
        assert run(runner, layer).isfinite().all()


@pytest.mark.parametrize("fused", [False, True])
def test_compiled_run_equals_eager(fused: bool) -> None:
    layer = make_layer()
    runner = ready_runner(layer, fused)
    torch.compiler.reset()
    compiled = torch.compile(lambda *arguments: runner.run(*arguments) * 2, fullgraph=True, backend="aot_eager")
    for batch in (layer, make_layer(tokens=5, seed=4)):
        arguments = (batch.hidden, batch.topk_weights, batch.topk_ids)
        assert torch.equal(compiled(*arguments), runner.run(*arguments) * 2)


def test_input_scales_collapse_to_the_largest() -> None:
    assert collapse_input_scales(torch.tensor([0.1, 0.7, 0.2])) == torch.tensor(0.7)


def test_refusals() -> None:
    layer = make_layer()
    with pytest.raises(ValueError, match="no silent fallback"):
        make_runner(layer, implementation="cute-sm90")
    with pytest.raises(ValueError, match="multiples of 16"):
        CuTeDSLMoERunner(4, 60, 48, device="cpu")
    runner = make_runner(layer)
    with pytest.raises(ValueError, match="experts"):
        runner.prepare_weights_from_stacked(*make_layer(experts=4).stacked)
    with pytest.raises(ValueError, match="one fp32 element"):
        runner.set_activation_global_scales(torch.ones(2), torch.ones(1))
    ready = ready_runner(layer)
    with pytest.raises(ValueError, match="the shape of the first call"):
        ready.prepare_weights_from_stacked(*make_layer(halves=True).stacked)
    with pytest.raises(ValueError, match="at most 32 tokens"):
        run(ready, make_layer(tokens=33))
    with pytest.raises(ValueError, match="topk_ids"):
        ready.run(layer.hidden, layer.topk_weights[:, :2], layer.topk_ids[:, :2])
