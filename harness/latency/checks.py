"""Checks that make a timing INVALID before any statistics: faster than physics, two modes, the same code twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.suite import Cost

ABOVE_CEILING = 1.15
"""How far above its measured ceilings a machine may still be believed. An H200 copies 4.28 TB/s and its memory is
rated 4.8 (a kernel that only reads comes closer); it multiplies random bf16 at 791 TFLOP/s and zeros at 894."""

EVENT_RESOLUTION = 0.5e-6
"""Seconds that CUDA events resolve: two groups of launches this far apart may be one duration, rounded."""

MIN_SEPARATION = 0.01
"""Relative distance of two modes that is worth a verdict: with less, a median between them is good enough."""

MIN_SHARE = 0.15
"""Share of launches in the smaller mode. Below it the median sits well inside the larger one."""

MIN_ASHMAN = 5.0
"""Distance of two modes in units of their own spread (Ashman's D). The best cut through one normal mode has 2.65 and
through a uniform one 3.46."""


@dataclass(frozen=True)
class Ceilings:
    """What this very GPU reached: measured once per machine and stored, not read off a data sheet."""

    copy_bytes_per_s: float
    """Device-to-device copy, bytes read plus bytes written."""
    flops_per_s: float
    """Matrix product of random data in the fastest dtype that the suite's flops can use."""

    def __post_init__(self) -> None:
        if not (self.copy_bytes_per_s > 0.0 and self.flops_per_s > 0.0):
            raise ValueError(f"ceilings must be positive, got {self}")


def physical_floor(cost: Cost, ceilings: Ceilings) -> float:
    """Seconds that a perfect kernel needs on this GPU: the longer of moving the bytes and doing the flops.

    It holds for cold operands only: what fits the L2 cache can be read faster than memory.
    """
    return max(cost.bytes / ceilings.copy_bytes_per_s, cost.flops / ceilings.flops_per_s)


def faster_than_physics(seconds: float, cost: Cost, ceilings: Ceilings) -> str | None:
    """Why a duration cannot be true, or None.

    An empty graph replays in nanoseconds, and passes every check of values when the output still holds what an eager
    call left there (flashinfer-bench#414).
    """
    floor = physical_floor(cost, ceilings)
    if not seconds > 0.0:
        return f"a duration of {seconds} s"
    if seconds * ABOVE_CEILING < floor:
        return (
            f"{seconds * 1e6:.2f} us for {cost.bytes} bytes and {cost.flops} flops, but this GPU needs at least "
            f"{floor * 1e6:.2f} us: not all of the work was done or timed, operands were warm, or the cost is wrong"
        )
    return None


def share_of_ceiling(seconds: float, cost: Cost, ceilings: Ceilings) -> float:
    """Part of this GPU's measured ceiling that a kernel reached: 1 is perfect, 0.25 is four times the floor."""
    return physical_floor(cost, ceilings) / seconds


@dataclass(frozen=True)
class Modes:
    """Two groups of durations: the mean of each in seconds, and the share of launches in the slower one."""

    fast: float
    slow: float
    slow_share: float

    def __str__(self) -> str:
        return f"{self.fast * 1e6:.2f} us and {self.slow * 1e6:.2f} us ({self.slow_share:.0%} of the launches)"


def bimodality(durations: ArrayLike, resolution: float = EVENT_RESOLUTION) -> Modes | None:
    """The two modes of a set of launches, or None if they form one.

    The cut that leaves the least variance within both sides (Otsu) is two modes if these are far apart in units of
    their own spread, of the duration and of the clock's resolution, and both hold enough launches.
    """
    values = np.sort(np.asarray(durations, dtype=np.float64))
    n = len(values)
    least = max(2, int(np.ceil(MIN_SHARE * n)))
    if n < 2 * least:
        return None
    counts = np.arange(1, n)
    centred = values - values.mean()  # sums of squares of large, nearly equal numbers lose all digits
    sums, squares = np.cumsum(centred)[:-1], np.cumsum(centred**2)[:-1]
    total_square = float(np.sum(centred**2))
    low, high = sums / counts, -sums / (n - counts)
    within = total_square - counts * low**2 - (n - counts) * high**2
    within[: least - 1] = within[n - least :] = np.inf
    cut = int(np.argmin(within))
    gap = float(high[cut] - low[cut])
    count = int(counts[cut])
    var_low = max(float(squares[cut]) / count - float(low[cut]) ** 2, 0.0)
    var_high = max((total_square - float(squares[cut])) / (n - count) - float(high[cut]) ** 2, 0.0)
    # rounded durations have no spread of their own, and two ticks of the clock must not be two modes
    spread = max(float(np.sqrt((var_low + var_high) / 2)), resolution / np.sqrt(12.0))
    fast, slow = float(values[:count].mean()), float(values[count:].mean())
    if gap < MIN_SEPARATION * fast or gap < MIN_ASHMAN * spread:
        return None
    return Modes(fast, slow, 1.0 - count / n)


@dataclass(frozen=True)
class Launch:
    """What ran: machine code and launch shape of one kernel."""

    cubin_sha256: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)


def same_code(base: tuple[Launch, ...], head: tuple[Launch, ...]) -> bool:
    """Whether both sides ran the same machine code in the same launches, in the same order.

    Then they are equally fast, whatever a clock says (nvbench#319: identical SASS classified as fast and slow), and a
    gate that finds otherwise has found out about the machine. Nothing known about either side is not the same code.
    """
    return bool(base) and base == head and all(launch.cubin_sha256 for launch in base)
