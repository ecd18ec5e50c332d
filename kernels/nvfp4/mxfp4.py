"""MXFP4 to NVFP4 without loss: E8M0 scales of 32-blocks are powers of two, and so is every E4M3 scale needed."""

from __future__ import annotations

import torch

from kernels.nvfp4.convert import Nvfp4Tensor

MX_BLOCK = 32
_E8M0_BIAS, _E8M0_NAN = 127, 255
_LARGEST, _SMALLEST = 8, -9  # exponents of the largest and smallest power of two that E4M3 holds


def largest_exponent(codes: torch.Tensor, e8m0: torch.Tensor) -> int | None:
    """Largest block exponent k (scale 2^k) among the blocks that are not zero; None if all are. For w1 and w3 of an
    expert, which must share a global scale, pass the larger of the two to both casts."""
    k = e8m0.to(torch.int16) - _E8M0_BIAS
    alive = _alive(codes, e8m0)
    return int(k[alive].max()) if bool(alive.any()) else None


def _alive(codes: torch.Tensor, e8m0: torch.Tensor) -> torch.Tensor:
    """Blocks with a code that is not +-0."""
    return (codes & 0x77).view(*e8m0.shape, MX_BLOCK // 2).ne(0).any(-1)


def cast_mxfp4_to_nvfp4(codes: torch.Tensor, e8m0: torch.Tensor, *, kmax: int | None = None) -> Nvfp4Tensor:
    """codes uint8 (N, K/2), e8m0 uint8 (N, K/32) -> the same numbers in NVFP4, or ValueError if there are none.

    Closed form: with kmax the largest block exponent, global_scale = 2^(kmax - 8), scale of a block with exponent k =
    2^(k - kmax + 8), and the nibbles stay as they are; each 32-block gives two equal 16-blocks. E4M3 holds the
    powers of two from 2^-9 to 2^8, so the cast is exact if and only if kmax - k <= 17 for every block that is not
    zero; otherwise it is refused, since dequantising and quantising again moves values (6 % on average). Zero
    blocks get scale 0 and keep their nibbles. `kmax` overrides the tensor's own (it must not be smaller). Offline:
    reads values.
    """
    if codes.dtype != torch.uint8 or e8m0.dtype != torch.uint8:
        raise TypeError(f"expected uint8 codes and uint8 E8M0 scales, got {codes.dtype} and {e8m0.dtype}")
    if tuple(e8m0.shape) != (*codes.shape[:-1], codes.shape[-1] * 2 // MX_BLOCK) or codes.shape[-1] * 2 % MX_BLOCK:
        raise ValueError(f"expected one E8M0 scale for 32 codes, got {tuple(codes.shape)} and {tuple(e8m0.shape)}")
    if bool((e8m0 == _E8M0_NAN).any()):
        raise ValueError(f"E8M0 scales: {int((e8m0 == _E8M0_NAN).sum())} are NaN (0xFF); the source is damaged")
    own = largest_exponent(codes, e8m0)
    top = own if kmax is None else kmax
    if own is not None and top is not None and top < own:
        raise ValueError(f"kmax: expected at least the tensor's own {own}, got {kmax}")
    # A global scale below 2^-126 would be subnormal, and its reciprocal could overflow.
    exponent = max((0 if top is None else top) - _LARGEST, -126)
    alive = _alive(codes, e8m0)
    relative = e8m0.to(torch.int16) - _E8M0_BIAS - exponent
    outside = alive & (relative < _SMALLEST)
    if bool(outside.any()):
        lowest = int(relative[outside].min()) + exponent
        raise ValueError(
            f"MXFP4 to NVFP4 is not exact here: {int(outside.sum())} of {outside.numel()} blocks lie more than 2^17 "
            f"below the largest (kmax {top}, smallest block exponent {lowest}); keep "
            f"this tensor in MXFP4, or dequantise and quantise it with loss"
        )
    # E4M3 bits of 2^r: exponent field r + 7, or for r < -6 one mantissa bit of a subnormal.
    normal = (relative + 7).mul(8)
    subnormal = torch.bitwise_left_shift(torch.ones_like(relative), (relative - _SMALLEST).clamp(0, 2))
    byte = torch.where(relative >= -6, normal, subnormal).masked_fill(~alive, 0).to(torch.uint8)
    scales = byte.repeat_interleave(2, dim=-1).view(torch.float8_e4m3fn)
    global_scale = torch.full((), 2.0**exponent, dtype=torch.float32, device=codes.device)
    return Nvfp4Tensor(codes, scales, global_scale)


def dequantize_mxfp4(codes: torch.Tensor, e8m0: torch.Tensor) -> torch.Tensor:
    """float64 (N, K), exact: value(code) * 2^(byte - 127)."""
    from kernels.nvfp4.e2m1 import decode_e2m1, unpack_e2m1

    value = decode_e2m1(unpack_e2m1(codes), torch.float32).double()
    return torch.ldexp(value, (e8m0.to(torch.int32) - _E8M0_BIAS).repeat_interleave(MX_BLOCK, dim=-1))
