"""``measure(trial)``: the seconds of one call. All timing of these benchmarks is behind this function."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from harness.annotate import quiet
from harness.latency.contract import TimingContract
from harness.trial import Trial

CONTRACTS = {
    "cpu": TimingContract("wall", warmup_s=0.05, min_calls=5, min_time_s=0.2, threads=1),
    "cuda": TimingContract("events-behind-backlog", warmup_s=0.2, min_calls=30, min_time_s=0.0, backlog_s=0.02),
}
"""How each world is timed. The hash of it is the asv version of every benchmark, so a change starts a new history."""

SLEEP_HZ = 2.1e9
"""Cycles a sleeping kernel counts in a second, at most (an H200 boosts to 1.98 GHz): no backlog ends too early."""

MAX_CALLS = 10_000
"""Wall-clock calls of one sample, at most: a call of 1 us would otherwise fill a list for nothing."""


def measure(trial: Trial) -> float:
    """Median seconds of one call of the trial's implementation, warm, in this process, under its world's contract."""
    contract = CONTRACTS[trial.world.name]
    with trial.world.active(), torch.no_grad(), quiet():
        call = trial.bound(trial.inputs())
        return _TIMERS[contract.method](call, contract)


def _wall(call: Callable[[], Any], contract: TimingContract) -> float:
    # more threads would measure the scheduler of a shared host
    torch.set_num_threads(contract.threads)
    _warm_up(call, contract.warmup_s)
    durations: list[float] = []
    end = time.perf_counter() + contract.min_time_s
    while len(durations) < contract.min_calls or (time.perf_counter() < end and len(durations) < MAX_CALLS):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def _events(call: Callable[[], Any], contract: TimingContract) -> float:
    """Events around each call, all queued behind a sleeping kernel: the device never waits for the host.

    Events around back-to-back launches time the host when the kernel is short (15 us between events on an H200, with
    6.6 % spread, for a kernel of 3 us). Whether the backlog held is checked, not assumed.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _warm_up(call, contract.warmup_s, torch.cuda.synchronize)
        durations: list[float] = []
        batch = contract.min_calls
        while len(durations) < contract.min_calls:
            measured = _batch(call, batch, contract.backlog_s, stream)
            if measured:
                durations += measured
            elif batch > 1:
                batch //= 2
            else:
                raise RuntimeError(
                    f"one call takes the host longer to launch than the backlog of {contract.backlog_s} s lasts, "
                    "or it waits for the device; `harness gate --gate capture` names the line"
                )
    return statistics.median(durations)


def _batch(call: Callable[[], Any], calls: int, backlog_s: float, stream: torch.cuda.Stream) -> list[float]:
    """Seconds of ``calls`` calls; empty when the host was still launching as the device ran out of backlog."""
    ready = torch.cuda.Event()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    torch.cuda._sleep(int(backlog_s * SLEEP_HZ))
    ready.record(stream)
    for start, end in pairs:
        start.record(stream)
        call()
        end.record(stream)
    held = not ready.query()
    stream.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs] if held else []


def _warm_up(call: Callable[[], Any], seconds: float, wait: Callable[[], Any] = lambda: None) -> None:
    end = time.perf_counter() + seconds
    while True:
        call()
        wait()
        if time.perf_counter() >= end:
            return


_TIMERS = {"wall": _wall, "events-behind-backlog": _events}
