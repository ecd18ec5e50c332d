"""Grouped products against fp64 within the bound of fp32 accumulation; exact integers where sums are exact."""

from __future__ import annotations

import math

import pytest
import torch
from moe_data import COUNTS, Grouped, grouped, offsets_of, random_codes
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.moe import (
    reference,
    run_fused_swiglu_grouped_gemm,
    run_fused_swiglu_quantize_grouped_gemm,
    run_nvfp4_grouped_gemm,
)
from kernels.moe.layouts import L1Layout, convert_l1_weights
from kernels.nvfp4 import quantize_activation_nvfp4


def exact(problem: Grouped) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 product and its fp32 accumulation bound."""
    a = reference.decode(problem.a_codes, problem.a_linear)
    b = reference.decode(problem.b_codes, problem.b_linear)
    arguments = (a, b, problem.offsets, problem.alpha)
    return reference.grouped_gemm(*arguments), reference.accumulation_bound(*arguments)


@pytest.mark.parametrize("routing", COUNTS)
@pytest.mark.parametrize(("columns", "depth"), [(40, 64), (136, 288), (24, 16)])
def test_against_fp64(routing: str, columns: int, depth: int) -> None:
    problem = grouped(COUNTS[routing], columns, depth, orphans=3)
    expected, bound = exact(problem)
    out = torch.full(expected.shape, math.nan)
    assert run_nvfp4_grouped_gemm(*problem.arguments, out=out) is out
    assert ((out.double() - expected).abs() <= bound).all()
    assert not out[sum(COUNTS[routing]) :].any()


def test_rows_before_the_first_offset_belong_to_no_expert() -> None:
    problem = grouped([4, 3], 24, 32, orphans=2)
    shifted = Grouped(problem.a_codes, problem.a_linear, problem.b_codes, problem.b_linear, problem.offsets + 2,
                      problem.alpha)  # fmt: skip
    expected, bound = exact(shifted)
    out = run_nvfp4_grouped_gemm(*shifted.arguments, out_dtype=torch.float32)
    assert ((out.double() - expected).abs() <= bound).all()
    assert not out[:2].any()


def test_alpha_of_each_half() -> None:
    problem = grouped([3, 0, 5], 40, 64, halves=True)
    expected, bound = exact(problem)
    out = run_nvfp4_grouped_gemm(*problem.arguments, out_dtype=torch.float32)
    assert ((out.double() - expected).abs() <= bound).all()


def test_one_rounding_to_the_output_dtype() -> None:
    problem = grouped([5, 2], 72, 64)
    full = run_nvfp4_grouped_gemm(*problem.arguments, out_dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(run_nvfp4_grouped_gemm(*problem.arguments, out_dtype=dtype), full.to(dtype))


def test_exact_integers_show_every_dropped_row_column_and_scale_block() -> None:
    """Code 1.0 everywhere, one power-of-two scale a K block, a power of two a row: each sum is an exact integer."""
    counts, columns, blocks = [5, 0, 3], 130, 9
    rows = sum(counts)
    a_scales = torch.tensor([2.0 ** (i % 4) for i in range(rows)]).view(rows, 1).expand(rows, blocks)
    b_scales = torch.tensor([2.0 ** (j - 2) for j in range(blocks)]).expand(3, columns, blocks)
    problem = Grouped(
        torch.full((rows, blocks * 8), 0x22, dtype=torch.uint8),
        a_scales.to(torch.float8_e4m3fn),
        torch.full((3, columns, blocks * 8), 0x22, dtype=torch.uint8),
        b_scales.to(torch.float8_e4m3fn),
        offsets_of(counts),
        torch.tensor([1.0, 3.0, 5.0]),
    )
    out = run_nvfp4_grouped_gemm(*problem.arguments, out_dtype=torch.float32)
    for row in range(rows):
        value = 2.0 ** (row % 4) * 16 * sum(2.0 ** (j - 2) for j in range(blocks)) * (1.0 if row < 5 else 5.0)
        assert torch.equal(out[row], torch.full((columns,), value))


def test_padding_bytes_of_the_scales_are_never_read() -> None:
    problem = grouped([5, 129, 0, 2], 40, 48)
    a_codes, b_codes, a_scales, b_scales, offsets, alpha = problem.arguments
    clean = run_nvfp4_grouped_gemm(a_codes, b_codes, a_scales, b_scales, offsets, alpha)
    padding_a = torch.ones(problem.a_linear.shape, dtype=torch.uint8)
    used_a = Grouped(a_codes, padding_a, b_codes, torch.ones_like(problem.b_linear.view(torch.uint8)), offsets, alpha)
    _, _, mask_a, mask_b, _, _ = used_a.arguments
    poisoned_a = torch.where(mask_a == 1, a_scales.view(torch.uint8), 0x7F)
    poisoned_b = torch.where(mask_b == 1, b_scales.view(torch.uint8), 0x7F)
    assert bool((poisoned_a == 0x7F).any())
    assert bool((poisoned_b == 0x7F).any())
    assert torch.equal(run_nvfp4_grouped_gemm(a_codes, b_codes, poisoned_a, poisoned_b, offsets, alpha), clean)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    problem = grouped([130, 4], 24, 32)
    full = run_nvfp4_grouped_gemm(*problem.arguments, out_dtype=torch.float32)
    changed = Grouped(problem.a_codes.clone(), problem.a_linear, problem.b_codes, problem.b_linear, problem.offsets,
                      problem.alpha)  # fmt: skip
    changed.a_codes[[0, 5, 129, 131]] ^= 0x13
    again = run_nvfp4_grouped_gemm(*changed.arguments, out_dtype=torch.float32)
    same = [i for i in range(134) if i not in (0, 5, 129, 131)]
    assert torch.equal(again[same], full[same])


def fused_case(
    order: str = "gate_up", granularity: int = 8, half: int = 64, halves: bool = False
) -> tuple[Grouped, Grouped]:
    """The problem with [gate | up] weights, and the same one interleaved."""
    problem = grouped([4, 0, 131, 2], 2 * half, 48, orphans=2, halves=halves, seed=4)
    codes, scales = convert_l1_weights(problem.b_codes, problem.b_linear, L1Layout(), L1Layout(order, granularity))
    alpha = problem.alpha * 20  # large enough that both clamps bite
    plain = Grouped(problem.a_codes, problem.a_linear, problem.b_codes, problem.b_linear, problem.offsets, alpha)
    return plain, Grouped(problem.a_codes, problem.a_linear, codes, scales, problem.offsets, alpha)


@pytest.mark.parametrize("granularity", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("order", ["gate_up", "up_gate"])
@pytest.mark.parametrize("halves", [False, True])
def test_fused_against_fp64(order: str, granularity: int, halves: bool) -> None:
    plain, interleaved = fused_case(order, granularity, halves=halves)
    product, bound = exact(plain)
    assert (product.abs() > 10).any()
    gate, up = product.chunk(2, dim=1)
    expected = reference.clamped_swiglu(gate, up, 10.0)
    # |dy| <= |d gate| * max|silu'| * 10 + |d up| * |silu| with silu' <= 1.1, and fp32's own error of the epilogue.
    gate_bound, up_bound = bound.chunk(2, dim=1)
    allowed = 11 * gate_bound + 10 * up_bound + expected.abs() * 1e-6 + 1e-9
    got = run_fused_swiglu_grouped_gemm(
        *interleaved.arguments, order=order, granularity=granularity, out_dtype=torch.float32
    )
    assert got.shape == (139, 64)
    assert ((got.double() - expected).abs() <= allowed).all()
    unlimited = run_fused_swiglu_grouped_gemm(
        *interleaved.arguments, limit=None, order=order, granularity=granularity, out_dtype=torch.float32
    )
    assert not torch.allclose(unlimited, got)


def test_fused_and_quantised_is_the_quantised_fp32_result() -> None:
    _, interleaved = fused_case()
    scale = torch.tensor(0.05)
    y = run_fused_swiglu_grouped_gemm(*interleaved.arguments, out_dtype=torch.float32)
    codes, scales = quantize_activation_nvfp4(y, scale)
    out = torch.full_like(codes, 99), torch.full_like(scales.view(torch.uint8), 99).view(torch.float8_e4m3fn)
    got = run_fused_swiglu_quantize_grouped_gemm(*interleaved.arguments, scale, out=out)
    assert got is out
    assert torch.equal(out[0][:137], codes[:137])
    assert torch.equal(out[1].view(torch.uint8)[:137], scales.view(torch.uint8)[:137])
    assert not out[0][137:].any()
    assert not out[1].view(torch.uint8)[137:].any()


def test_no_rows() -> None:
    problem = grouped([0, 0], 32, 32)
    assert run_nvfp4_grouped_gemm(*problem.arguments).shape == (0, 32)
    assert run_fused_swiglu_grouped_gemm(*problem.arguments).shape == (0, 16)


REFUSED = {
    "alpha of other length": ({5: torch.ones(3)}, ValueError, "alpha"),
    "alpha bf16": ({5: torch.ones(2).bfloat16()}, TypeError, "alpha"),
    "offsets without the leading 0": ({4: torch.tensor([3, 5], dtype=torch.int32)}, ValueError, r"\(3\)"),
    "offsets float": ({4: torch.zeros(3)}, TypeError, "expert_offsets"),
    "weights (E, K/2, N)": ({1: torch.zeros(2, 16, 32, dtype=torch.uint8)}, ValueError, "b_codes"),
    "weights a transposed view": (
        {1: torch.zeros(2, 16, 32, dtype=torch.uint8).transpose(1, 2)}, ValueError, "K-major",
    ),
    "weight scales linear": ({3: torch.zeros(2, 32, 2, dtype=torch.uint8)}, ValueError, "b_scales"),
    "activation scales of one swizzle": ({2: torch.zeros(128, 4, dtype=torch.uint8)}, ValueError, "grouped"),
    "codes int8": ({0: torch.zeros(5, 16, dtype=torch.int8)}, TypeError, "a_codes"),
    "other device": ({5: torch.ones(2, device="meta")}, ValueError, "meta"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    changes, error, message = REFUSED[case]
    arguments = list(grouped([3, 2], 32, 32).arguments)
    for index, value in changes.items():
        arguments[index] = value
    with pytest.raises(error, match=message):
        run_nvfp4_grouped_gemm(*arguments)


def test_no_silent_fallback() -> None:
    arguments = grouped([3, 2], 32, 32).arguments
    with pytest.raises(ValueError, match="no silent fallback"):
        run_nvfp4_grouped_gemm(*arguments, implementation="cute-sm90")
    with pytest.raises(ValueError, match="pad_l1_weights"):
        run_fused_swiglu_grouped_gemm(*arguments, granularity=64)


def test_operators_pass_opcheck() -> None:
    a_codes, b_codes, a_scales, b_scales, offsets, alpha = grouped([3, 0, 2], 32, 48, orphans=1).arguments
    operands = (a_codes, b_codes, a_scales.view(torch.uint8), b_scales.view(torch.uint8), offsets, alpha)
    torch.library.opcheck(torch.ops.kh_moe.grouped_gemm_out, (*operands, torch.zeros(6, 32)))
    fused = (*operands, 10.0, "gate_up", 8, torch.zeros(6, 16))
    torch.library.opcheck(torch.ops.kh_moe.fused_swiglu_grouped_gemm_out, fused)
    outputs = torch.zeros(6, 8, dtype=torch.uint8), torch.zeros(6, 1, dtype=torch.uint8)
    quantised = (*operands, torch.tensor(0.1), 10.0, "gate_up", 8, *outputs)
    torch.library.opcheck(torch.ops.kh_moe.fused_swiglu_quantize_grouped_gemm_out, quantised)


def test_compiled_equals_eager() -> None:
    _, interleaved = fused_case()
    arguments = interleaved.arguments

    def step(*operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return run_nvfp4_grouped_gemm(*operands) * 2, run_fused_swiglu_grouped_gemm(*operands) + 1

    eager = step(*arguments)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


def test_fake_shapes_are_those_of_the_real_call() -> None:
    real = grouped([3, 0, 2], 48, 48).arguments
    for dtype in (torch.bfloat16, torch.float32):
        for function in (run_nvfp4_grouped_gemm, run_fused_swiglu_grouped_gemm):
            want = function(*real, out_dtype=dtype)
            with FakeTensorMode() as mode:
                got = function(*[mode.from_tensor(t) for t in real], out_dtype=dtype)
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())


def test_uniformly_random_weight_bytes_are_valid_operands() -> None:
    g = torch.Generator().manual_seed(9)
    assert len(set(random_codes(g, 4096).tolist())) == 256
    problem = grouped([64], 64, 64)
    assert run_nvfp4_grouped_gemm(*problem.arguments).isfinite().all()
