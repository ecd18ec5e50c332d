"""``run_nvfp4_grouped_gemm`` and ``run_fused_swiglu_grouped_gemm``, with empty experts anywhere."""

from __future__ import annotations

import torch

from harness import Bounded, Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.moe import run_fused_swiglu_grouped_gemm, run_nvfp4_grouped_gemm
from kernels.moe.operands import tile_workspace_bytes
from suites.models import MODELS, expert_gemms
from suites.nvfp4.operands import BF16, draw_codes, draw_scales, exact, product
from suites.nvfp4.scale_layout import SPLITS, dense_rows, gather_scales, grouped_rows, scatter_scales

LIMIT = 10.0
"""DeepSeek-V4's swiglu_limit."""

GRANULARITY = 8
"""Rows of gate before rows of up, in the fused product's weights."""


def _columns(k: int) -> int:
    return -(-(k // 16) // 4) * 4


def _inputs(case: Case, draw: Draw) -> Inputs:
    """Offsets of the routing regime. Each expert has another alpha, gate and up are quantised apart where fused."""
    m, e, n, k = case["m"], case["e"], case["n"], case["k"]
    ends = SPLITS[str(case.routing)](m, e)
    offsets = torch.tensor([0, *ends], dtype=torch.int32)
    held = min(m, e)
    if draw.fake:
        a_scales = draw.integers(0, 1, ((m - held) // 128 + held) * 128, _columns(k), dtype="u8")
        b_scales = draw.integers(0, 1, e, -(-n // 128) * 128, _columns(k), dtype="u8")
    else:
        a_scales = scatter_scales(draw_scales(draw, m, k // 16), *grouped_rows(m, offsets))
        linear = draw_scales(draw, e, n, k // 16)
        b_scales = torch.stack(
            [scatter_scales(expert, *dense_rows(n, expert.device)) for expert in linear.view(torch.uint8)]
        )
    return {
        "a_codes": draw_codes(draw, m, k // 2),
        "b_codes": draw_codes(draw, e, n, k // 2),
        "a_scales": draw.put(a_scales.view(torch.float8_e4m3fn))
        if not draw.fake
        else a_scales.view(torch.float8_e4m3fn),
        "b_scales": draw.put(b_scales.view(torch.float8_e4m3fn))
        if not draw.fake
        else b_scales.view(torch.float8_e4m3fn),
        "expert_offsets": draw.put(offsets),
        "alpha": draw.put(2.0**-9 * (1.0 + torch.arange(e) / 7).float()),
    }


def _products(
    a_codes: torch.Tensor,
    b_codes: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    alpha: torch.Tensor,
    rounding: float,
) -> Bounded:
    """Each expert's rows times its weights; rows of no expert are zero."""
    m, n, k = a_codes.shape[0], b_codes.shape[1], 2 * a_codes.shape[1]
    a = exact(a_codes, gather_scales(a_scales, grouped_rows(m, expert_offsets)[0], k // 16))
    value = torch.zeros(m, n, dtype=torch.float64, device=a.device)
    bound = torch.zeros_like(value)
    ends = expert_offsets.tolist()
    for expert in range(b_codes.shape[0]):
        rows = slice(ends[expert], ends[expert + 1])
        linear = gather_scales(b_scales[expert], dense_rows(n, a.device)[0], k // 16)
        part = product(a[rows], exact(b_codes[expert], linear), alpha[expert], rounding)
        value[rows], bound[rows] = part.value, part.bound
    return Bounded(value, bound)


def _reference(**inputs: torch.Tensor) -> Bounded:
    return _products(**inputs, rounding=BF16)


def _reference_fused(**inputs: torch.Tensor) -> Bounded:
    """silu(min(gate, L)) * clamp(up, -L, L) of the fp32 sums, rounded once.

    The error of a sum enters SwiGLU: |d silu| <= 1.1 and |silu(g)| <= |g| bound what it can do to the result; fp32
    arithmetic of SwiGLU itself adds 2^-20 of it.
    """
    sums = _products(**inputs, rounding=0.0)
    blocks = (sums.value.shape[0], -1, 2, GRANULARITY)
    gate, up = sums.value.view(blocks).unbind(2)
    gate_error, up_error = sums.bound.view(blocks).unbind(2)
    g, u = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    value = g * torch.sigmoid(g) * u
    error = 1.1 * gate_error * (u.abs() + up_error) + g.abs() * up_error + 2.0**-20 * value.abs()
    bound = error + BF16 * (value.abs() + error)
    return Bounded(value.flatten(1), bound.flatten(1))


def _input_bytes(case: Case) -> int:
    m, e, n, k = case["m"], case["e"], case["n"], case["k"]
    held = min(m, e)
    scales = _columns(k) * (((m - held) // 128 + held) * 128 + e * -(-n // 128) * 128)
    return (m + e * n) * k // 2 + scales + 4 * (e + 1) + 4 * e


def _peak(case: Case) -> int:
    """Inputs, bf16 output, and one tile of rows against one piece of one expert: never all weights dequantised."""
    m, e, n, k = case["m"], case["e"], case["n"], case["k"]
    return _input_bytes(case) + 2 * m * n + tile_workspace_bytes(m, e, n, k) + (1 << 17)


def _cost(case: Case) -> Cost:
    """Read each operand once, write the output once."""
    m, n, k = case["m"], case["n"], case["k"]
    return Cost(bytes=_input_bytes(case) + 2 * m * n, flops=2 * m * n * k)


FAKE, GPU = ("fake-cuda",), ("fake-cuda", "cuda")


def _real() -> tuple[Case, ...]:
    """Both products of each model at EP8, 384 routed rows (64 tokens, six experts each)."""
    shapes = sorted({(g.experts, g.n, g.k) for model in MODELS for g in expert_gemms(model, 1, 8)})
    return tuple(
        case
        for e, n, k in shapes
        for case in grid(m=384, e=e, n=n, k=k, dtype="u8", routing="uniform", tier="full", worlds=FAKE)
    )


CASES = (
    *grid(m=150, e=5, n=96, k=160, dtype="u8", routing="uniform"),
    # who gets how many rows is data: it cannot change what a capture or an allocator sees
    *grid(m=150, e=5, n=96, k=160, dtype="u8", routing=list(SPLITS)[1:], worlds=("cpu", "cuda")),
    *grid(m=[1, 3], e=5, n=32, k=64, dtype="u8", routing="uniform"),
    *grid(m=256, e=4, n=512, k=1024, dtype="u8", routing="every-other-empty", worlds=GPU),
    *_real(),
)
FIELDS = {
    "inputs": _inputs,
    "outputs": ("rows",),
    "cases": CASES,
    "cost": _cost,
    "memory": _peak,
    "sweep": "m",
}

register(
    Suite(
        name="run_nvfp4_grouped_gemm",
        doc="(M, K) rows in expert order by (E, N, K) weights, alpha per expert",
        reference=_reference,
        implementations={"torch": Implementation(run_nvfp4_grouped_gemm)},
        contract=Contract(out=True),
        **FIELDS,  # type: ignore[arg-type]
    )
)

register(
    Suite(
        name="run_fused_swiglu_grouped_gemm",
        doc="the same with clamped SwiGLU in the epilogue, on interleaved weights",
        reference=_reference_fused,
        implementations={"torch": Implementation(run_fused_swiglu_grouped_gemm)},
        contract=Contract(out=True),
        **FIELDS,  # type: ignore[arg-type]
    )
)
