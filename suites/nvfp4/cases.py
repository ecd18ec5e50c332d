"""Which cases the NVFP4 suites run where.

- small shapes with every data regime: values, on the CPU and on a GPU;
- the odd sizes (M of 0, 1, 2, 127, 128, 129; K of 288 and 576; N of 9216): edges;
- the real shapes of DeepSeek-V4, from ``suites.models``: capture and memory in the fake world at full size, and all
  gates on a GPU.
"""

from __future__ import annotations

from harness import Case, grid
from suites.models import MODELS, TOKENS, activation_shapes, expert_gemms, unique_weight_shapes
from suites.nvfp4.values import SPECIAL

GENERAL = (
    "normal",
    "normal-small",
    "normal-large",
    "heavy-tails",
    "outlier-channels",
    "six-decades",
    "zeros",
    "zero-block",
    "signed-zeros",
    "subnormals",
    "huge",
    "constant",
)
NOT_FINITE = ("inf", "nan")
GPU = ("fake-cuda", "cuda")

VALUES = (
    *grid(m=17, k=512, dtype="bf16", regime=[*GENERAL, *NOT_FINITE]),
    *grid(m=17, k=512, dtype="fp16", regime=["normal", "heavy-tails", "subnormals", *NOT_FINITE]),
    *grid(m=17, k=512, dtype="fp32", regime=[*GENERAL, *NOT_FINITE, *SPECIAL]),
)
"""Every data regime in every input dtype."""

EDGES = (
    *grid(m=[0, 1, 2, 127, 128, 129], k=576),
    *grid(m=[1, 129], k=[288, 7168]),
    *grid(m=3, k=16),
)

REAL_QUICK = grid(m=[128, 8192], k=7168, worlds=GPU)
"""Activations of V4-Pro: one tile of tokens, a prefill chunk (a single token is among ``EDGES``)."""


MEASURED = frozenset((m, k) for m in (64, 2048) for k in (4096, 5120))
"""Activations that a GPU runs too; the others would only repeat the same code at more sizes."""


def real_activations() -> tuple[Case, ...]:
    """Every distinct (M, K) that a quantiser sees in the three models on one rank at TP1, up to 16384 tokens."""
    shapes = {(shape.m, shape.k) for model in MODELS for shape in activation_shapes(model, tokens=TOKENS)}
    done = {(case["m"], case["k"]) for case in (*EDGES, *REAL_QUICK)}
    return tuple(
        case
        for m, k in sorted(shapes - done)
        if m
        for case in grid(m=m, k=k, tier="full", worlds=GPU if (m, k) in MEASURED else ("fake-cuda",))
    )


def real_weights() -> tuple[Case, ...]:
    """Every distinct (N, K) weight of the three models at TP 1, 2, 4 and 8, in the fake world."""
    return tuple(
        case
        for weight in unique_weight_shapes()
        if (weight.n, weight.k) != (6144, 7168)  # always run
        for case in grid(n=weight.n, k=weight.k, tier="full", worlds=("fake-cuda",))
    )


def expert_stacks() -> tuple[Case, ...]:
    """Stacked experts of one rank at EP8, both products of every model; V4-Pro's (48, 6144, 7168) is always run."""
    stacks = {(gemm.experts, gemm.n, gemm.k) for model in MODELS for gemm in expert_gemms(model, 1, 8)}
    first = (48, 6144, 7168)
    return grid(e=first[0], n=first[1], k=first[2], worlds=("fake-cuda",)) + tuple(
        case for e, n, k in sorted(stacks - {first}) for case in grid(e=e, n=n, k=k, tier="full", worlds=("fake-cuda",))
    )
