"""The mixture of experts in double precision, from the mathematics: for tests and gates, on small sizes.

Shares no code with the implementations. Operands are decoded from their bytes by the definition of the formats, in
linear layout; sums over K run in fp64, so the only rounding left is that of fp64 itself.
"""

from __future__ import annotations

import torch

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp64 (..., K) of codes uint8 (..., K/2), low nibble first, and linear scales (..., K/16), bytes or E4M3."""
    magnitude = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=torch.float64, device=codes.device)
    nibbles = torch.stack((codes % 16, codes // 16), dim=-1).reshape(*codes.shape[:-1], -1)
    block = decode_e4m3(scales.view(torch.uint8)).repeat_interleave(16, dim=-1)
    return magnitude[nibbles.long()] * block


def decode_e4m3(raw: torch.Tensor) -> torch.Tensor:
    """fp64 value of E4M3 bytes: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7F and 0xFF are NaN."""
    bits = raw.long()
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).double()
    normal = (1 + mantissa / 8) * torch.pow(2.0, (exponent - 7).double())
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    value = torch.where((bits & 127) == 127, torch.nan, value)
    return torch.where(bits >= 128, -value, value)


def grouped_gemm(a: torch.Tensor, b: torch.Tensor, expert_offsets: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """fp64 (M, N): alpha[e] * a[m] @ b[e].T for the expert of row m, 0 without one.

    a (M, K) and b (E, N, K) decoded; alpha (E,) or (E, 2) for the two halves of N. Reads the offsets on the host.
    """
    result = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.float64, device=a.device)
    offsets = expert_offsets.tolist()
    for e in range(b.shape[0]):
        scale = alpha[e].double().reshape(-1).repeat_interleave(b.shape[1] // alpha[e].numel())
        mine = slice(offsets[e], offsets[e + 1])
        result[mine] = (a[mine].double() @ b[e].double().T) * scale
    return result


def accumulation_bound(
    a: torch.Tensor, b: torch.Tensor, expert_offsets: torch.Tensor, alpha: torch.Tensor, unit: float = 2.0**-24
) -> torch.Tensor:
    """How far an fp32 sum may be from `grouped_gemm`: gamma_K * |a| @ |b|.T * |alpha|, element by element.

    gamma_K = K u / (1 - K u), the worst case of any order of summation (Higham, Accuracy and Stability, section 3.1),
    with one more rounding for alpha.
    """
    k = a.shape[1] + 1
    return grouped_gemm(a.abs(), b.abs(), expert_offsets, alpha.abs()) * (k * unit / (1 - k * unit))


def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """fp64 silu(min(gate, L)) * clamp(up, -L, L)."""
    gate, up = gate.double(), up.double()
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / (1 + torch.exp(-gate)) * up


def mixture(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    limit: float | None,
    experts_start_idx: int = 0,
) -> torch.Tensor:
    """fp64 (T, H): the whole layer without any quantisation of activations, one route at a time.

    x (T, H); gate, up (E, I, H) and down (E, H, I), decoded and scaled; topk_ids (T, top_k) global, ids of other
    ranks and -1 skipped.
    """
    result = torch.zeros((x.shape[0], down.shape[1]), dtype=torch.float64, device=x.device)
    for t, ids in enumerate(topk_ids.tolist()):
        for j, expert in enumerate(ids):
            local = expert - experts_start_idx
            if not 0 <= local < gate.shape[0]:
                continue
            row = x[t].double()
            hidden = clamped_swiglu(gate[local].double() @ row, up[local].double() @ row, limit)
            result[t] += topk_weights[t, j].double() * (down[local].double() @ hidden)
    return result
