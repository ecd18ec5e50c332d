"""Peaks and leaks: nothing is wrong with the numbers, and the machine runs out of memory."""

from __future__ import annotations

from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import norm, norm_inputs, norm_memory, norm_reference
from suites.faults.rooms import ALL, CAPTURE, Room, State, remembers

ROOM = Room(
    "museum_memory",
    doc="rms_norm under a memory formula",
    inputs=norm_inputs,
    reference=norm_reference,
    cases=grid(m=4096, k=1024, dtype="bf16", worlds=CAPTURE) + grid(m=9, k=64, dtype="bf16", worlds=("cpu",)),
    tolerance=Tolerance(rtol=1e-2, atol=1e-3),
    contract=Contract(),
    memory=lambda case: norm_memory(case) + case["m"] * case["k"] * 4,
    sweep="m",
)
T = torch.Tensor


def fault(mirrors: str, kind: str = "K10", **settings: Any) -> Any:
    return ROOM.fault(kind, gate="memory", mirrors=mirrors, worlds=CAPTURE, **{"runs": ALL, **settings})


@ROOM.awkward("the plain right implementation")
def memory_plain(x: T, weight: T) -> T:
    return norm(x, weight)


@fault("public commit log", severity="critical")
def memory_broadcast_temporary(x: T, weight: T) -> T:
    """A broadcast over 16 candidates is materialised for every element."""
    candidates = torch.arange(16, device=x.device, dtype=torch.float32)
    nearest = (x.unsqueeze(-1).float() - candidates).abs().amin(-1)
    return norm(x, weight) + 0 * nearest.to(x.dtype)


@fault("temporaries in float64", severity="medium")
def memory_double_precision(x: T, weight: T) -> T:
    """Everything is computed in float64 on the way."""
    rows = x.double()
    copies = [rows * 1.0, rows * 2.0]
    return norm((copies[1] - copies[0]).to(x.dtype), weight)


_leak = State(kept=list)


@fault("triton#1358, Model cache without bound", severity="critical")
@remembers(_leak)
def memory_leaks_per_call(x: T, weight: T) -> T:
    """One row statistic is kept for ever in every call."""
    _leak.kept.append(x.float().square().mean(-1))
    return norm(x, weight)


_history = State(kept=list)


@fault("hooks that keep activations", severity="critical")
@remembers(_history)
def memory_keeps_results(x: T, weight: T) -> T:
    """Every result is kept alive by a list that nobody empties."""
    result = norm(x, weight)
    _history.kept.append(result)
    return result


@fault("TensorRT-LLM#19251: buffers padded for the global count", severity="high")
def memory_workspace_for_all_ranks(x: T, weight: T) -> T:
    """The workspace is sized for eight ranks and used by one."""
    workspace = torch.zeros(8 * x.shape[0], x.shape[1], dtype=torch.float32, device=x.device)
    workspace[: x.shape[0]] = x
    return norm(workspace[: x.shape[0]].to(x.dtype), weight)


@fault("M padded to a power of two", kind="K19", severity="medium")
def memory_pads_to_capacity(x: T, weight: T) -> T:
    """Rows are padded to a capacity of 16384, however few there are: small batches cost as much as large ones."""
    padded = torch.zeros(16384, x.shape[1], dtype=torch.float32, device=x.device)
    padded[: x.shape[0]] = x
    return norm(padded, weight)[: x.shape[0]].to(x.dtype)


@fault("flashinfer#4210: hidden full-tensor padding copy", kind="K19", severity="high")
def memory_hidden_padding_copies(x: T, weight: T) -> T:
    """Input and output are copied into padded buffers and back: four passes for one."""
    stages = [torch.nn.functional.pad(x.float(), (0, 8)) for _ in range(3)]
    return norm(stages[-1][:, : x.shape[1]].to(x.dtype), weight)


@fault("quadratic temporaries of a causal mask", severity="critical")
def memory_quadratic_in_rows(x: T, weight: T) -> T:
    """A mask of rows by rows is made: small at 64 tokens, everything at 64 thousand."""
    mask = torch.ones(x.shape[0], x.shape[0], device=x.device, dtype=torch.float32)
    return norm(x * mask[:, :1].to(x.dtype), weight)


@ROOM.awkward("a workspace of fixed size, made once and never given back, within the formula")
@remembers(_leak)
def memory_fixed_workspace(x: T, weight: T) -> T:
    if not _leak.kept:
        _leak.kept.append(torch.zeros(1024, device=x.device))
    return norm(x, weight)


@ROOM.awkward("temporaries are freed as early as they can be, and the peak is half the formula")
def memory_in_chunks(x: T, weight: T) -> T:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for start in range(0, x.shape[0], 256):
        out[start : start + 256] = norm(x[start : start + 256], weight)
    return out


_ring = State(slots=list, next=lambda: 0)


@ROOM.awkward("a ring of two workspaces: grows over two calls and then no more")
@remembers(_ring)
def memory_ring_of_two(x: T, weight: T) -> T:
    if len(_ring.slots) < 2:
        _ring.slots.append(torch.zeros(512, device=x.device))
    return norm(x, weight)


register(ROOM.suite())

SLACK = 256 << 20

ROOMY = Room(
    "museum_roomy_memory",
    doc="rms_norm under a memory formula with 256 MiB for a fixed workspace",
    inputs=norm_inputs,
    reference=norm_reference,
    cases=grid(m=4096, k=1024, dtype="bf16", worlds=CAPTURE) + grid(m=9, k=64, dtype="bf16", worlds=("cpu",)),
    tolerance=Tolerance(rtol=1e-2, atol=1e-3),
    memory=lambda case: norm_memory(case) + SLACK,
    sweep="m",
)


@ROOMY.fault("K10", gate="memory", mirrors="flashinfer#4210", worlds=CAPTURE, runs=ALL, severity="high")
def memory_factor_in_the_slack(x: T, weight: T) -> T:
    """Eight copies of the input hide in the formula's room for a workspace, until the batch grows."""
    copies = x.float().expand(8, *x.shape).clone()
    return norm(copies[-1].to(x.dtype), weight)


@ROOMY.awkward("the workspace that the formula has room for: large, and the same at every size")
def memory_large_fixed_workspace(x: T, weight: T) -> T:
    workspace = torch.empty(SLACK // 8, dtype=torch.float32, device=x.device)
    return norm(x, weight + 0 * workspace[:1].nan_to_num(0.0).to(weight.dtype))


register(ROOMY.suite())
