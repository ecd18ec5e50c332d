"""``quantize_weight_to_nvfp4``: real checkpoints, both orientations, stacks of experts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from harness.dtypes import torch_dtype
from kernels.nvfp4 import quantize_peak_bytes, quantize_weight_to_nvfp4
from suites.nvfp4 import oracle
from suites.nvfp4.cases import GENERAL, expert_stacks, real_weights

_MANY_ELEMENTS = 1 << 22


def shape(case: Case) -> tuple[int, ...]:
    """(N, K), or (E, N, K) for a stack."""
    return tuple(case[name] for name in ("e", "n", "k") if name in dict(case.params))


def peak(case: Case) -> int:
    """What the quantiser promises: below 2.3 times a large weight, stacks of experts included."""
    promised = quantize_peak_bytes(shape(case), torch_dtype(case.dtype))
    elements = math.prod(shape(case))
    if elements >= 8192 * 7168 and promised > 2.3 * elements * case.itemsize:
        raise ValueError(f"{case.id}: the quantiser promises {promised} B, more than 2.3 x the weight")
    return promised


def cost(case: Case) -> Cost:
    """Read the weight once, write codes and scales once."""
    elements = math.prod(shape(case))
    return Cost(bytes=elements * case.itemsize + elements // 2 + elements // 16)


def _reference(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = oracle.global_scale(w)
    return *oracle.quantize(w, scale), scale


def _checkpoint_cases(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Sequence[Case]:
    """Every matrix whose rows can be cut into blocks of 16; the largest only in the full tier."""
    return [
        Case(
            (("n", shape[0]), ("k", shape[1])),
            dtype=dtype,
            regime="real",
            source=source,
            tier="quick" if shape[0] * shape[1] <= _MANY_ELEMENTS else "full",
            worlds=("cpu", "cuda"),
        )
        for source, (shape, dtype) in tensors.items()
        if len(shape) == 2 and shape[1] % 16 == 0 and dtype != "fp64"
    ]


FINITE = grid(n=[16, 129], k=512, regime=GENERAL) + grid(n=9216, k=288, tier="full") + grid(n=64, k=[16, 576])

register(
    Suite(
        name="quantize_weight_to_nvfp4",
        doc="NVFP4 of a weight (N, K), K the packed axis; real weights with --checkpoint",
        inputs=lambda case, draw: {"w": draw.tensor(case["n"], case["k"])},
        reference=_reference,
        outputs=("codes", "scales", "global_scale"),
        # reading whether a checkpoint is finite waits for the device, so the offline default is not for graphs
        implementations={
            "torch": Implementation(quantize_weight_to_nvfp4, contract=Contract(strided=("w",), capturable=False)),
            "torch-unchecked": Implementation(functools.partial(quantize_weight_to_nvfp4, check_finite=False)),
        },
        cases=(*FINITE, *grid(n=6144, k=7168, worlds=("fake-cuda", "cuda")), *real_weights()),
        contract=Contract(strided=("w",)),
        cost=cost,
        memory=peak,
        sweep="n",
        checkpoint_cases=_checkpoint_cases,
    )
)


def _transposed(case: Case, draw: Draw) -> Inputs:
    return {"w": draw.tensor(case["k"], case["n"])}


register(
    Suite(
        name="quantize_weight_to_nvfp4_kn",
        doc="the same for a weight stored (K, N): K is still the packed axis",
        inputs=_transposed,
        reference=lambda w: _reference(w.transpose(0, 1).contiguous()),
        outputs=("codes", "scales", "global_scale"),
        implementations={
            "torch": Implementation(functools.partial(quantize_weight_to_nvfp4, k_dim=-2, check_finite=False))
        },
        cases=grid(n=[16, 129], k=512, regime=["normal", "outlier-channels", "zero-block"])
        + grid(n=6144, k=7168, worlds=("fake-cuda", "cuda")),
        contract=Contract(strided=("w",)),
        cost=cost,
        memory=peak,
        sweep="n",
    )
)


def _reference_stack(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    experts, n, k = w.shape
    codes = torch.empty(experts, n, k // 2, dtype=torch.uint8, device=w.device)
    scales = torch.empty(experts, n, k // 16, dtype=torch.float8_e4m3fn, device=w.device)
    global_scale = torch.empty(experts, dtype=torch.float32, device=w.device)
    for e in range(experts):
        codes[e], scales[e], global_scale[e] = _reference(w[e])
    return codes, scales, global_scale


register(
    Suite(
        name="quantize_weight_to_nvfp4_experts",
        doc="the same for a stack of experts (E, N, K), a global scale each",
        inputs=lambda case, draw: {"w": draw.tensor(case["e"], case["n"], case["k"])},
        reference=_reference_stack,
        outputs=("codes", "scales", "global_scale"),
        implementations={"torch": Implementation(functools.partial(quantize_weight_to_nvfp4, check_finite=False))},
        cases=grid(e=[1, 5], n=48, k=[96, 576], regime=["normal", "six-decades", "zero-block"]) + expert_stacks(),
        contract=Contract(rows=("w",), strided=("w",)),
        cost=cost,
        memory=peak,
        sweep="e",
    )
)
