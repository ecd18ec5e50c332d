"""Blocks A B B A: one number each, in time and in clock cycles, or a reason why the block is void.

A is the base, B the head, on one GPU. A drift that is linear over the block (a GPU that warms up) adds the same to
A1 + A2 as to B1 + B2 and cancels; so does everything both arms share: the process, its buffers' placement, the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ARMS = "ABBA"
_SIGNS = np.array([-0.5 if arm == "A" else 0.5 for arm in ARMS])

MAX_CLOCK_DIFFERENCE = 0.01
"""Relative difference of the arms' SM clocks beyond which a block is void: it alone could make two thirds of the
smallest threshold."""

MAX_CANARY_DRIFT = 0.02
"""Relative change of a fixed copy or matrix product within a block beyond which somebody else used the GPU."""


def log_ratios(medians: ArrayLike) -> Floats:
    """``log(B / A)`` of blocks: ``medians`` is (..., blocks, 4), the median seconds of A, B, B, A in this order.

    Raises ValueError for a duration that is not positive: zero matched kernels time as 0, and must not be a ratio.
    """
    values = np.asarray(medians, dtype=np.float64)
    if values.shape[-1:] != (len(ARMS),):
        raise ValueError(f"expected the medians of {' '.join(ARMS)} along the last axis, got shape {values.shape}")
    if not np.all((values > 0.0) & np.isfinite(values)):
        raise ValueError(f"durations must be positive and finite, got {np.min(values)} to {np.max(values)} s")
    result: Floats = np.log(values) @ _SIGNS
    return result


def cycle_log_ratios(medians: ArrayLike, clocks_mhz: ArrayLike) -> Floats:
    """The same in clock cycles (time x SM clock): what would be left if both arms had run at one clock.

    ``clocks_mhz`` has the shape of ``medians``: the mean SM clock during each arm.
    """
    return log_ratios(medians) + log_ratios(clocks_mhz)


@dataclass(frozen=True)
class Conditions:
    """What was read beside one block."""

    clock_a_mhz: float | None = None
    """Mean SM clock of both A arms; None where it cannot be read (a CPU world)."""
    clock_b_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    """Throttle reasons that were set at any time in the block, but those that the clock mode itself causes."""
    canary_drift: float = 0.0
    """Largest relative change of a canary within the block."""
    foreign_pids: tuple[int, ...] = ()
    """Other processes on this GPU."""
    kernels_matched: int | None = None
    """Kernels found under the measured call; None where nobody looked."""
    bimodal: bool = False
    """An arm's launches fall into two groups (``checks.bimodality``): its median is a coin toss."""


def void_reason(conditions: Conditions) -> str | None:
    """Why a block does not count, or None. A void block is never averaged in, and too many of them are INVALID."""
    a, b = conditions.clock_a_mhz, conditions.clock_b_mhz
    if conditions.kernels_matched == 0:
        return "no kernel matched the measured call"
    if conditions.foreign_pids:
        return f"another process used the GPU (pid {', '.join(map(str, conditions.foreign_pids))})"
    if conditions.throttle:
        return f"clocks were throttled ({', '.join(conditions.throttle)})"
    if a is not None and b is not None and not abs(b / a - 1.0) <= MAX_CLOCK_DIFFERENCE:
        return f"SM clocks of the arms differ by more than {MAX_CLOCK_DIFFERENCE:.0%}: {a:.0f} and {b:.0f} MHz"
    if not abs(conditions.canary_drift) <= MAX_CANARY_DRIFT:
        return f"a canary moved by {conditions.canary_drift:+.1%}"
    if conditions.bimodal:
        return "an arm has two modes"
    return None


@dataclass(frozen=True)
class Blocks:
    """One pass over a cell: its valid blocks, and the reasons of the void ones."""

    ratios: tuple[float, ...]
    """``log(B / A)`` of each valid block."""
    cycles: tuple[float, ...] | None = None
    """The same in clock cycles, where clocks were read."""
    void: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.cycles is not None and len(self.cycles) != len(self.ratios):
            raise ValueError(f"{len(self.ratios)} blocks in time and {len(self.cycles)} in cycles")

    def __add__(self, other: Blocks) -> Blocks:
        """Both passes as one, for an extension."""
        cycles = None if self.cycles is None or other.cycles is None else self.cycles + other.cycles
        return Blocks(self.ratios + other.ratios, cycles, self.void + other.void)

    @property
    def measured(self) -> int:
        return len(self.ratios) + len(self.void)


def collect(medians: ArrayLike, conditions: tuple[Conditions, ...], clocks_mhz: ArrayLike | None = None) -> Blocks:
    """Blocks of one pass from what was measured: ``medians`` and ``clocks_mhz`` are (blocks, 4)."""
    values = np.asarray(medians, dtype=np.float64)
    if len(values) != len(conditions):
        raise ValueError(f"{len(values)} blocks with {len(conditions)} conditions")
    reasons = [void_reason(each) for each in conditions]
    valid = np.array([reason is None for reason in reasons], dtype=bool)
    cycles = None
    if clocks_mhz is not None:
        cycles = tuple(cycle_log_ratios(values[valid], np.asarray(clocks_mhz)[valid]).tolist())
    return Blocks(
        tuple(log_ratios(values[valid]).tolist()), cycles, tuple(reason for reason in reasons if reason is not None)
    )
