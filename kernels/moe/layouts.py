"""Row order of the stacked gate/up weights of an expert (L1), in the conventions of the libraries that read them.

L1 is one matrix of 2*I rows, half of them gate (w1), half up (w3). Libraries disagree on which half comes first and
on how finely the halves alternate, and nothing in a tensor tells the conventions apart: the wrong one runs and gives
plausible garbage. So every conversion goes through one canonical order, [gate | up], and moves codes and block
scales together. A scale row belongs to its weight row; scales left behind are the same bug as weights swapped.

Sources: vLLM `flashinfer_utils`, FlashInfer `fused_moe` and `cute_dsl`, TensorRT-LLM `trtllmGenSrc`, DeepGEMM
`mega_moe`, as read in 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe.arguments import require_codes_and_scales

ORDERS = ("gate_up", "up_gate")
GRANULARITIES = (1, 8, 16, 32, 64)
SHUFFLE_ROWS = 32  # rows that the 128-row epilogue tile of trtllm-gen permutes among themselves


@dataclass(frozen=True)
class L1Layout:
    """How the rows of an L1 matrix are ordered."""

    order: str = "gate_up"
    """Which half comes first: "gate_up" or "up_gate"."""

    granularity: int | None = None
    """Rows of one half before the other takes over; None: whole halves."""

    shuffled: bool = False
    """Rows are permuted inside groups of 32, as trtllm-gen's epilogue reads them: new = (old % 4) * 8 + old // 4."""

    k_first: bool = False
    """Presented as (E, K/2, N), a transposed view of memory that stays K-major. Materialising that view would
    scramble every kernel that reads K-major, so conversions only ever return the view."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order: expected one of {ORDERS}, got {self.order!r}")
        if self.granularity is not None and self.granularity not in GRANULARITIES:
            raise ValueError(f"granularity: expected None or one of {GRANULARITIES}, got {self.granularity}")

    def row_multiple(self) -> int:
        """What the intermediate size I must be a multiple of."""
        multiple = self.granularity or 1
        return max(multiple, SHUFFLE_ROWS // 2) if self.shuffled else multiple


CANONICAL = L1Layout()
CONVENTIONS: dict[str, L1Layout] = {
    "vllm_cutlass": CANONICAL,
    "flashinfer_cutlass": L1Layout("up_gate"),
    "flashinfer_cutedsl": L1Layout("up_gate", 64),
    "flashinfer_cutedsl_mega": L1Layout("gate_up", 16),
    "trtllm_gen": L1Layout("up_gate", 1, shuffled=True),
    "deepgemm": L1Layout("gate_up", 8),
    "gpt_oss": L1Layout("gate_up", 1),
    "nvfp4_megamoe": L1Layout("gate_up", 8, k_first=True),
}


def resolve_layout(layout: L1Layout | str) -> L1Layout:
    """A layout, or the layout of a named convention."""
    if isinstance(layout, L1Layout):
        return layout
    if layout not in CONVENTIONS:
        raise ValueError(f"layout: expected an L1Layout or one of {sorted(CONVENTIONS)}, got {layout!r}")
    return CONVENTIONS[layout]


def interleave_l1_weights(
    codes: torch.Tensor, scales: torch.Tensor, granularity: int = 8, order: str = "gate_up"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole halves to alternating blocks of `granularity` rows, beginning with the half that came first.

    codes uint8 (..., 2*I, K/2) and scales, one byte each, (..., 2*I, K/16) in linear layout (swizzle afterwards).
    `order` names the halves of input and result alike; it does not move anything. I must be a multiple of
    `granularity` (pad each half first: `pad_l1_weights`). Returns contiguous tensors.
    """
    layout = L1Layout(order, granularity)
    return convert_l1_weights(codes, scales, L1Layout(order), layout)


def deinterleave_l1_weights(
    codes: torch.Tensor, scales: torch.Tensor, granularity: int = 8, order: str = "gate_up"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `interleave_l1_weights`, exactly."""
    return convert_l1_weights(codes, scales, L1Layout(order, granularity), L1Layout(order))


def convert_l1_weights(
    codes: torch.Tensor, scales: torch.Tensor, source: L1Layout | str, target: L1Layout | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reorder codes and scales from one convention to another; exact, and `target` to `source` undoes it.

    Shapes as in `interleave_l1_weights`; (..., K/2, 2*I) and (..., K/16, 2*I) for a `k_first` layout. Global scales
    of the halves, if they differ, stay with gate and up and do not move. If there is nothing to move the result is
    the input itself.
    """
    source, target = resolve_layout(source), resolve_layout(target)
    if source.k_first:
        codes, scales = codes.transpose(-1, -2), scales.transpose(-1, -2)
    rows = require_codes_and_scales(codes, scales)
    for layout in (source, target):
        if rows % 2 or (rows // 2) % layout.row_multiple():
            raise ValueError(
                f"codes: expected 2*I rows with I a multiple of {layout.row_multiple()} for {layout}, got {rows} "
                "rows; pad each half by itself with pad_l1_weights"
            )
    codes, scales = (_from_canonical(_to_canonical(part, source), target) for part in (codes, scales))
    if target.k_first:
        return codes.transpose(-1, -2), scales.transpose(-1, -2)
    return codes, scales


def l1_row_order(layout: L1Layout | str, intermediate: int) -> torch.Tensor:
    """int64 (2*I,): canonical row ([gate | up]) that each stored row holds."""
    rows = torch.arange(2 * intermediate).unsqueeze(1)
    return _from_canonical(rows, resolve_layout(layout)).squeeze(1)


def pad_l1_weights(codes: torch.Tensor, scales: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad EACH half of whole-halves weights with zero rows to a multiple of `multiple`.

    Padding the end of the stack instead would shift the middle, and gate rows would meet up rows. The zero rows have
    code 0 and scale 0, so they add zero columns to the product; L2 needs the same columns (`pad_l2_weights`).
    """
    rows = require_codes_and_scales(codes, scales)
    if rows % 2 or multiple < 1:
        raise ValueError(f"codes: expected an even number of rows and a multiple >= 1, got {rows} and {multiple}")
    half = rows // 2
    extra = -half % multiple

    def padded(x: torch.Tensor) -> torch.Tensor:
        raw = x.view(torch.uint8)
        result = raw.new_zeros((*raw.shape[:-2], 2, half + extra, raw.shape[-1]))
        result.narrow(-2, 0, half).copy_(raw.reshape(*raw.shape[:-2], 2, half, raw.shape[-1]))
        return result.reshape(*raw.shape[:-2], 2 * (half + extra), raw.shape[-1]).view(x.dtype)

    return padded(codes), padded(scales)


def pad_l2_weights(codes: torch.Tensor, scales: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad K (the intermediate size) of down weights (..., H, I/2) with zero columns to a multiple of `multiple`."""
    require_codes_and_scales(codes, scales)
    if multiple % 16:
        raise ValueError(f"multiple: expected a multiple of 16, the scale block, got {multiple}")
    extra = -(codes.shape[-1] * 2) % multiple
    pad = torch.nn.functional.pad
    return pad(codes, (0, extra // 2)), pad(scales.view(torch.uint8), (0, extra // 16)).view(scales.dtype)


def _swap(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-2)
    return torch.cat((second, first), dim=-2)


def _from_canonical(x: torch.Tensor, layout: L1Layout) -> torch.Tensor:
    """[gate | up] rows (..., 2*I, C) to the layout's order, contiguous. No index tensor, so nothing to copy over."""
    *stack, rows, columns = x.shape
    raw = x.view(torch.uint8) if x.element_size() == 1 else x
    if layout.order == "up_gate":
        raw = _swap(raw)
    if layout.granularity is not None:
        g = layout.granularity
        raw = raw.reshape(*stack, 2, rows // (2 * g), g, columns).transpose(-4, -3)
        raw = raw.reshape(*stack, rows, columns)
    if layout.shuffled:
        raw = raw.reshape(*stack, rows // SHUFFLE_ROWS, 8, 4, columns).transpose(-3, -2)
        raw = raw.reshape(*stack, rows, columns)
    return raw.contiguous().view(x.dtype)


def _to_canonical(x: torch.Tensor, layout: L1Layout) -> torch.Tensor:
    """The inverse of `_from_canonical`."""
    *stack, rows, columns = x.shape
    raw = x.view(torch.uint8) if x.element_size() == 1 else x
    if layout.shuffled:
        raw = raw.reshape(*stack, rows // SHUFFLE_ROWS, 4, 8, columns).transpose(-3, -2)
        raw = raw.reshape(*stack, rows, columns)
    if layout.granularity is not None:
        g = layout.granularity
        raw = raw.reshape(*stack, rows // (2 * g), 2, g, columns).transpose(-4, -3)
        raw = raw.reshape(*stack, rows, columns)
    if layout.order == "up_gate":
        raw = _swap(raw)
    return raw.view(x.dtype)
