"""E2M1, the 4-bit float of NVFP4: codes <-> values, nibbles <-> bytes.

A code is one sign bit (bit 3) and a magnitude 0..7 that stands for 0, 0.5, 1, 1.5, 2, 3, 4, 6: steps of 1/2 up to
2, of 1 up to 4, of 2 up to 6. Both directions are envelopes of three straight lines, so neither needs a table (a
table made inside a call is a host-to-device copy, which breaks a CUDA-graph capture), a search, or a wider integer:

    value(m) = max(m / 2,      m - 2,       2 m - 8)            upper envelope, exact
    code(a)  = min(rne(2 a),   rne(a) + 2,  rne(a / 2) + 4)     lower envelope of three staircases

`rne` is round-half-to-even on the integers. Each staircase rounds with the step of one regime; where a regime is not
the right one its staircase lies on or above the right one, so `min` picks the single correct rounding: no value is
rounded twice. Ties go to the even code in every regime: .25 -> 0, .75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4,
5 -> 4. Doubling and halving are exact in fp32 (halving a subnormal is not, but that rounds to 0 either way).
Format: OCP Microscaling Formats (MX) v1.0, section 5.3.3; PTX `cvt.rn.satfinite.e2m1x2.f32` has the same semantics.
"""

from __future__ import annotations

import torch

E2M1_MAX = 6.0


def round_to_e2m1_magnitude_(a: torch.Tensor) -> torch.Tensor:
    """Magnitude codes 0..7 of non-negative fp32 `a`, as fp32 integers in a new tensor; `a` is clobbered.

    Saturates at 6; +inf gives 7, NaN gives 7 (as the PTX conversion does). Needs two fp32 temporaries of a's size.
    """
    a.nan_to_num_(nan=E2M1_MAX, posinf=E2M1_MAX).clamp_(max=E2M1_MAX)
    code = (a * 2.0).round_()
    step = a.round().add_(2.0)
    torch.minimum(code, step, out=code)
    torch.mul(a, 0.5, out=step)
    step.round_().add_(4.0)
    return torch.minimum(code, step, out=code)


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Codes (uint8, 0..15, one an element) nearest to `x` (any float dtype), ties to the even code.

    Saturates at +-6; the sign bit is kept, so -0.0 gives 0x8; NaN gives 0x7 whatever its sign.
    """
    a = x.to(torch.float32, copy=True)
    negative = torch.signbit(a).logical_and_(~torch.isnan(a))
    code = round_to_e2m1_magnitude_(a.abs_()).to(torch.uint8)
    return code.add_(negative.view(torch.uint8), alpha=8)


def decode_e2m1(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of `codes` (uint8, low nibble used, one code an element) in `dtype`; exact in bf16, fp16 and fp32."""
    line = codes.bitwise_and(7).to(dtype)  # m
    value = line * 0.5
    torch.maximum(value, line.sub_(2.0), out=value)
    torch.maximum(value, line.sub_(2.0).mul_(2.0), out=value)
    del line
    # 1 or -1 rather than a branch; 0 * -1 is -0.0, as code 0x8 asks.
    return value.mul_(codes.bitwise_and(8).to(dtype).mul_(-0.25).add_(1.0))


def pack_e2m1(codes: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """(..., K) codes -> (..., K/2) bytes: low nibble the even index along K, high nibble the odd one."""
    # lo + 16 * hi is lo | hi << 4 for nibbles, in one kernel and without a temporary for the shift.
    return torch.add(codes[..., 0::2], codes[..., 1::2], alpha=16, out=out)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """(..., K/2) bytes -> (..., K) codes 0..15; inverse of `pack_e2m1`."""
    codes = torch.empty((*packed.shape[:-1], 2 * packed.shape[-1]), dtype=torch.uint8, device=packed.device)
    torch.bitwise_and(packed, 15, out=codes[..., 0::2])
    torch.bitwise_right_shift(packed, 4, out=codes[..., 1::2])
    return codes
