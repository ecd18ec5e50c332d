"""``interleave_l1_weights`` and its inverse: every granularity and order, weights and scales together."""

from __future__ import annotations

import torch

from harness import Case, Contract, Draw, Implementation, Inputs, Suite, grid, register
from kernels.moe import deinterleave_l1_weights, interleave_l1_weights

GRANULARITIES = (1, 8, 16, 32, 64)
ORDERS = ("gate_up", "up_gate")


def _inputs(case: Case, draw: Draw) -> Inputs:
    """Random bytes everywhere: any row of weights or scales that lands elsewhere shows."""
    e, i, k = case["e"], case["i"], case["k"]
    return {
        "codes": draw.integers(0, 256, e, 2 * i, k // 2, dtype="u8"),
        "scales": draw.integers(0, 127, e, 2 * i, k // 16, dtype="u8").view(torch.float8_e4m3fn),
        "granularity": case["granularity"],
        "order": case["order"],
    }


def _source_rows(half: int, granularity: int, device: torch.device) -> torch.Tensor:
    """Row of the whole halves that stands in each interleaved row. Row r lies in block r // granularity; even blocks
    come from the half that came first, whichever it is (``order`` names the halves and moves nothing)."""
    row = torch.arange(2 * half, device=device)
    block, inside = row // granularity, row % granularity
    return (block % 2) * half + (block // 2) * granularity + inside


def _reference(codes: torch.Tensor, scales: torch.Tensor, granularity: int, order: str) -> tuple[torch.Tensor, ...]:
    rows = _source_rows(codes.shape[1] // 2, granularity, codes.device)
    return codes[:, rows], scales.view(torch.uint8)[:, rows].view(scales.dtype)


def _inverse(codes: torch.Tensor, scales: torch.Tensor, granularity: int, order: str) -> tuple[torch.Tensor, ...]:
    rows = _source_rows(codes.shape[1] // 2, granularity, codes.device)
    plain_codes, plain_scales = torch.empty_like(codes), torch.empty_like(scales)
    plain_codes[:, rows] = codes
    plain_scales.view(torch.uint8)[:, rows] = scales.view(torch.uint8)
    return plain_codes, plain_scales


CASES = grid(e=3, i=192, k=96, order=ORDERS, granularity=GRANULARITIES, dtype="e4m3") + grid(
    e=1, i=64, k=16, order="gate_up", granularity=8, dtype="e4m3"
)

for _name, _call, _oracle in (
    ("interleave_l1_weights", interleave_l1_weights, _reference),
    ("deinterleave_l1_weights", deinterleave_l1_weights, _inverse),
):
    register(
        Suite(
            name=_name,
            doc="rows of two halves in turns of the granularity, scale rows with their weight rows, and back",
            inputs=_inputs,
            reference=_oracle,
            outputs=("codes", "scales"),
            implementations={"torch": Implementation(_call)},
            cases=CASES,
            contract=Contract(rows=("codes", "scales"), strided=("codes", "scales")),
        )
    )
