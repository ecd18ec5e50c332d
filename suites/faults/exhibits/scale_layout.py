"""Block scales in the swizzled layout of tensor cores: mixed up, padded with rubbish, or not padded at all."""

from __future__ import annotations

import torch

from harness import Case, Contract, Draw, Inputs, grid, register
from kernels.nvfp4 import swizzle_scales
from suites.faults.rooms import ALL, Room

WRAP = torch.float8_e4m3fn


def _inputs(case: Case, draw: Draw) -> Inputs:
    return {"scales": draw.integers(1, 127, case["m"], case["columns"], dtype="u8").view(WRAP)}


def _reference(scales: torch.Tensor) -> torch.Tensor:
    """Byte by byte, from the formula of the layout."""
    rows, columns = scales.shape
    tall, wide = -(-rows // 128) * 128, -(-columns // 4) * 4
    out = torch.zeros(tall * wide, dtype=torch.uint8)
    given = scales.cpu().view(torch.uint8)
    for row in range(rows):
        for column in range(columns):
            atom = (row // 128) * (wide // 4) + column // 4
            out[atom * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4] = given[row, column]
    return out.view(tall, wide).view(WRAP).to(scales.device)


ROOM = Room(
    "museum_scale_layout",
    doc="row-major block scales to the 128x4 layout; padding is zero",
    inputs=_inputs,
    reference=_reference,
    cases=grid(m=[33, 1, 20, 129], columns=[6, 4], dtype="e4m3"),
    contract=Contract(),
)


@ROOM.awkward("the right layout", worlds=ALL)
def layout_plain(scales: torch.Tensor) -> torch.Tensor:
    return swizzle_scales(scales)


@ROOM.fault("K06", gate="correctness", mirrors="vllm#50084, #55976", severity="critical")
def layout_linear(scales: torch.Tensor) -> torch.Tensor:
    """Scales are only padded: the reader expects them swizzled."""
    rows, columns = scales.shape
    out = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8, device=scales.device)
    out[:rows, :columns] = scales.view(torch.uint8)
    return out.view(WRAP)


@ROOM.fault("K06", gate="coverage", mirrors="vllm#42988, #31097", severity="critical", luck=True)
def layout_padding_uninitialised(scales: torch.Tensor) -> torch.Tensor:
    """The padded buffer is allocated and not cleared: padding rows hold what was there before."""
    rows, columns = scales.shape
    padded = torch.empty(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales.view(torch.uint8)
    return swizzle_scales(padded.view(WRAP))


@ROOM.fault("K06", gate="coverage", mirrors="vllm#48898", severity="critical", luck=True)
def layout_column_padding_uninitialised(scales: torch.Tensor) -> torch.Tensor:
    """Only rows are cleared; the columns that pad K/16 to a multiple of 4 are not."""
    rows, columns = scales.shape
    padded = torch.empty(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8, device=scales.device)
    padded[:, :columns] = 0
    padded[:rows, :columns] = scales.view(torch.uint8)
    return swizzle_scales(padded.view(WRAP))


@ROOM.fault("K06", gate="correctness", mirrors="TensorRT-LLM#10148", severity="high")
def layout_pads_columns_by_rows(scales: torch.Tensor) -> torch.Tensor:
    """The padding of the columns is computed from the number of rows (a copied line)."""
    columns = scales.shape[1] + scales.shape[0] % 4
    wide = torch.zeros(scales.shape[0], columns, dtype=torch.uint8, device=scales.device)
    wide[:, : scales.shape[1]] = scales.view(torch.uint8)
    return swizzle_scales(wide.view(WRAP))


@ROOM.fault("K06", gate="correctness", mirrors="flashinfer layouts for M <= 32", severity="high")
def layout_depends_on_rows(scales: torch.Tensor) -> torch.Tensor:
    """Up to 32 rows take another layout (8x4), which this reader does not know."""
    out = swizzle_scales(scales)
    if scales.shape[0] > 32:
        return out
    swapped = out.view(torch.uint8).reshape(-1, 32, 4, 4).transpose(1, 2).contiguous()
    return swapped.reshape(out.shape).view(WRAP)


@ROOM.fault("K06", gate="correctness", mirrors="vllm#55456", severity="critical")
def layout_rows_not_padded(scales: torch.Tensor) -> torch.Tensor:
    """The buffer has a row for each token and not for each row of a tile of 128."""
    return swizzle_scales(scales).view(torch.uint8)[: scales.shape[0]].contiguous().view(WRAP)


@ROOM.fault("K06", gate="correctness", mirrors="public commit log", severity="critical")
def layout_atoms_transposed(scales: torch.Tensor) -> torch.Tensor:
    """Inside an atom, row groups and columns are exchanged: a bijection, and the wrong one."""
    out = swizzle_scales(scales)
    swapped = out.view(torch.uint8).reshape(-1, 32, 4, 4).transpose(2, 3).contiguous()
    return swapped.reshape(out.shape).view(WRAP)


@ROOM.fault("K06", gate="correctness", mirrors="vllm#31097", severity="medium")
def layout_padding_is_one(scales: torch.Tensor) -> torch.Tensor:
    """Padding holds the scale 1.0 where the contract says 0."""
    rows, columns = scales.shape
    padded = torch.full((-(-rows // 128) * 128, -(-columns // 4) * 4), 0x38, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales.view(torch.uint8)
    return swizzle_scales(padded.view(WRAP))


register(ROOM.suite())
