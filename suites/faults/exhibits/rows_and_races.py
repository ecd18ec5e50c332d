"""Column sums and shared state: races that show now and then, counters that nobody resets, threads that meet."""

from __future__ import annotations

import itertools
import threading
import time

import torch

from harness import Case, Contract, Draw, Inputs, Tolerance, grid, register
from suites.faults.rooms import ALL, CPU, Room, State, remembers

T = torch.Tensor
BINS = 8


def _inputs(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], case["k"])}


ROOM = Room(
    "museum_column_sums",
    doc="the sum of each column in float32",
    inputs=_inputs,
    reference=lambda x: x.double().sum(0),
    cases=grid(m=[96, 7], k=24, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-4, atol=1e-4),
    contract=Contract(),
)


def _right(x: T) -> T:
    if not x.is_floating_point():
        raise TypeError(f"x must be floating-point, got {x.dtype}")
    return x.contiguous().float().sum(0)


@ROOM.awkward("the plain right implementation", worlds=ALL)
def sums_plain(x: T) -> T:
    return _right(x)


@ROOM.awkward("partial sums merged in a fixed tree", worlds=ALL)
def sums_fixed_tree(x: T) -> T:
    _right(x[:0])
    parts = [part.contiguous().float().sum(0) for part in x.split(16)] or [x.float().sum(0)]
    while len(parts) > 1:
        parts = [a + b for a, b in itertools.zip_longest(parts[::2], parts[1::2], fillvalue=torch.zeros_like(parts[0]))]
    return parts[0]


@ROOM.awkward("atomic additions in any order, declared not deterministic", worlds=CPU, deterministic=False)
def sums_any_order(x: T) -> T:
    return _right(x[torch.randperm(x.shape[0], device=x.device)])


_orders = State(count=lambda: 0)


@ROOM.fault("K13", gate="determinism", mirrors="flashinfer#5438, cutlass#2162", severity="critical")
@remembers(_orders)
def sums_any_order_undeclared(x: T) -> T:
    """Atomic additions in any order, where the contract promises the same bits."""
    _orders.count += 1
    order = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(_orders.count))
    return _right(x[order.to(x.device)])


_launches = State(count=lambda: 0)


@ROOM.fault("K13", gate="determinism", mirrors="flashinfer#3439: rarely at small batches", severity="critical")
@remembers(_launches)
def sums_barrier_missed_sometimes(x: T) -> T:
    """Every seventh launch, one warp reads its partial sum before it was written."""
    _launches.count += 1
    out = _right(x)
    if _launches.count % 7 == 0:
        out = out.clone()
        out[8:16] = 0
    return out


@ROOM.fault("K13", gate="coverage", mirrors="flashinfer#2708: PDL wait compiled out", severity="critical", luck=True)
def sums_reads_before_write(x: T) -> T:
    """A consumer starts before its producer has written: it sums what the buffer held before."""
    stage = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    late = stage[-1:].clone()
    stage.copy_(x)
    stage[-1:] = late.nan_to_num(nan=1.0)
    _right(x[:0])
    return stage.sum(0)


_histogram = State(counts=lambda: None)


@ROOM.fault(
    "K14", gate="determinism", mirrors="counters not reset between launches; flashinfer#3618", severity="critical"
)
@remembers(_histogram)
def sums_accumulator_not_reset(x: T) -> T:
    """The accumulator keeps a thousandth of the call before."""
    out = _right(x)
    if _histogram.counts is not None and _histogram.counts.shape == out.shape:
        out = out + 1e-7 * _histogram.counts
    _histogram.counts = out.clone()
    return out


_shared = State(stage=lambda: None)


@ROOM.fault(
    "K14",
    gate="determinism",
    mirrors="flashinfer#3625: per-device scratch; flashinfer#4481",
    severity="critical",
    luck=True,
)
@remembers(_shared)
def sums_scratch_shared_by_threads(x: T) -> T:
    """One scratch buffer serves every thread: two calls at once mix their data."""
    _right(x[:0])
    if _shared.stage is None or _shared.stage.shape != x.shape:
        _shared.stage = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    stage = _shared.stage
    stage.copy_(x)
    time.sleep(1e-5)  # where a kernel would run: another thread gets its turn
    return stage.sum(0)


_per_thread = threading.local()


@ROOM.awkward("a scratch buffer for each thread", worlds=CPU)
def sums_scratch_per_thread(x: T) -> T:
    _right(x[:0])
    known = getattr(_per_thread, "stage", None)
    if known is None or known.shape != x.shape or known.device != x.device:
        known = _per_thread.stage = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    known.copy_(x)
    return known.sum(0)


@ROOM.fault("K14", gate="correctness", mirrors="sglang#10892: state of a larger batch", severity="high", luck=True)
@remembers(_shared)
def sums_rows_of_larger_batch(x: T) -> T:
    """The staging buffer is only grown: a smaller batch also sums rows of the larger one before it."""
    _right(x[:0])
    if _shared.stage is None or _shared.stage.shape[0] < x.shape[0] or _shared.stage.shape[1] != x.shape[1]:
        _shared.stage = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    _shared.stage[: x.shape[0]] = x
    return _shared.stage.sum(0)


@ROOM.fault("K01", gate="correctness", mirrors="DeepGEMM#450: rows straddle a tile", severity="high")
def sums_last_tile_twice(x: T) -> T:
    """The last rows are summed in a tile that reaches back over rows already summed."""
    out = _right(x)
    tail = x.shape[0] % 32
    return out + _right(x[-32:-tail]) if tail and x.shape[0] > 32 else out if x.shape[0] > 32 else out + out[:1] * 0.01


register(ROOM.suite())
