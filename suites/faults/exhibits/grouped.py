"""Grouped products: empty experts, tiles that straddle experts, rows that belong to nobody."""

from __future__ import annotations

import torch

from harness import Contract, grid, register
from suites.faults.operations import SPLITS, grouped, grouped_inputs, grouped_reference
from suites.faults.rooms import ALL, Room, State, remembers

ROOM = Room(
    "museum_grouped_matmul",
    doc="rows of each expert times its matrix; rows of no expert are zero",
    inputs=grouped_inputs,
    reference=grouped_reference,
    cases=grid(m=67, k=24, n=20, e=5, dtype="bf16", routing=list(SPLITS))
    + grid(m=[1, 3], k=24, n=20, e=5, dtype="bf16", routing=["uniform", "last-empty"])
    + grid(m=67, k=24, n=20, e=6, dtype="bf16", routing="uniform"),
    contract=Contract(),
)
TILE = 16


def _loop(x: torch.Tensor, w: torch.Tensor, bounds: list[int], out: torch.Tensor) -> torch.Tensor:
    """Each expert's rows times its matrix, written to ``out``."""
    if x.dtype != w.dtype or not x.is_floating_point():
        raise TypeError("x and w must be floating-point and of one dtype")
    for expert in range(w.shape[0]):
        rows = slice(bounds[expert], bounds[expert + 1])
        out[rows] = x[rows].contiguous().float() @ w[expert].contiguous().float()
    return out


def _zeros(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[0], w.shape[2], device=x.device)


@ROOM.awkward("the plain right implementation: all experts times all rows, no host read")
def grouped_plain(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return grouped(x, w, offsets)


@ROOM.awkward("reads the offsets on the host, and says that it cannot be captured", capturable=False)
def grouped_host_offsets(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return _loop(x, w, offsets.tolist(), _zeros(x, w))


@ROOM.fault("K02", gate="coverage", mirrors="pytorch#172439, grouped_gemm#36", severity="critical", luck=True)
def grouped_unrouted_rows_unwritten(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows that belong to no expert are left as they were allocated."""
    return _loop(x, w, offsets.tolist(), torch.empty(x.shape[0], w.shape[2], device=x.device))


@ROOM.fault("K02", gate="correctness", mirrors="DeepGEMM#450", severity="critical")
def grouped_empty_expert_shifts(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Empty experts are squeezed out of the list of groups, and the weights of later ones shift by one."""
    _require(x, w)
    ends = offsets.tolist()
    groups = [(ends[i], ends[i + 1]) for i in range(w.shape[0]) if ends[i + 1] > ends[i]]
    out = _zeros(x, w)
    for index, (start, end) in enumerate(groups):
        out[start:end] = x[start:end].float() @ w[index].float()
    return out


@ROOM.fault("K01", gate="correctness", mirrors="DeepGEMM#450", severity="critical")
def grouped_tile_of_first_row(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The expert is chosen per tile of 16 rows, from its first row."""
    _require(x, w)
    ends = offsets.tolist()
    out = _zeros(x, w)
    for start in range(0, ends[-1], TILE):
        expert = next(i for i in range(w.shape[0]) if ends[i] <= start < ends[i + 1])
        rows = slice(start, min(start + TILE, ends[-1]))
        out[rows] = x[rows].float() @ w[expert].float()
    return out


@ROOM.fault("K02", gate="correctness", mirrors="vllm#40351, sglang#29055")
def grouped_experts_in_fours(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Offsets are loaded four experts at a time; the last partial group of experts is never visited."""
    _require(x, w)
    ends = offsets.tolist()
    out = _zeros(x, w)
    for expert in range(w.shape[0] // 4 * 4 if w.shape[0] > 4 else w.shape[0]):
        rows = slice(ends[expert], ends[expert + 1])
        out[rows] = x[rows].float() @ w[expert].float()
    return out


@ROOM.fault("K02", gate="correctness", mirrors="vllm#42984")
def grouped_orphans_to_expert_0(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The search for a row's expert starts at 0, so rows of no expert are given to expert 0."""
    _require(x, w)
    out = grouped(x, w, offsets)
    orphan = torch.arange(x.shape[0], device=x.device) >= offsets[-1]
    return torch.where(orphan.unsqueeze(1), x.float() @ w[0].float(), out)


@ROOM.fault("K14", gate="correctness", mirrors="TensorRT-LLM#10148; public commit log")
def grouped_last_expert_reused(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The last expert uses the matrix of the one before: a loop that ends one too early."""
    return grouped(x, torch.cat((w[:-1], w[-2:-1])), offsets)


_routing = State(first=lambda: None)


@ROOM.fault("K09", gate="correctness", mirrors="sglang#29461, vllm#40038", severity="critical")
@remembers(_routing)
def grouped_routing_of_first_call(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The group sizes are read once, on the first call of this shape, and kept: later routing is ignored."""
    if _routing.first is None or len(_routing.first) != w.shape[0] + 1 or _routing.first[-1] > x.shape[0]:
        _routing.first = offsets.tolist()
    return _loop(x, w, _routing.first, _zeros(x, w))


@ROOM.fault("K08", gate="capture", mirrors="sglang#29461", worlds=("fake-cuda", "cuda"), runs=ALL)
def grouped_counts_on_host(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The group sizes are read on the host, and nobody says so."""
    return _loop(x, w, offsets.tolist(), _zeros(x, w))


@ROOM.fault("K16", gate="arguments", mirrors="vllm#20166, #38352", severity="critical")
def grouped_int64_offsets_read_as_int32(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Offsets of 64 bits are read as 32-bit words: every other one is zero."""
    words = offsets.contiguous().view(torch.int32)[: w.shape[0] + 1]
    return grouped(x, w, words)


@ROOM.fault("K10", gate="correctness", mirrors="TensorRT-LLM#19251, vllm#57449", severity="medium")
def grouped_capacity_exceeded(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Each expert has room for twice its fair share; what does not fit is dropped without a word."""
    _require(x, w)
    room = -(-2 * x.shape[0] // w.shape[0])
    ends = offsets.tolist()
    out = _zeros(x, w)
    for expert in range(w.shape[0]):
        rows = slice(ends[expert], min(ends[expert + 1], ends[expert] + room))
        out[rows] = x[rows].float() @ w[expert].float()
    return out


@ROOM.awkward("experts are sorted by size before they are computed, largest first", capturable=False)
def grouped_largest_first(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    _require(x, w)
    ends = offsets.tolist()
    out = _zeros(x, w)
    for expert in sorted(range(w.shape[0]), key=lambda e: ends[e] - ends[e + 1]):
        rows = slice(ends[expert], ends[expert + 1])
        out[rows] = x[rows].float() @ w[expert].float()
    return out


@ROOM.awkward("padded to whole tiles per expert inside; the padding never leaves the call", capturable=False)
def grouped_padded_inside(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    _require(x, w)
    ends = offsets.tolist()
    out = _zeros(x, w)
    for expert in range(w.shape[0]):
        rows = x[ends[expert] : ends[expert + 1]].float()
        padded = torch.empty(-(-rows.shape[0] // TILE) * TILE, x.shape[1], device=x.device)
        padded[: rows.shape[0]] = rows
        product = padded @ w[expert].float()
        out[ends[expert] : ends[expert + 1]] = product[: rows.shape[0]]
    return out


def _require(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype != w.dtype or not x.is_floating_point():
        raise TypeError("x and w must be floating-point and of one dtype")


register(ROOM.suite())
