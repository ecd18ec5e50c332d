"""The 128x4 swizzled scale layout, dense and per expert, against the byte-offset formula written out."""

from __future__ import annotations

import itertools

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.nvfp4 import swizzle_scales, swizzle_scales_grouped


def _offset(row: torch.Tensor, column: torch.Tensor, columns: int) -> torch.Tensor:
    """Byte offset of a scale in the swizzled buffer: atoms of 128 rows x 4 columns = 512 bytes, columns fastest."""
    atoms = (columns + 3) // 4
    return ((row // 128) * atoms + column // 4) * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4


def _scatter(scales: torch.Tensor, padded_row: torch.Tensor, total_rows: int) -> torch.Tensor:
    columns = scales.shape[1]
    wide = -(-columns // 4) * 4
    out = torch.zeros(total_rows * wide, dtype=torch.uint8, device=scales.device)
    column = torch.arange(columns, device=scales.device)
    where = _offset(padded_row.unsqueeze(1), column, columns)
    out[where.reshape(-1)] = scales.view(torch.uint8).reshape(-1)
    return out.view(total_rows, wide).view(scales.dtype)


def _reference(scales: torch.Tensor) -> torch.Tensor:
    rows = scales.shape[0]
    return _scatter(scales, torch.arange(rows, device=scales.device), -(-rows // 128) * 128)


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

_SPLITS = {
    "uniform": lambda m, e: [m * (i + 1) // e for i in range(e)],
    "all-to-one": lambda m, e: [0] * (e // 2) + [m] * (e - e // 2),
    "first-empty": lambda m, e: [0] + [m * (i + 1) // (e - 1) for i in range(e - 1)],
    "last-empty": lambda m, e: [m * (i + 1) // (e - 1) for i in range(e - 1)] + [m],
    "every-other-empty": lambda m, e: [m * (i // 2 + 1) // ((e + 1) // 2) for i in range(e)],
}


def _grouped(case: Case, draw: Draw) -> Inputs:
    ends = _SPLITS[str(case.routing)](case["m"], case["e"])
    offsets = torch.tensor([0, *ends], dtype=torch.int32)
    return {**_scales(case, draw), "expert_offsets": draw.put(offsets)}


def _reference_grouped(scales: torch.Tensor, expert_offsets: torch.Tensor) -> torch.Tensor:
    """Each expert's rows start at the next multiple of 128; the capacity is the bound for any split."""
    rows, experts = scales.shape[0], expert_offsets.shape[0] - 1
    held = min(rows, experts)
    capacity = ((rows - held) // 128 + held) * 128
    target, base = torch.zeros(rows, dtype=torch.int64), 0
    ends = expert_offsets.tolist()
    for start, end in itertools.pairwise(ends):
        target[start:end] = base + torch.arange(end - start)
        base += -(-(end - start) // 128) * 128
    return _scatter(scales, target.to(scales.device), capacity)


register(
    Suite(
        name="swizzle_scales_grouped",
        doc="the same for a grouped operand: each expert padded to 128 rows and swizzled by itself",
        inputs=_grouped,
        reference=_reference_grouped,
        implementations={"torch": Implementation(swizzle_scales_grouped)},
        cases=grid(m=[1, 130, 300], columns=[18, 36], e=5, dtype="e4m3", routing=list(_SPLITS))
        + grid(m=8192, columns=448, e=48, dtype="e4m3", routing="uniform", worlds=("fake-cuda", "cuda")),
        contract=Contract(strided=("scales",)),
        cost=cost,
        memory=lambda case: (
            2 * case["columns"] * (case["m"] + 128 * (case["e"] + 2)) + 34 * case["m"] * case["columns"] + (1 << 17)
        ),
        sweep="m",
    )
)
