"""The 128x4 swizzled scale layout, dense and per expert, against the byte-offset formula written out."""

from __future__ import annotations

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.nvfp4 import swizzle_scales, swizzle_scales_grouped
from suites.nvfp4.scale_layout import SPLITS, grouped_rows, scatter_scales


def _reference(scales: torch.Tensor) -> torch.Tensor:
    rows = scales.shape[0]
    return scatter_scales(scales, torch.arange(rows, device=scales.device), -(-rows // 128) * 128)


def _scales(case: Case, draw: Draw) -> Inputs:
    """Distinct bytes wherever 256 values allow it, so that two swapped scales show."""
    return {"scales": draw.integers(0, 127, case["m"], case["columns"], dtype="u8").view(torch.float8_e4m3fn)}


def cost(case: Case) -> Cost:
    padded = -(-case["m"] // 128) * 128 * (-(-case["columns"] // 4) * 4)
    return Cost(bytes=case["m"] * case["columns"] + padded)


CASES = grid(m=[0, 1, 31, 32, 33, 127, 128, 129, 257], columns=[1, 18, 36], dtype="e4m3") + grid(
    m=[128, 8192], columns=448, dtype="e4m3", worlds=("fake-cuda", "cuda")
)

register(
    Suite(
        name="swizzle_scales",
        doc="row-major block scales to the 128x4 layout of tensor-core scale loads; padding is zero",
        inputs=_scales,
        reference=_reference,
        implementations={"torch": Implementation(swizzle_scales)},
        cases=CASES,
        contract=Contract(strided=("scales",)),
        cost=cost,
        memory=lambda case: 3 * (-(-case["m"] // 128) * 128) * (-(-case["columns"] // 4) * 4) + (1 << 16),
        sweep="m",
    )
)


def _grouped(case: Case, draw: Draw) -> Inputs:
    ends = SPLITS[str(case.routing)](case["m"], case["e"])
    offsets = torch.tensor([0, *ends], dtype=torch.int32)
    return {**_scales(case, draw), "expert_offsets": draw.put(offsets)}


def _reference_grouped(scales: torch.Tensor, expert_offsets: torch.Tensor) -> torch.Tensor:
    return scatter_scales(scales, *grouped_rows(scales.shape[0], expert_offsets))


register(
    Suite(
        name="swizzle_scales_grouped",
        doc="the same for a grouped operand: each expert padded to 128 rows and swizzled by itself",
        inputs=_grouped,
        reference=_reference_grouped,
        implementations={"torch": Implementation(swizzle_scales_grouped)},
        cases=grid(m=[1, 130, 300], columns=[18, 36], e=5, dtype="e4m3", routing=list(SPLITS))
        + grid(m=8192, columns=448, e=48, dtype="e4m3", routing="uniform", worlds=("fake-cuda", "cuda")),
        contract=Contract(strided=("scales",)),
        cost=cost,
        memory=lambda case: (
            2 * case["columns"] * (case["m"] + 128 * (case["e"] + 2)) + 34 * case["m"] * case["columns"] + (1 << 17)
        ),
        sweep="m",
    )
)
