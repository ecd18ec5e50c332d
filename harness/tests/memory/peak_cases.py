"""Operations whose peak memory was measured on a GPU: six the tracker must predict, and some it must mark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

TRUTH_FILE = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "peak-truth.json"

_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


@dataclass(frozen=True)
class PeakCase:
    """``make(device)`` gives the inputs of ``fn``. ``exact``: the prediction must equal the measurement; otherwise it
    is a lower bound and must say so.
    """

    name: str
    fn: Callable[..., Any]
    make: Callable[[str], tuple[torch.Tensor, ...]]
    exact: bool = True


def _scales(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    blocks = x.float().view(*x.shape[:-1], -1, 16)
    encode = (448.0 * 6.0) / x.abs().amax().float()
    scale = (blocks.abs().amax(-1) / 6 * encode).clamp(max=448.0).to(torch.float8_e4m3fn)
    return blocks, scale, encode


def _pack(code: torch.Tensor) -> torch.Tensor:
    return code[..., ::2] | (code[..., 1::2] << 4)


def quantise_by_distance(x, values, midpoints):
    """A (..., 16, 8) tensor of fp32 distances: 32 times the input, twice alive."""
    blocks, scale, encode = _scales(x)
    y = (blocks / (scale.float() / encode).unsqueeze(-1)).clamp(-6, 6)
    index = (y.abs().unsqueeze(-1) - values).abs().argmin(-1).to(torch.uint8)
    return _pack((index | ((y < 0).to(torch.uint8) << 3)).view(*x.shape)), scale


def quantise_by_bucket(x, values, midpoints):
    blocks, scale, encode = _scales(x)
    y = blocks.div_((scale.float() / encode).unsqueeze(-1))
    index = torch.bucketize(y.abs(), midpoints, out_int32=True).to(torch.uint8)
    return _pack((index | ((y < 0).to(torch.uint8) << 3)).view(*x.shape)), scale


def quantise_in_chunks(x, values, midpoints):
    """512 rows at a time: nothing but the outputs is as large as the input."""
    packed = torch.empty(x.shape[0], x.shape[1] // 2, device=x.device, dtype=torch.uint8)
    scales = torch.empty(x.shape[0], x.shape[1] // 16, device=x.device, dtype=torch.float8_e4m3fn)
    encode = (448.0 * 6.0) / x.abs().amax().float()
    for row in range(0, x.shape[0], 512):
        rows = slice(row, row + 512)
        b = x[rows].float().view(-1, x.shape[1] // 16, 16)
        s = (b.abs().amax(-1) / 6 * encode).clamp_(max=448.0).to(torch.float8_e4m3fn)
        scales[rows] = s
        b.div_((s.float() / encode).unsqueeze(-1))
        index = torch.bucketize(b.abs(), midpoints, out_int32=True)
        c = (index.to(torch.uint8) | ((b < 0).to(torch.uint8) << 3)).view(-1, x.shape[1])
        packed[rows] = _pack(c)
    return packed, scales


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.float()).mul(up.float()).to(gate_up.dtype)


def route(logits):
    weights, indices = torch.topk(logits.float().sigmoid(), 8, -1)
    return weights / weights.sum(-1, keepdim=True), indices


def gather_and_multiply(x, index, weight):
    return F.linear(x[index], weight)


def _bf16(device: str, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, device=device, dtype=torch.bfloat16).normal_()


def _quantiser_inputs(device: str) -> tuple[torch.Tensor, ...]:
    return _bf16(device, 8192, 7168), torch.tensor(_VALUES, device=device), torch.tensor(_MIDPOINTS, device=device)


def _gather_inputs(device: str) -> tuple[torch.Tensor, ...]:
    x, index = _bf16(device, 8192, 7168), torch.arange(65536, device=device) % 8192
    return x, index, _bf16(device, 2048, 7168)


_ALL = (
    PeakCase("quantise by distance 8192x7168", quantise_by_distance, _quantiser_inputs),
    PeakCase("quantise by bucketize 8192x7168", quantise_by_bucket, _quantiser_inputs),
    PeakCase("quantise in 512-row chunks 8192x7168", quantise_in_chunks, _quantiser_inputs),
    PeakCase("swiglu 8192x4096", swiglu, lambda device: (_bf16(device, 8192, 4096),)),
    PeakCase("route top-8 of 384, 8192", route, lambda device: (_bf16(device, 8192, 384),)),
    PeakCase("gather 65536 rows and linear", gather_and_multiply, _gather_inputs),
    PeakCase("full sum 8192x7168", lambda x: x.sum(), lambda device: (_bf16(device, 8192, 7168),)),
    PeakCase("full amax 8192x7168", lambda x: x.amax(), lambda device: (_bf16(device, 8192, 7168),)),
    PeakCase(
        "matmul 8192x7168x2048",
        torch.matmul,
        lambda device: (_bf16(device, 8192, 7168), _bf16(device, 7168, 2048)),
    ),
    PeakCase("sort 2048x7168", lambda x: torch.sort(x, -1), lambda device: (_bf16(device, 2048, 7168),), exact=False),
    PeakCase("cumsum 2048x7168", lambda x: x.cumsum(0), lambda device: (_bf16(device, 2048, 7168),), exact=False),
    PeakCase("nonzero 2048x7168", torch.nonzero, lambda device: (_bf16(device, 2048, 7168),), exact=False),
    PeakCase("unique 2048x1024", torch.unique, lambda device: (_bf16(device, 2048, 1024),), exact=False),
    PeakCase("column sums 65536x64", lambda x: x.sum(0), lambda device: (_bf16(device, 65536, 64),), exact=False),
)
CASES = {case.name: case for case in _ALL}


def load_truth() -> dict[str, Any]:
    """``{"cases": {name: {"allocated": bytes or None, ..}}}``; None: not measured yet."""
    truth: dict[str, Any] = json.loads(TRUTH_FILE.read_text())
    return truth
