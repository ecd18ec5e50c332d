"""NVFP4 quantisers in plain torch, the same bits on CPU and CUDA: no table, no sync, no copy from the host, no lock.

The format: x is approximated by value(code) * block_scale * global_scale, with 4-bit E2M1 codes, one E4M3 scale for
each 16 elements along K, and one fp32 global scale for the tensor, which MULTIPLIES on dequantisation. The steps and
the rounding of each (every operation is one IEEE fp32 operation, to nearest even, subnormals kept):

    1. amax          largest |x| of the tensor                                    exact
    2. global_scale  max(amax / 2688, 2^-126)                                     2688 = 6 * 448; one division
    3. s             amax_block / (6 * global_scale)                              one product, then one division
    4. scale         E4M3 of min(s, 448)                                          nearest even; NaN -> 0x7F
    5. d             float(scale) * global_scale                                  one product
    6. q             x / d                                                        one division
    7. code          E2M1 of q, sign kept                                         nearest even, saturates at 6

A block is zero if and only if its scale byte is 0 (s <= 2^-10); then all its codes are 0. The floor in step 2 makes
the global scale a normal number even for an all-zero tensor, so that its reciprocal is finite and d is never 0 where
the scale byte is not. A NaN in a block, or a NaN global scale: scale byte 0x7F, codes 7. +-inf under a finite global
scale saturates (+-6 * 448 * global_scale); `quantize_to_nvfp4` of a tensor that holds inf has global_scale = inf and
decodes to NaN everywhere: loud, not quiet.

`compat="modelopt"` gives the bytes of ModelOpt 0.47 (`NVFP4QTensor.quantize`) on a CPU: no floor in step 2; a
block with s = 0 gets scale 1.0, any other s at least 2^-9; the sign is (q < 0), so -0.0 gives 0x0 but a negative
that rounds to zero 0x8. Where ModelOpt itself writes NaN for finite input (all-zero tensor: global scale 0, then
0/0) the floor applies. Steps 1 to 7 are ModelOpt's order of operations, which is why ordinary data gives equal
bytes without `compat`.
"""

from __future__ import annotations

import torch

from kernels.nvfp4.arguments import (
    BLOCK,
    require_choice,
    require_global_scale,
    require_operand,
    require_output,
)
from kernels.nvfp4.chunks import chunk_elements, chunks, piece
from kernels.nvfp4.e2m1 import E2M1_MAX, pack_e2m1, round_to_e2m1_magnitude_
from kernels.nvfp4.e4m3 import E4M3_MAX, E4M3_TINY, to_scale_e4m3
from kernels.nvfp4.layout import SCALE_LAYOUTS, padded_columns, padded_rows, swizzle_scales

COMPAT = (None, "modelopt")
GLOBAL_SCALE_FLOOR = 2.0**-126  # smallest normal fp32; its reciprocal is finite
NORMALISER = E2M1_MAX * E4M3_MAX

# Live bytes for each element of a chunk at the peak: three fp32 (quotient and two staircases), the sign, and the
# block values (amax, s, scale, float scale, d: at most 20 bytes for 16 elements).
_WORK_BYTES = 3 * 4 + 1 + 2
_SMALL_BYTES = 64 * 1024  # scalars, and what a full reduction keeps inside its kernel


def compute_global_scale(x: torch.Tensor, *, compat: str | None = None) -> torch.Tensor:
    """Steps 1 and 2: fp32 0-d tensor on x's device, for x of any shape and strides; an empty x has amax 0."""
    require_choice(compat, COMPAT, "compat")
    amax = _amax(x)
    # A divisor that is a Python number becomes a multiplication by its rounded reciprocal on CUDA, one ulp off for
    # some amax. A 0-d tensor on the device is divided by; `full` is a fill kernel, not a copy.
    scale = amax.div_(torch.full((), NORMALISER, dtype=torch.float32, device=x.device))
    return _floored(scale, compat)


def _amax(x: torch.Tensor) -> torch.Tensor:
    """Largest magnitude, fp32 0-d, NaN if there is one; without a temporary of x's size, for any strides."""
    # The order of dimensions does not matter here; a transposed or permuted tensor is contiguous in some order.
    x = x.permute(sorted(range(x.dim()), key=lambda d: -x.stride()[d]))
    amax = torch.zeros((), dtype=torch.float32, device=x.device)
    # x.abs() would be a copy. aminmax is none, but it makes one inside of a strided tensor (measured): cut that up.
    for at in [None] if x.is_contiguous() else chunks(tuple(x.shape), chunk_elements(x.numel())):
        if x.numel():
            low, high = torch.aminmax(x if at is None else piece(x, *at))
            amax = torch.maximum(amax, torch.maximum(high.float(), low.float().neg_()))
    return amax


def _floored(scale: torch.Tensor, compat: str | None) -> torch.Tensor:
    """In place: at least 2^-126; in compat only 0 is replaced. NaN stays NaN; 0 (a dead expert) becomes harmless."""
    if compat == "modelopt":
        return scale.masked_fill_(scale == 0, GLOBAL_SCALE_FLOOR)
    return scale.clamp_(min=GLOBAL_SCALE_FLOOR)


def _quantize_chunk(
    x: torch.Tensor, global_scale: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, compat: str | None
) -> None:
    """Steps 3 to 7 of one piece: x (..., K), any strides, into codes uint8 (..., K/2) and scales e4m3 (..., K/16)."""
    q = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format).view(*scales.shape, BLOCK)
    s = q.abs().amax(-1).div_(global_scale * E2M1_MAX)
    if compat == "modelopt":
        scale = to_scale_e4m3(s.masked_fill_(s == 0, 1.0), minimum=E4M3_TINY)
    else:
        scale = to_scale_e4m3(s)
    scales.copy_(scale)
    value = scale.float()
    d = value * global_scale
    if compat == "modelopt":
        q.div_(d.unsqueeze(-1))
        negative = q < 0
    else:
        # x / inf is 0: the codes of a block whose scale byte is 0. Neither it nor a block that holds a NaN has signs.
        d.masked_fill_(value == 0, torch.inf)
        q.div_(d.unsqueeze(-1))
        negative = torch.signbit(q).logical_and_((value > 0).unsqueeze(-1))
    code = round_to_e2m1_magnitude_(q.abs_()).to(torch.uint8)
    del q
    code.add_(negative.view(torch.uint8), alpha=8)
    pack_e2m1(code.view(x.shape), out=codes)


@torch.no_grad()
def _quantize_into(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    compat: str | None,
    operand_elements: int | None = None,
) -> None:
    """Quantise x (..., K) into contiguous codes (..., K/2) and scales (..., K/16), piece by piece.

    operand_elements: of the whole operand, where x is one expert of it; its size bounds the pieces.
    """
    limit = chunk_elements(x.numel() if operand_elements is None else operand_elements)
    if x.dim() == 1:
        x, codes, scales = x.unsqueeze(0), codes.unsqueeze(0), scales.unsqueeze(0)
    global_scale = _floored(global_scale.clone(), compat)
    for at in chunks(tuple(x.shape), limit):
        _quantize_chunk(piece(x, *at), global_scale, piece(codes, *at), piece(scales, *at), compat)


def _empty_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    *rows, k = x.shape
    codes = torch.empty((*rows, k // 2), dtype=torch.uint8, device=x.device)
    return codes, torch.empty((*rows, k // BLOCK), dtype=torch.float8_e4m3fn, device=x.device)


def _lay_out(scales: torch.Tensor, scale_layout: str) -> torch.Tensor:
    return scales if scale_layout == "linear" else swizzle_scales(scales)


def quantize_to_nvfp4(
    x: torch.Tensor, *, compat: str | None = None, scale_layout: str = "linear"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise x with the global scale of its own largest magnitude.

    x: (..., K) bf16, fp16 or fp32, K a multiple of 16, any strides, CPU or CUDA; M = 0 is fine.
    Returns codes uint8 (..., K/2), low nibble = even index along K; scales float8_e4m3fn (..., K/16), or the padded
    128x4 swizzle (`scale_layout="swizzled"`, needs at least 2 dimensions); global_scale fp32 0-d. All contiguous.
    Raises TypeError or ValueError on a wrong dtype, shape or option; never reads a value on the host.
    Rounding, zero blocks, NaN and inf: see the module's docstring.
    """
    require_operand(x)
    require_choice(compat, COMPAT, "compat")
    require_choice(scale_layout, SCALE_LAYOUTS, "scale_layout")
    if torch.compiler.is_compiling():
        codes, raw, global_scale = torch.ops.kh_nvfp4.quantize(x, compat)
        return codes, _lay_out(raw.view(torch.float8_e4m3fn), scale_layout), global_scale
    global_scale = compute_global_scale(x.detach(), compat=compat)
    codes, scales = _empty_outputs(x)
    _quantize_into(x, global_scale, codes, scales, compat)
    return codes, _lay_out(scales, scale_layout), global_scale


def quantize_activation_nvfp4(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    compat: str | None = None,
    scale_layout: str = "linear",
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x (..., K) with a given global scale: the hot path, safe to capture in a CUDA graph.

    global_scale: one fp32 element on x's device, the number that MULTIPLIES on dequantisation (calibrated amax /
    2688). Libraries that pass 2688 / amax pass another number: see `convert.global_scale_from_encode_scale`.
    Values beyond 6 * 448 * global_scale saturate. A global scale below 2^-126, 0 included, counts as 2^-126; NaN
    gives NaN scales.
    out: contiguous (codes uint8 (..., K/2), scales float8_e4m3fn (..., K/16)) to write instead of new tensors; with
    `scale_layout="linear"` only. Returns (codes, scales) as `quantize_to_nvfp4` does; `out` itself if given.
    """
    require_operand(x)
    global_scale = require_global_scale(global_scale, x)
    require_choice(compat, COMPAT, "compat")
    require_choice(scale_layout, SCALE_LAYOUTS, "scale_layout")
    if out is not None:
        if scale_layout != "linear":
            raise ValueError('out: expected scale_layout="linear"; swizzle the scales with layout.swizzle_scales')
        *rows, k = x.shape
        require_output(out[0], (*rows, k // 2), torch.uint8, x.device, "out[0] (codes)")
        require_output(out[1], (*rows, k // BLOCK), torch.float8_e4m3fn, x.device, "out[1] (scales)")
    if torch.compiler.is_compiling():
        if out is not None:
            torch.ops.kh_nvfp4.quantize_out(x, global_scale, compat, out[0], out[1].view(torch.uint8))
            return out
        codes, raw = torch.ops.kh_nvfp4.quantize_with(x, global_scale, compat)
        return codes, _lay_out(raw.view(torch.float8_e4m3fn), scale_layout)
    codes, scales = _empty_outputs(x) if out is None else out
    _quantize_into(x, global_scale, codes, scales, compat)
    return codes, _lay_out(scales, scale_layout)


def quantize_peak_bytes(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
    *,
    scale_layout: str = "linear",
) -> int:
    """Upper bound in bytes of what is live at the peak of a quantiser called on a (..., K) operand: input, outputs
    and workspace. The workspace is that of one chunk (`chunks.chunk_elements`); the allocator's rounding is not
    counted.
    """
    *rows, k = shape
    elements = k
    for n in rows:
        elements *= n
    per_row_chunk = min(elements, max(chunk_elements(elements), k))
    scale_bytes = elements // BLOCK
    total = elements * dtype.itemsize + elements // 2 + scale_bytes
    workspace = per_row_chunk * _WORK_BYTES
    if scale_layout == "swizzled":
        stack = elements // (rows[-1] * k) if elements else 0
        swizzled = stack * padded_rows(rows[-1]) * padded_columns(k // BLOCK) if rows else 0
        # The swizzled copy and the padded one it is made from, after the chunks' workspace is gone.
        workspace = max(workspace, 2 * swizzled)
    return total + workspace + _SMALL_BYTES
