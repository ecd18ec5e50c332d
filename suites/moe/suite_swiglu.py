"""Clamped SwiGLU, alone and fused with the NVFP4 quantisation of its result."""

from __future__ import annotations

import torch

from harness import Bounded, Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.moe import clamped_swiglu, swiglu_quantize_nvfp4
from kernels.moe.swiglu import swiglu_quantize_peak_bytes
from kernels.nvfp4 import dequantize_nvfp4
from suites.nvfp4 import oracle

LIMIT = 10.0
"""DeepSeek-V4's swiglu_limit. Values beside it, on both sides and of both signs, are in every case."""

_EDGES = (9.9375, 10.0, 10.0625, -9.9375, -10.0, -10.0625, 50.0, -50.0, 0.0, -0.0)
GPU = ("fake-cuda", "cuda")


def _gate_or_up(case: Case, draw: Draw, spread: float) -> torch.Tensor:
    values = draw.tensor(case["m"], case["i"]) * spread
    if not draw.fake and values.numel():
        count = min(len(_EDGES), case["i"])
        values[0, :count] = torch.tensor(_EDGES[:count], dtype=values.dtype).to(values.device)
    return values


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """float64, by the definition: gate from above, up from both sides, both before the sigmoid."""
    g, u = gate.double().clamp(max=LIMIT), up.double().clamp(-LIMIT, LIMIT)
    return g / (1 + torch.exp(-g)) * u


def _reference(gate: torch.Tensor, up: torch.Tensor) -> Bounded:
    """A few fp32 operations (2^-20), then one rounding to the dtype of gate."""
    value = _swiglu(gate, up)
    rounding = torch.finfo(gate.dtype).eps / 2 if gate.dtype != torch.float32 else 0.0
    smallest = torch.finfo(gate.dtype).smallest_normal * torch.finfo(gate.dtype).eps
    return Bounded(value, (2.0**-20 + rounding) * value.abs() + smallest)


register(
    Suite(
        name="clamped_swiglu",
        doc="silu(min(gate, 10)) * clamp(up, -10, 10) in fp32, rounded once",
        inputs=lambda case, draw: {"gate": _gate_or_up(case, draw, 4.0), "up": _gate_or_up(case, draw, 1.0)},
        reference=_reference,
        implementations={"torch": Implementation(clamped_swiglu)},
        cases=grid(m=[0, 1, 17], i=96, dtype=["bf16", "fp16", "fp32"], regime=["normal", "heavy-tails", "signed-zeros"])
        + grid(m=8192, i=3072, worlds=GPU),
        contract=Contract(rows=("gate", "up"), strided=("gate", "up")),
        cost=lambda case: Cost(bytes=3 * case["m"] * case["i"] * case.itemsize),
        # inputs, output, and up to five fp32 temporaries
        memory=lambda case: case["m"] * case["i"] * (3 * case.itemsize + 20) + (1 << 14),
        sweep="m",
    )
)

GLOBAL_SCALE = 2.0**-9 * 1.25


def _quantised(x: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """What the codes and scales stand for. Bytes at a rounding boundary may go either way (see the reference)."""
    return dequantize_nvfp4(*swiglu_quantize_nvfp4(x, global_scale, LIMIT), global_scale, torch.float32)


def _quantised_inputs(case: Case, draw: Draw) -> Inputs:
    gate, up = _gate_or_up(case, draw, 4.0), _gate_or_up(case, draw, 1.0)
    return {"x": torch.cat((gate, up), 1), "global_scale": draw.full(GLOBAL_SCALE)}


def _quantised_reference(x: torch.Tensor, global_scale: torch.Tensor) -> Bounded:
    """SwiGLU in float64, quantised exactly; the bound is what an error of 2^-20 before rounding can turn over.

    The value is quantised as it is, a little larger and a little smaller; where all three agree, nothing but that
    result is right. Where they differ, the result may be any of them.
    """
    gate, up = x.chunk(2, 1)
    exact = _swiglu(gate, up)
    versions = []
    for factor in (1.0, 1 + 2.0**-20, 1 - 2.0**-20):
        codes, scales = oracle.quantize((exact * factor).float(), global_scale.reshape(()))
        versions.append(oracle.dequantize(codes, scales, global_scale.reshape(())))
    value, above, below = versions
    spread = torch.maximum((above - value).abs(), (below - value).abs())
    return Bounded(value, spread + 2.0**-22 * value.abs())


register(
    Suite(
        name="swiglu_quantize_nvfp4",
        doc="clamped SwiGLU of an L1 product, quantised to what L2 consumes (compared decoded)",
        inputs=_quantised_inputs,
        reference=_quantised_reference,
        implementations={"torch": Implementation(_quantised)},
        cases=grid(m=[0, 1, 17], i=96, dtype=["bf16", "fp32"], regime=["normal", "heavy-tails", "zero-block"])
        + grid(m=512, i=3072, worlds=GPU),
        contract=Contract(rows=("x",), strided=("x",)),
        cost=lambda case: Cost(bytes=case["m"] * case["i"] * (2 * case.itemsize + 1)),
        # the wrapper decodes to fp32: input, what the quantiser promises, and the decoded result with its workspace
        memory=lambda case: (
            case["m"] * case["i"] * (2 * case.itemsize + 24)
            + swiglu_quantize_peak_bytes(case["m"], case["i"])
            + (1 << 16)
        ),
        sweep="m",
    )
)
