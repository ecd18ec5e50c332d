"""NVFP4 weights in the byte order the Hopper GEMM reads: shuffled once, when a layer is finalised. Same size, exact.

A slab is 64 rows by 128 K of one expert: 4096 bytes of codes and 512 of scales, contiguous. It is one bulk copy and
four wgmma warps by eight m64k16 steps.

Codes: word w[h][thread][i] (little-endian, thread 0..127) holds the eight codes which that thread feeds to step
k16 = 4 h + i: pair p = 2 * (k half) + (row half) is (row, k), (row, k + 1) with
    row = 16 (thread // 32) + 8 (p % 2) + thread % 32 // 4        k = 16 k16 + 8 (p // 2) + 2 (thread % 4)
(for "plain" weights the 16 rows of a warp are permuted first, so that the epilogue stores 8 contiguous bytes). In
each 16-bit half of the word (low half: k, high half: k + 1) lie, from bit 15 down, s = sign and m = the three
magnitude bits:
    s0  s1  m3 m3 m3  s3  s2  m0 m0 m0  m1 m1 m1  m2 m2 m2
so that pairs 0 and 2 become bf16x2 with at most one shift and one mask, pairs 1 and 3 with two of each.

Scales: E4M3 re-encoded without loss as 5 exponent and 3 mantissa bits (`_SCALE_BIAS`), so that subnormal scales
need no special case on the device: bits << 4 | 0x7000 is the bf16 of scale * 2^119. A zero scale has no code there:
its 16 codes are set to zero instead, which is the same matrix. 16 bytes a row pair (row, row + 8), four words, word
i:
    bits 11..4: scale(row, step 2i), bits 27..20: scale(row + 8, step 2i), and step 2i + 1 the same rotated left by 8.
code * 2^-126 times scale * 2^119 is value * 2^-7; the epilogue multiplies by 2^7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SLAB_ROWS, K_BLOCK, SLAB_BYTES = 64, 128, 4608
_SCALE_BIAS = 22  # exponent field of 1.0: 2^8 (of 448) gets 30 and 2^-9, the smallest E4M3, gets 13
_SIGN_BITS = (15, 14, 9, 10)
_MAGNITUDE_BITS = (6, 3, 0, 11)
KINDS = ("plain", "swiglu")


@dataclass(frozen=True)
class ShuffledWeights:
    """Weights of `experts` groups, (rows, k) each, ready for the GEMM."""

    data: torch.Tensor
    """uint8, flat: (experts, slabs, k_blocks, SLAB_BYTES)."""
    experts: int
    rows: int
    k: int
    kind: str
    """"plain", or "swiglu": gate and up rows alternate in groups of 8 and the GEMM's result has rows / 2 columns."""

    @property
    def slabs(self) -> int:
        return -(-self.rows // SLAB_ROWS)

    @property
    def k_blocks(self) -> int:
        return -(-self.k // K_BLOCK)

    @property
    def width(self) -> int:
        """Columns of the GEMM's result."""
        return self.rows // 2 if self.kind == "swiglu" else self.rows


def encode_scales(scales: torch.Tensor) -> torch.Tensor:
    """E4M3 bytes (uint8 or float8_e4m3fn, finite, not negative) -> the 8-bit code above, as int32; 0 stays 0."""
    byte = scales.view(torch.uint8).to(torch.int32)
    if bool(((byte & 0x7F) == 0x7F).any()):
        raise ValueError("scales: NaN block scale (byte 0x7F or 0xFF)")
    byte = byte & 0x7F  # tensor cores read UE4M3: the sign bit does not count
    exponent, mantissa = byte >> 3, byte & 7
    normal = ((exponent - 7 + _SCALE_BIAS) << 3) | mantissa
    # Subnormal m * 2^-9, m = 1..7: normalise by the position of the leading bit (0, 1 or 2).
    lead = (mantissa >= 2).to(torch.int32) + (mantissa >= 4).to(torch.int32)
    subnormal = ((lead - 9 + _SCALE_BIAS) << 3) | ((mantissa << (3 - lead)) & 7)
    code = torch.where(exponent > 0, normal, subnormal)
    return torch.where(byte == 0, torch.zeros_like(code), code)


def _pad(t: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    if t.shape[-2:] == (rows, columns):
        return t
    padded = torch.zeros((t.shape[0], rows, columns), dtype=t.dtype, device=t.device)
    padded[:, : t.shape[1], : t.shape[2]] = t
    return padded


def _row_order(kind: str, device: torch.device) -> torch.Tensor:
    """Which of 16 rows goes to row r of the MMA; see `GroupedGemm.store`."""
    r = torch.arange(16, device=device)
    if kind == "swiglu":
        return r
    return 4 * (r % 8 // 2) + r % 2 + 2 * (r // 8)


def _shuffle_codes(packed: torch.Tensor, zero: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """(E, R, K/2) packed codes, (E, R, K/16) mask of zero scales -> (E, slabs, k_blocks, 4096) bytes."""
    e, r, k2 = packed.shape
    keep = (~zero).to(torch.uint8).mul_(0xFF).repeat_interleave(8, dim=-1)
    p = (packed & keep).view(e, r // 64, 4, 16, k2 // 64, 2, 4, 2, 4)[:, :, :, order]
    # (E, slab, warp, row half, row, k block, half, step, k half, quad); one byte is (k, k + 1)
    p = p.view(e, r // 64, 4, 2, 8, k2 // 64, 2, 4, 2, 4)
    p = p.permute(0, 1, 5, 6, 2, 4, 9, 7, 8, 3).to(torch.int32)  # ..., half, warp, row, quad, step, k half, row half
    word = torch.zeros(p.shape[:-2], dtype=torch.int32, device=packed.device)
    for pair in range(4):
        byte = p[..., pair // 2, pair % 2]
        for nibble, base in ((byte & 0xF, 0), (byte >> 4, 16)):
            word |= (nibble & 7) << (_MAGNITUDE_BITS[pair] + base)
            word |= (nibble >> 3) << (_SIGN_BITS[pair] + base)
    return word.contiguous().view(torch.uint8).view(e, r // 64, k2 // 64, 4096)


def _shuffle_scales(code: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """(E, R, K/16) scale codes -> (E, slabs, k_blocks, 512) bytes."""
    e, r, k16 = code.shape
    c = code.view(e, r // 64, 4, 16, k16 // 8, 4, 2)[:, :, :, order]
    c = c.view(e, r // 64, 4, 2, 8, k16 // 8, 4, 2)  # E, slab, warp, row half, row, k block, word, odd
    c = c.permute(0, 1, 5, 2, 4, 6, 7, 3)  # E, slab, k block, warp, row, word, odd, row half
    pair = (c[..., 0] << 4) | (c[..., 1] << 20)  # (..., word, odd)
    odd = pair[..., 1]
    rotated = (odd << 8) | ((odd >> 24) & 0xFF)
    word = pair[..., 0] | rotated
    return word.contiguous().view(torch.uint8).view(e, r // 64, k16 // 8, 512)


def interleave_rows(gate_up: torch.Tensor) -> torch.Tensor:
    """(E, 2 I, ...) with all gates before all ups -> groups of 8 gate rows and 8 up rows, alternating."""
    e, rows = gate_up.shape[:2]
    rest = gate_up.shape[2:]
    return gate_up.reshape(e, 2, rows // 16, 8, *rest).transpose(1, 2).reshape(e, rows, *rest)


def shuffle_weights(packed: torch.Tensor, scales: torch.Tensor, *, kind: str = "plain") -> ShuffledWeights:
    """Shuffle (E, N, K/2) packed codes and (E, N, K/16) E4M3 scales, row-major; a 2-D pair counts as E = 1.

    N and K are multiples of 16; both are padded with zeros to whole slabs, which changes no result. `kind="swiglu"`
    expects rows interleaved as `interleave_rows` makes them. Works expert by expert: peak extra memory is about 16
    times one expert's packed bytes.
    """
    if packed.dim() == 2:
        packed, scales = packed.unsqueeze(0), scales.unsqueeze(0)
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {KINDS}, got {kind!r}")
    e, rows, k = packed.shape[0], packed.shape[1], packed.shape[2] * 2
    if packed.dtype != torch.uint8 and packed.element_size() == 1:
        packed = packed.view(torch.uint8)
    if packed.dim() != 3 or packed.dtype != torch.uint8 or tuple(scales.shape) != (e, rows, k // 16) or k % 16:
        raise ValueError(
            f"expected (E, N, K/2) uint8 codes and (E, N, K/16) scales, got {tuple(packed.shape)} {packed.dtype} and "
            f"{tuple(scales.shape)}"
        )
    if rows % 16:
        raise ValueError(f"N: expected a multiple of 16, got {rows}")
    shuffled = ShuffledWeights(
        torch.empty(0, dtype=torch.uint8, device=packed.device), experts=e, rows=rows, k=k, kind=kind
    )
    tall, wide = shuffled.slabs * SLAB_ROWS, shuffled.k_blocks * K_BLOCK
    data = torch.empty((e, shuffled.slabs, shuffled.k_blocks, SLAB_BYTES), dtype=torch.uint8, device=packed.device)
    order = _row_order(kind, packed.device)
    for i in range(e):
        code = _pad(encode_scales(scales[i : i + 1].contiguous()), tall, wide // 16)
        bytes_ = _pad(packed[i : i + 1], tall, wide // 2)
        data[i, :, :, :4096] = _shuffle_codes(bytes_, code == 0, order)[0]
        data[i, :, :, 4096:] = _shuffle_scales(code, order)[0]
    return ShuffledWeights(data.view(-1), experts=e, rows=rows, k=k, kind=kind)
