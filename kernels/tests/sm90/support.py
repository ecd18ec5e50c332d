"""Operands, fp64 references and error bounds shared by the sm90 tests. Nothing here uses the kernels' own code."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch


def why_no_hopper() -> str | None:
    if not torch.cuda.is_available():
        return "needs a Hopper GPU: no CUDA device here"
    major, minor = torch.cuda.get_device_capability()
    return None if (major, minor) == (9, 0) else f"needs a Hopper GPU (sm_90), this one is sm_{major}{minor}"


gpu = [pytest.mark.gpu, pytest.mark.skipif(why_no_hopper() is not None, reason=str(why_no_hopper()))]


@functools.cache
def e2m1_values(device: str) -> torch.Tensor:
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    return torch.tensor(positive + [-v for v in positive], dtype=torch.float64, device=device)


def dense(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(..., K/2) packed codes and (..., K/16) E4M3 scales -> (..., K) float64, by the format's definition."""
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()
    return e2m1_values(str(codes.device))[nibbles] * scales.to(torch.float64).repeat_interleave(16, dim=-1)


@dataclass(frozen=True)
class Operand:
    """NVFP4 weights (E, N, K) with uniformly random codes: every nibble is a valid number."""

    codes: torch.Tensor
    scales: torch.Tensor
    alpha: torch.Tensor

    @classmethod
    def random(
        cls, experts: int, rows: int, k: int, seed: int, *, all_scales: bool = False, gain: float = 1.0
    ) -> Operand:
        """`all_scales`: uniform over every finite scale byte, 0 and subnormals included; else around 1."""
        g = torch.Generator("cuda").manual_seed(seed)
        codes = torch.randint(0, 256, (experts, rows, k // 2), dtype=torch.uint8, device="cuda", generator=g)
        low, high = (0, 127) if all_scales else (0x30, 0x40)
        scales = torch.randint(low, high, (experts, rows, k // 16), dtype=torch.uint8, device="cuda", generator=g)
        alpha = torch.rand(experts, device="cuda", generator=g) * 0.02 + 0.001
        return cls(codes, scales.view(torch.float8_e4m3fn), alpha * gain)

    def expert(self, e: int) -> torch.Tensor:
        return dense(self.codes[e], self.scales[e])


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts], device="cuda").cumsum(0).to(torch.int32)


def grouped_reference(x: torch.Tensor, w: Operand, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 result, and alpha * sum |x||w|, to which accumulation errors are proportional."""
    rows, n = sum(counts), w.codes.shape[1]
    ref = torch.zeros(rows, n, dtype=torch.float64, device="cuda")
    mass = torch.zeros_like(ref)
    at = 0
    for e, m in enumerate(counts):
        if m:
            weight, alpha = w.expert(e), w.alpha[e].double()
            part = x[at : at + m].double()
            ref[at : at + m] = part @ weight.T * alpha
            mass[at : at + m] = part.abs() @ weight.abs().T * alpha
        at += m
    return ref, mass


# A sum of K products in fp32, in any order: error <= K 2^-24 mass; random signs give about sqrt(K). Tensor cores
# truncate instead of rounding when they align addends, which costs a factor of a few (measured: docs/hopper-
# notes.md).
def accumulation_bound(mass: torch.Tensor, k: int) -> torch.Tensor:
    return mass * (2.0**-24 * 4 * k**0.5)


def assert_within(out: torch.Tensor, ref: torch.Tensor, bound: torch.Tensor) -> float:
    """|out - ref| <= bound + half a bf16 ulp (at most 2^-8 of the value); returns the worst ratio. NaN anywhere
    fails.
    """
    allowed = bound + (ref.abs() + bound) * 2.0**-8 * 1.001 + 1e-37
    ratio = ((out.double() - ref).abs() / allowed).nan_to_num(nan=float("inf"))
    worst = float(ratio.max()) if ratio.numel() else 0.0
    if worst > 1:
        flat = int(ratio.argmax())
        row, column = divmod(flat, out.shape[1])
        bad = int((ratio > 1).sum())
        raise AssertionError(
            f"{bad} of {ratio.numel()} elements out of bounds; worst at ({row}, {column}): got "
            f"{float(out[row, column])}, expected {float(ref[row, column])} within {float(allowed[row, column])}"
        )
    return worst


def swiglu_reference(ref: torch.Tensor, bound: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Clamped SwiGLU of (rows, 2 I), columns [gate | up], and the bound carried through it."""
    half = ref.shape[1] // 2
    gate, up = ref[:, :half].clamp(max=limit), ref[:, half:].clamp(-limit, limit)
    silu = torch.nn.functional.silu(gate)
    # |silu'| < 1.1
    spread = 1.1 * bound[:, :half] * (up.abs() + bound[:, half:]) + silu.abs() * bound[:, half:]
    return silu * up, spread + (silu * up).abs() * 2.0**-20
