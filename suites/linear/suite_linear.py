"""``run_nvfp4_linear``: activations quantised, exact products, fp32 accumulation, on every linear of the models."""

from __future__ import annotations

import torch

from harness import Bounded, Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.linear.gemm import linear_peak_bytes, run_nvfp4_linear
from suites.models import MODELS, TP, linears
from suites.nvfp4 import oracle
from suites.nvfp4.operands import draw_codes, draw_scales, exact, product
from suites.nvfp4.scale_layout import dense_rows, gather_scales, scatter_scales

INPUT_GLOBAL_SCALE = 2.0**-9 * 1.125
WEIGHT_GLOBAL_SCALE = 2.0**-11 * 1.375


def _padded(n: int, k: int) -> tuple[int, int]:
    return -(-n // 128) * 128, -(-(k // 16) // 4) * 4


def _inputs(case: Case, draw: Draw) -> Inputs:
    n, k = case["n"], case["k"]
    if draw.fake:
        scales = draw.integers(0, 1, *_padded(n, k), dtype="u8").view(torch.float8_e4m3fn)
    else:
        linear = draw_scales(draw, n, k // 16)
        scales = scatter_scales(linear, *dense_rows(n, linear.device))
    return {
        "x": draw.tensor(case["m"], k),
        "weight_codes": draw_codes(draw, n, k // 2),
        "weight_scales": scales,
        "alpha": draw.full(INPUT_GLOBAL_SCALE * WEIGHT_GLOBAL_SCALE),
        "input_global_scale": draw.full(INPUT_GLOBAL_SCALE),
    }


def _reference(
    x: torch.Tensor,
    weight_codes: torch.Tensor,
    weight_scales: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
) -> Bounded:
    """The emulated NVFP4 product: operands exact, float64 accumulation."""
    n, k = weight_codes.shape[0], 2 * weight_codes.shape[1]
    linear = gather_scales(weight_scales, dense_rows(n, x.device)[0], k // 16)
    codes, scales = oracle.quantize(x, input_global_scale.reshape(()))
    return product(exact(codes, scales), exact(weight_codes, linear), alpha.reshape(()))


def input_bytes(case: Case) -> int:
    """Activations, packed weights, padded scales, two scalars."""
    rows, columns = _padded(case["n"], case["k"])
    return case["m"] * case["k"] * case.itemsize + case["n"] * case["k"] // 2 + rows * columns + 8


def cost(case: Case) -> Cost:
    """Read weights and activations once, write the output once; two operations a product."""
    m, n, k = case["m"], case["n"], case["k"]
    return Cost(bytes=input_bytes(case) + m * n * case.itemsize, flops=2 * m * n * k)


def _real() -> tuple[Case, ...]:
    """Every distinct (N, K) of a quantised linear at TP 1, 2, 4 and 8, for a decode batch of 64."""
    shapes = {
        (lin.n, lin.k)
        for model in MODELS
        for tp in TP
        for lin in linears(model, tp)
        if lin.quantized and lin.groups == 1
    }
    return tuple(
        case for n, k in sorted(shapes - {(2048, 7168)}) for case in grid(m=64, n=n, k=k, tier="full", worlds=FAKE)
    )


FAKE = ("fake-cuda",)
GPU = ("fake-cuda", "cuda")

register(
    Suite(
        name="run_nvfp4_linear",
        doc="linear layer: activations to NVFP4, exact products, fp32 sums, alpha last",
        inputs=_inputs,
        reference=_reference,
        implementations={"torch": Implementation(run_nvfp4_linear)},
        cases=(
            *grid(m=17, n=96, k=160, regime=["normal", "outlier-channels", "six-decades", "zero-block", "zeros"]),
            *grid(m=[0, 1, 129], n=130, k=288),
            *grid(m=[1, 512], n=2048, k=7168, worlds=GPU),
            *_real(),
        ),
        contract=Contract(strided=("x",), out=True),
        cost=cost,
        memory=lambda case: input_bytes(case) + linear_peak_bytes(case["m"], case["n"], case["k"], case.itemsize),
        sweep="m",
    )
)
