"""The buffers that a forward pass of an expert layer works in, allocated once for the largest batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MoEWorkspace:
    """Buffers for at most `max_tokens` tokens. Two calls that may run at the same time need one each."""

    max_tokens: int
    top_k: int

    x_codes: torch.Tensor
    """uint8 (T, H/2): the quantised tokens."""

    x_scales: torch.Tensor
    """float8_e4m3fn (T, H/16), linear."""

    row_codes: torch.Tensor
    """uint8 (T * top_k, H/2): the tokens of each row in expert order."""

    l1_rows: torch.Tensor | None
    """bf16 (T * top_k, 2*I): the gate/up product; None if SwiGLU is fused into it."""

    mid_codes: torch.Tensor
    """uint8 (T * top_k, I/2): the quantised result of SwiGLU."""

    mid_scales: torch.Tensor
    """float8_e4m3fn (T * top_k, I/16), linear."""

    l2_rows: torch.Tensor
    """bf16 (T * top_k, H): the down product."""

    @staticmethod
    def allocate(
        max_tokens: int,
        top_k: int,
        hidden: int,
        intermediate: int,
        *,
        fused: bool,
        device: torch.device | str,
    ) -> MoEWorkspace:
        rows = max_tokens * top_k

        def empty(height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((height, width), dtype=dtype, device=device)

        return MoEWorkspace(
            max_tokens,
            top_k,
            empty(max_tokens, hidden // 2, torch.uint8),
            empty(max_tokens, hidden // 16, torch.float8_e4m3fn),
            empty(rows, hidden // 2, torch.uint8),
            None if fused else empty(rows, 2 * intermediate, torch.bfloat16),
            empty(rows, intermediate // 2, torch.uint8),
            empty(rows, intermediate // 16, torch.float8_e4m3fn),
            empty(rows, hidden, torch.bfloat16),
        )

    def tensors(self) -> list[torch.Tensor]:
        """All buffers in the order of the fields; six if the layer is fused, else seven."""
        first, last = [self.x_codes, self.x_scales, self.row_codes], [self.mid_codes, self.mid_scales, self.l2_rows]
        return first + ([] if self.l1_rows is None else [self.l1_rows]) + last

    @staticmethod
    def from_tensors(max_tokens: int, top_k: int, tensors: list[torch.Tensor]) -> MoEWorkspace:
        """The inverse of `tensors`."""
        x_codes, x_scales, row_codes, *l1_rows, mid_codes, mid_scales, l2_rows = tensors
        return MoEWorkspace(
            max_tokens, top_k, x_codes, x_scales, row_codes, l1_rows[0] if l1_rows else None, mid_codes, mid_scales,
            l2_rows,
        )  # fmt: skip

    def of(self, tokens: int, top_k: int, fused: bool) -> MoEWorkspace:
        """The leading part for a batch of `tokens` tokens; views, nothing is allocated."""
        if tokens > self.max_tokens or top_k != self.top_k:
            raise ValueError(
                f"workspace: expected at most {self.max_tokens} tokens of {self.top_k} experts each, got {tokens} of "
                f"{top_k}; allocate it for the largest batch"
            )
        if not fused and self.l1_rows is None:
            raise ValueError("workspace: allocated for the fused layer, which has no L1 product; allocate another")
        rows = tokens * top_k
        return MoEWorkspace(
            tokens,
            top_k,
            self.x_codes.narrow(0, 0, tokens),
            self.x_scales.narrow(0, 0, tokens),
            self.row_codes.narrow(0, 0, rows),
            None if self.l1_rows is None else self.l1_rows.narrow(0, 0, rows),
            self.mid_codes.narrow(0, 0, rows),
            self.mid_scales.narrow(0, 0, rows),
            self.l2_rows.narrow(0, 0, rows),
        )


def workspace_bytes(max_tokens: int, top_k: int, hidden: int, intermediate: int, *, fused: bool) -> int:
    """Bytes of `MoEWorkspace.allocate`."""
    rows = max_tokens * top_k
    quantised = 9 * hidden // 16 * max_tokens + 9 * intermediate // 16 * rows
    return quantised + rows * hidden // 2 + (0 if fused else rows * 4 * intermediate) + rows * 2 * hidden
