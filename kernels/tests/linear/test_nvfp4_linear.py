"""The linear against fp64 on its own quantised operands, and its life as a layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peak import peak_bytes

from kernels.linear import CuTeDSLNvfp4Linear, linear_peak_bytes, run_nvfp4_linear
from kernels.moe import reference
from kernels.nvfp4 import (
    compute_global_scale,
    quantize_activation_nvfp4,
    quantize_weight_to_nvfp4,
    swizzle_scales,
)

SCALE = torch.tensor(6.0 / 2688)


def weight_of(columns: int, depth: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.linspace(0.2, 3.0, columns)[:, None]
    return torch.randn(columns, depth, generator=generator) * rows + 0.05


def x_of(rows: int, depth: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layer_of(columns: int, depth: int, **keywords: Any) -> tuple[CuTeDSLNvfp4Linear, torch.Tensor]:
    layer = CuTeDSLNvfp4Linear(depth, columns, device="cpu", **keywords)
    weight = weight_of(columns, depth)
    layer.finalize_from_weight(weight, SCALE)
    layer.warmup()
    return layer, weight


def exact(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 product of the quantised operands and the bound of fp32 accumulation."""
    codes, scales = quantize_activation_nvfp4(x, SCALE)
    a = reference.decode(codes, scales)
    w_codes, w_scales, w_global = quantize_weight_to_nvfp4(weight)
    w = reference.decode(w_codes, w_scales).unsqueeze(0)
    offsets = torch.tensor([0, x.shape[0]])
    alpha = (SCALE * w_global).reshape(1)
    arguments = (a, w, offsets, alpha)
    return reference.grouped_gemm(*arguments), reference.accumulation_bound(*arguments)


@pytest.mark.parametrize(("columns", "depth"), [(40, 64), (1, 16), (129, 288), (200, 576), (96, 384)])
@pytest.mark.parametrize("rows", [1, 2, 33, 128])
def test_against_fp64(rows: int, columns: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.linear.gemm.WEIGHT_ROWS", 128)
    monkeypatch.setattr("kernels.linear.gemm.ACTIVATION_ROWS", 32)
    layer, weight = layer_of(columns, depth, out_dtype=torch.float32)
    x = x_of(rows, depth)
    expected, bound = exact(x, weight)
    got = layer(x)
    assert got.shape == (rows, columns)
    assert ((got.double() - expected).abs() <= bound * 1.01).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_round_once(dtype: torch.dtype) -> None:
    full, _ = layer_of(48, 64, out_dtype=torch.float32)
    layer, _ = layer_of(48, 64, out_dtype=dtype)
    x = x_of(5, 64, dtype)
    assert layer(x).dtype == dtype
    assert torch.equal(layer(x), full(x).to(dtype))


def test_leading_dimensions_and_strides() -> None:
    layer, _ = layer_of(40, 64)
    x = x_of(12, 64)
    flat = layer(x)
    assert torch.equal(layer(x.view(3, 4, 64)), flat.view(3, 4, 40))
    assert torch.equal(layer(x[0]), flat[0])
    wide = torch.cat([x, x + 1], dim=1)[:, :64]
    assert torch.equal(layer(wide), flat)
    assert torch.equal(layer(x.t().contiguous().t()), flat)
    assert torch.equal(layer(x[1:]), flat[1:])
    assert layer(x[:0]).shape == (0, 40)


def test_states_are_enforced() -> None:
    layer = CuTeDSLNvfp4Linear(64, 40, device="cpu")
    with pytest.raises(RuntimeError, match="finalize_weights"):
        layer.warmup()
    layer.finalize_from_weight(weight_of(40, 64), SCALE)
    with pytest.raises(RuntimeError, match="warmup"):
        layer(x_of(1, 64))


def test_new_weights_are_copied_into_the_old_buffers() -> None:
    layer, _ = layer_of(40, 64)
    x = x_of(3, 64)
    before = layer(x)
    addresses = {name: buffer.data_ptr() for name, buffer in layer.named_buffers()}
    codes, scales, global_scale = quantize_weight_to_nvfp4(weight_of(40, 64, seed=9))
    layer.finalize_weights(codes, scales, global_scale, SCALE * 2)
    after = layer(x)
    assert {name: buffer.data_ptr() for name, buffer in layer.named_buffers()} == addresses
    assert not torch.equal(before, after)
    codes.zero_()
    assert torch.equal(layer(x), after)


def test_warm_up_sets_no_scale() -> None:
    layer, _ = layer_of(40, 64)
    scale, alpha = layer.input_global_scale.clone(), layer.alpha.clone()
    layer.warmup()
    layer(x_of(7, 64) * 1000)
    assert torch.equal(layer.input_global_scale, scale)
    assert torch.equal(layer.alpha, alpha)


def test_two_layers_share_nothing() -> None:
    first, _ = layer_of(40, 64)
    x = x_of(3, 64)
    expected = first(x)
    second = CuTeDSLNvfp4Linear(64, 40, device="cpu")
    second.finalize_from_weight(weight_of(40, 64, seed=5), SCALE * 3)
    second.warmup()
    second(x)
    assert torch.equal(first(x), expected)


def test_padding_of_the_weight_scales_is_never_read() -> None:
    layer, _ = layer_of(40, 48)
    x = x_of(3, 48)
    expected = layer(x)
    used = swizzle_scales(torch.ones(40, 3, dtype=torch.uint8))
    layer.weight_scales.masked_fill_(used == 0, 0x7F)
    assert torch.equal(layer(x), expected)


def test_out_is_written_whole_and_may_be_strided() -> None:
    layer, _ = layer_of(40, 64)
    x = x_of(5, 64)
    buffer = torch.full((5, 50), math.nan)
    got = run_nvfp4_linear(
        x, layer.weight_codes, layer.weight_scales, layer.alpha, layer.input_global_scale, out=buffer[:, :40]
    )
    assert got.data_ptr() == buffer.data_ptr()
    assert torch.equal(got.bfloat16(), layer(x))
    assert buffer[:, 40:].isnan().all()


REFUSED = {
    "depth": ({"x": x_of(2, 48)}, ValueError, "K = 64"),
    "x of integers": ({"x": torch.zeros(2, 64, dtype=torch.int32)}, TypeError, "x:"),
    "linear scales": ({"weight_scales": torch.zeros(40, 4, dtype=torch.uint8)}, ValueError, "swizzle"),
    "alpha a vector": ({"alpha": torch.ones(40)}, ValueError, "alpha"),
    "input scale bf16": ({"input_global_scale": SCALE.bfloat16()}, ValueError, "input_global_scale"),
    "implementation": ({"implementation": "cute-sm90"}, ValueError, "no silent fallback"),
    "out": ({"out": torch.zeros(2, 41)}, ValueError, "out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    changes, error, message = REFUSED[case]
    layer, _ = layer_of(40, 64)
    arguments = {
        "x": x_of(2, 64), "weight_codes": layer.weight_codes, "weight_scales": layer.weight_scales,
        "alpha": layer.alpha, "input_global_scale": layer.input_global_scale,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        run_nvfp4_linear(**(arguments | changes))


def test_layer_refusals() -> None:
    with pytest.raises(ValueError, match="no silent fallback"):
        CuTeDSLNvfp4Linear(64, 40, device="cpu", implementation="cute-sm90")
    with pytest.raises(ValueError, match="multiple of 16"):
        CuTeDSLNvfp4Linear(60, 40, device="cpu")
    layer, weight = layer_of(40, 64)
    codes, scales, global_scale = quantize_weight_to_nvfp4(weight)
    with pytest.raises(ValueError, match="linear"):
        layer.finalize_weights(codes, swizzle_scales(scales), global_scale, SCALE)
    with pytest.raises(ValueError, match="one layer each"):
        layer.finalize_weights(codes, scales, torch.ones(2), SCALE)
    with pytest.raises(TypeError, match="uint8"):
        layer.finalize_weights(codes.int(), scales, global_scale, SCALE)
    with pytest.raises(ValueError, match="expected"):
        layer(x_of(2, 48))


def test_operator_and_compile() -> None:
    layer, _ = layer_of(40, 48)
    x = x_of(3, 48)
    arguments = (x, layer.weight_codes, layer.weight_scales, layer.alpha, layer.input_global_scale)
    torch.library.opcheck(torch.ops.kh_linear.nvfp4_linear_out, (*arguments, torch.zeros(3, 40)))
    compiled = torch.compile(lambda t: layer(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x) * 2)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 512, 256), (700, 96, 288), (64, 2100, 64)])
def test_peak_is_within_the_formula(rows: int, columns: int, depth: int) -> None:
    layer, _ = layer_of(columns, depth)
    x = x_of(rows, depth)
    assert 0 < peak_bytes(lambda: layer(x)) <= linear_peak_bytes(rows, columns, depth)


def test_real_calibration_gives_a_usable_result() -> None:
    layer, weight = layer_of(40, 256)
    x = x_of(16, 256)
    layer.finalize_from_weight(weight, compute_global_scale(x))
    expected = x.double() @ weight.double().T
    assert 0.01 < (layer(x).double() - expected).norm() / expected.norm() < 0.3
