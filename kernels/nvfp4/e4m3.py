"""E4M3 (finite, no infinities), the 8-bit float of NVFP4 block scales: 4 exponent bits, 3 mantissa bits, bias 7.

Largest 448 (0x7E), NaN 0x7F, smallest normal 2^-6, smallest subnormal 2^-9 (0x01). Block scales are never negative;
the matrix hardware reads them as UE4M3 and ignores the sign bit, so it is always written 0 here.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E4M3_TINY = 2.0**-9
E4M3_NAN_BYTE = 0x7F


def to_scale_e4m3(s: torch.Tensor, *, minimum: float = 0.0) -> torch.Tensor:
    """fp32 `s` -> float8_e4m3fn: nearest even, clamped to [minimum, 448]; NaN -> 0x7F. A new tensor.

    The clamp is explicit because torch's own cast gave NaN above 464 until it was made saturating (2.13), and the
    sign bit is cleared because 0/0 is a negative NaN on x86 and a positive one on a GPU: the byte must not tell.
    Rounding s to E4M3 gives 0 if and only if s <= 2^-10 (a tie, to even); (2^-10, 2^-9) rounds up to 2^-9.
    """
    scale = s.clamp(min=minimum, max=E4M3_MAX).to(torch.float8_e4m3fn)
    scale.view(torch.uint8).bitwise_and_(0x7F)
    return scale
