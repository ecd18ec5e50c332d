"""Where block scales lie: row-major ("linear") or in the 128x4 swizzle that tensor-core scale loads read.

The swizzle cuts the (rows, K/16) scale matrix into atoms of 128 rows x 4 columns = 512 bytes. Byte offset of row m,
column k of a matrix with C columns:

    ((m // 128) * ceil(C / 4) + k // 4) * 512  +  (m % 32) * 16  +  ((m // 32) % 4) * 4  +  k % 4

Rows are padded to a multiple of 128 and columns to a multiple of 4; padding bytes are zero, never left over memory
(0x7F there would be NaN). In a grouped operand EACH expert's rows are padded to 128 and swizzled on their own.
Source: CUTLASS `Sm1xxBlockScaledConfig` (SfAtom), as read by vLLM and FlashInfer.
"""

from __future__ import annotations

import torch

from kernels.nvfp4.arguments import BLOCK

ATOM_ROWS, ATOM_COLUMNS, ATOM_BYTES = 128, 4, 512
SCALE_LAYOUTS = ("linear", "swizzled")


def padded_rows(rows: int) -> int:
    """Rows of the swizzled scale buffer: the next multiple of 128."""
    return -(-rows // ATOM_ROWS) * ATOM_ROWS


def padded_columns(columns: int) -> int:
    """Scale columns (K/16) of the swizzled scale buffer: the next multiple of 4."""
    return -(-columns // ATOM_COLUMNS) * ATOM_COLUMNS


def swizzled_bytes(rows: int, k: int) -> int:
    """Bytes of the swizzled scales of one (rows, k) operand; k counts elements, not bytes."""
    return padded_rows(rows) * padded_columns(k // BLOCK)


def grouped_padded_rows(rows: int, experts: int) -> int:
    """Upper bound of the padded rows of `rows` rows spread in any way over `experts` groups.

    Worst case: as many groups as possible hold one row each, and all the rest lies in one of them.
    """
    nonempty = min(rows, experts)
    return ((rows - nonempty) // ATOM_ROWS + nonempty) * ATOM_ROWS


def swizzle_scales(scales: torch.Tensor) -> torch.Tensor:
    """(..., rows, C) scales, any 1-byte dtype and any strides -> (..., padded rows, padded C) of the same dtype.

    Each matrix of a stack is padded and swizzled on its own. The result is contiguous; its last two dimensions are a
    shape for the bytes of one matrix, not coordinates. Peak: twice the result.
    """
    if scales.dim() < 2 or scales.element_size() != 1:
        raise ValueError(
            f"scales: expected (..., rows, K/16) of 1-byte scales, got {tuple(scales.shape)} {scales.dtype}"
        )
    if torch.compiler.is_compiling():
        # One opaque node: traced, the padding below would tie the graph to M <= 128, and 129 tokens would recompile.
        return torch.ops.kh_nvfp4.swizzle(scales.view(torch.uint8)).view(scales.dtype)
    return _swizzle(scales)


def _swizzle(scales: torch.Tensor) -> torch.Tensor:
    *stack, rows, columns = scales.shape
    tall, wide = padded_rows(rows), padded_columns(columns)
    source = scales.view(torch.uint8) if scales.dtype != torch.uint8 else scales
    if (rows, columns) != (tall, wide):
        padded = torch.zeros((*stack, tall, wide), dtype=torch.uint8, device=scales.device)
        padded.narrow(-2, 0, rows).narrow(-1, 0, columns).copy_(source)
        source = padded
    atoms = source.reshape(*stack, tall // ATOM_ROWS, 4, 32, wide // ATOM_COLUMNS, 4)
    swizzled = (
        atoms.movedim(-2, -4).transpose(-3, -2).contiguous()
    )  # (tile row, tile column, m % 32, m // 32 % 4, k % 4)
    return swizzled.view(*stack, tall, wide).view(scales.dtype)


def unswizzle_scales(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Inverse of `swizzle_scales`: (..., padded rows, padded C) -> (..., rows, C), contiguous. Padding is dropped."""
    tall, wide = padded_rows(rows), padded_columns(columns)
    if swizzled.dim() < 2 or tuple(swizzled.shape[-2:]) != (tall, wide):
        raise ValueError(
            f"swizzled: expected (..., {tall}, {wide}) for {rows} rows and {columns} scale columns, got "
            f"{tuple(swizzled.shape)}"
        )
    if torch.compiler.is_compiling():
        return torch.ops.kh_nvfp4.unswizzle(swizzled.view(torch.uint8), rows, columns).view(swizzled.dtype)
    return _unswizzle(swizzled, rows, columns)


def _unswizzle(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    tall, wide = padded_rows(rows), padded_columns(columns)
    stack = swizzled.shape[:-2]
    source = swizzled.contiguous().view(torch.uint8)
    atoms = source.view(*stack, tall // ATOM_ROWS, wide // ATOM_COLUMNS, 32, 4, 4)
    linear = atoms.transpose(-3, -2).movedim(-4, -2).reshape(*stack, tall, wide)
    return linear.narrow(-2, 0, rows).narrow(-1, 0, columns).contiguous().view(swizzled.dtype)


def _grouped_destination(rows: int, columns: int, expert_offsets: torch.Tensor, capacity: int) -> torch.Tensor:
    """Byte offset of each scale in the grouped buffer, int64 (rows, columns); rows of no expert go past its end."""
    device = expert_offsets.device
    starts = expert_offsets[:-1].long()
    sizes = expert_offsets[1:].long() - starts
    padded = (sizes + (ATOM_ROWS - 1)).div(ATOM_ROWS, rounding_mode="floor").mul(ATOM_ROWS)
    base = padded.cumsum(0) - padded  # first padded row of each expert
    row = torch.arange(rows, device=device)
    # right=True: a row that equals an expert's start belongs to that expert and not to the one before.
    expert = torch.searchsorted(expert_offsets[1:].long().contiguous(), row, right=True)
    owner = expert.clamp(max=starts.shape[0] - 1)
    m = row + (base - starts).index_select(0, owner)
    orphan = (expert >= starts.shape[0]) | (row < expert_offsets[0])
    # Orphans, and whatever a too small capacity leaves out, land in the tile row appended behind the result.
    m = m.masked_fill(orphan, capacity).clamp(max=capacity)
    k = torch.arange(columns, device=device)
    atom = m.div(ATOM_ROWS, rounding_mode="floor") * (padded_columns(columns) // ATOM_COLUMNS)
    in_atom = (m % 32) * 16 + (m.div(32, rounding_mode="floor") % 4) * 4
    column = k.div(ATOM_COLUMNS, rounding_mode="floor") * ATOM_BYTES + k % ATOM_COLUMNS
    return (atom * ATOM_BYTES + in_atom).unsqueeze(1) + column


def swizzle_scales_grouped(
    scales: torch.Tensor, expert_offsets: torch.Tensor, *, capacity: int | None = None
) -> torch.Tensor:
    """Swizzle the scales of a grouped operand: each expert's rows padded to 128 and swizzled separately.

    scales (rows, C), 1-byte; expert_offsets integer (E + 1,) on the same device, ascending, expert e owns rows
    [offsets[e], offsets[e + 1]). Returns (capacity, padded C); expert e starts at the padded row
    sum(padded_rows(size)) of those before it. `capacity` defaults to the bound `grouped_padded_rows`, which needs no
    value from the device, so the call can be captured. Rows outside every expert are not written; all other bytes
    are 0.
    """
    if scales.dim() != 2 or scales.element_size() != 1:
        raise ValueError(f"scales: expected (rows, K/16) of 1-byte scales, got {tuple(scales.shape)} {scales.dtype}")
    if (
        expert_offsets.dim() != 1
        or expert_offsets.shape[0] < 2
        or expert_offsets.dtype not in (torch.int32, torch.int64)
    ):
        raise ValueError(
            f"expert_offsets: expected int32 or int64 (E + 1,) starting at 0, got {tuple(expert_offsets.shape)} "
            f"{expert_offsets.dtype}"
        )
    rows, columns = scales.shape
    if capacity is None:
        capacity = grouped_padded_rows(rows, expert_offsets.shape[0] - 1)
    elif capacity % ATOM_ROWS:
        raise ValueError(f"capacity: expected a multiple of {ATOM_ROWS} rows, got {capacity}")
    wide = padded_columns(columns)
    buffer = torch.zeros(((capacity + ATOM_ROWS) * wide,), dtype=torch.uint8, device=scales.device)
    if rows and columns:
        destination = _grouped_destination(rows, columns, expert_offsets, capacity)
        buffer.scatter_(0, destination.reshape(-1), scales.view(torch.uint8).reshape(-1))
    return buffer.narrow(0, 0, capacity * wide).view(capacity, wide).view(scales.dtype)


def unswizzle_scales_grouped(
    swizzled: torch.Tensor, expert_offsets: torch.Tensor, rows: int, columns: int
) -> torch.Tensor:
    """Inverse of `swizzle_scales_grouped`: (capacity, padded C) -> (rows, C); rows outside every expert read 0."""
    capacity = swizzled.shape[0]
    flat = swizzled.contiguous().view(torch.uint8).reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, ATOM_ROWS * padded_columns(columns)))
    if not rows or not columns:
        return torch.empty((rows, columns), dtype=swizzled.dtype, device=swizzled.device)
    source = _grouped_destination(rows, columns, expert_offsets, capacity)
    return flat.gather(0, source.reshape(-1)).view(rows, columns).view(swizzled.dtype)
