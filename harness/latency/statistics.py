"""Bounds and decisions over blocks' log-ratios. Arrays in, arrays out; the last axis is the blocks of one cell.

Everything works on log(B / A): 0.03 is 3 % slower, and slower and faster are symmetric. The functions take leading
axes, so that the simulations in ``simulate`` run the very code that judges a real cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

TRIM = 0.2
"""Share of blocks cut at each end (one of 8, three of 16): one block hit by contention widens a plain t bound so far
that it finds nothing. ``docs/latency-statistics.md`` has both side by side."""

CONFIDENCE = 0.99
"""One-sided confidence of the bound that must lie beyond zero for SLOWER or FASTER."""

EQUIVALENCE = 0.95
"""Two-sided confidence of the interval that must lie within the threshold for SAME."""

LEAST_BLOCKS = 5
"""Valid blocks below which nothing is decided: one is cut at each end, and three are left to tell the spread."""

MIN_THRESHOLD = 0.015
"""Relative change below which no verdict is given. The placement of buffers, drawn anew by each allocation, has moved
kernels of unchanged code by .957 to 1.099 (mlc-ai/TIRx-kernels), and pairing within a block does not cancel all."""

MIN_SECONDS = 0.5e-6
"""Absolute change below which no verdict is given: the resolution of CUDA events."""

NOISE_MULTIPLE = 3.0
"""Standard errors of the cell's own A/A noise that a change must exceed."""


@dataclass(frozen=True)
class Trimmed:
    """Trimmed mean of blocks with Yuen's standard error; fields have the shape of the leading axes."""

    mean: Floats
    error: Floats
    df: int

    def bound(self, confidence: float) -> Floats:
        """Half width of the one-sided interval at this confidence."""
        return np.asarray(special.stdtrit(self.df, confidence) * self.error)

    @property
    def p_slower(self) -> Floats:
        """One-sided p of "not slower". Blocks without any spread are certain, unless they are zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where((self.error == 0.0) & (self.mean == 0.0), 0.0, self.mean / self.error)
        return np.asarray(special.stdtr(self.df, -t))


def trimmed_mean(ratios: ArrayLike, trim: float = TRIM) -> Trimmed:
    """Yuen's trimmed mean: the error comes from the winsorised blocks, ``sqrt((n - 1) s_w^2 / (h (h - 1)))``.

    ``h`` blocks are left after trimming, and the error has ``h - 1`` degrees of freedom. The same as
    ``scipy.stats.ttest_ind(ratios, zeros, trim=trim, equal_var=False)``, which has no one-sample form.
    """
    ordered = np.sort(np.asarray(ratios, dtype=np.float64), axis=-1)
    n = ordered.shape[-1]
    cut = int(trim * n)
    left = n - 2 * cut
    if left < 2:
        raise ValueError(f"{n} blocks leave {left} after trimming {trim:.0%} at each end; at least 2 are needed")
    kept = ordered[..., cut : n - cut]
    winsorised = np.concatenate(
        [np.repeat(kept[..., :1], cut, axis=-1), kept, np.repeat(kept[..., -1:], cut, axis=-1)], axis=-1
    )
    squares = (n - 1) * winsorised.var(axis=-1, ddof=1)
    return Trimmed(kept.mean(axis=-1), np.sqrt(squares / (left * (left - 1))), left - 1)


def noise_spread(noise: ArrayLike) -> Floats:
    """Standard deviation of a cell's A/A log-ratios (last axis), from their median absolute deviation.

    A few contended blocks do not move it.
    """
    return np.asarray(stats.median_abs_deviation(np.asarray(noise, dtype=np.float64), axis=-1, scale="normal"))


def threshold(spread: ArrayLike, blocks: int, seconds: ArrayLike) -> Floats:
    """Smallest log-ratio that counts as a change of a cell: its margin, or what its own noise demands.

    ``spread`` is ``noise_spread`` of the cell, ``blocks`` how many blocks a verdict uses and ``seconds`` the cell's
    median duration.
    """
    own = NOISE_MULTIPLE * np.asarray(spread, dtype=np.float64) / math.sqrt(blocks)
    return np.maximum(own, margin(seconds))


def margin(seconds: ArrayLike) -> Floats:
    """Log-ratio within which a cell is SAME, whatever its noise: a noisy cell is INCONCLUSIVE, not excused."""
    absolute = np.log1p(MIN_SECONDS / np.asarray(seconds, dtype=np.float64))
    return np.maximum(absolute, math.log1p(MIN_THRESHOLD))


class Call(IntEnum):
    """What one pass over a cell says. Only SLOWER and FASTER need a confirmation."""

    INCONCLUSIVE = 0
    SAME = 1
    SLOWER = 2
    FASTER = 3


def classify(
    ratios: ArrayLike, tau: ArrayLike, equal_within: float | Floats, cycles: ArrayLike | None = None
) -> NDArray[np.int8]:
    """A ``Call`` for each cell: ``ratios`` and ``cycles`` are (..., blocks); ``tau`` (``threshold``) and
    ``equal_within`` (``margin``) have the leading axes.

    - SLOWER: the one-sided 99 % bound of the trimmed mean is above zero, the median is above ``tau``, and in clock
      cycles the bound is above zero too (a lower clock is no slower kernel). FASTER is the mirror image.
    - SAME: the 95 % interval of the trimmed mean lies within ``equal_within`` (two one-sided tests).
    - INCONCLUSIVE: neither.
    """
    values = np.asarray(ratios, dtype=np.float64)
    limit = np.asarray(tau, dtype=np.float64)
    if values.shape[-1] < LEAST_BLOCKS:
        return np.full(values.shape[:-1], Call.INCONCLUSIVE, dtype=np.int8)
    slower, faster = _beyond_zero(values)
    if cycles is not None:
        in_cycles = _beyond_zero(np.asarray(cycles, dtype=np.float64))
        slower, faster = slower & in_cycles[0], faster & in_cycles[1]
    median = np.median(values, axis=-1)
    same = equivalent(values, equal_within)
    calls = np.where(same, Call.SAME, Call.INCONCLUSIVE)
    calls = np.where(slower & (median > limit), Call.SLOWER, calls)
    return np.where(faster & (median < -limit), Call.FASTER, calls).astype(np.int8)


def equivalent(ratios: ArrayLike, within: float | Floats) -> NDArray[np.bool_]:
    """Whether the change lies within +-``within``: one-sided tests reject a change that large both ways (TOST)."""
    estimate = trimmed_mean(ratios)
    half = estimate.bound(0.5 + EQUIVALENCE / 2)
    return np.asarray(np.abs(estimate.mean) + half < within)


def first_pass_p(ratios: ArrayLike) -> Floats:
    """Two-sided p of "no change", for choosing among many cells."""
    p = trimmed_mean(ratios).p_slower
    return 2.0 * np.minimum(p, 1.0 - p)


def selected(p_values: Sequence[float], rate: float = 0.05) -> NDArray[np.bool_]:
    """Which cells of many deserve a confirmation: at most ``rate`` of them by chance (Benjamini-Hochberg)."""
    if not len(p_values):
        return np.zeros(0, dtype=bool)
    return np.asarray(stats.false_discovery_control(np.asarray(p_values), method="bh") <= rate)


@dataclass(frozen=True)
class Family:
    """Geometric mean of the ratios of several cells. A change too small for any one cell can be certain here."""

    ratio: float
    """Geometric mean of B / A over the cells: 1.01 is 1 % slower."""
    lower: float
    """One-sided 99 % bounds of it."""
    upper: float
    cells: int


def family(cells: Sequence[ArrayLike]) -> Family:
    """The geometric mean over cells measured independently of each other; each entry holds a cell's log-ratios.

    Degrees of freedom after Welch and Satterthwaite, as the cells differ in noise.
    """
    if not cells:
        raise ValueError("a family needs at least one cell")
    each = [trimmed_mean(cell) for cell in cells]
    count = len(each)
    mean = sum(float(one.mean) for one in each) / count
    variances = [float(one.error) ** 2 for one in each]
    total = sum(variances)
    df = total**2 / sum(v**2 / one.df for v, one in zip(variances, each, strict=True)) if total else 1.0
    half = float(special.stdtrit(df, CONFIDENCE)) * math.sqrt(total) / count
    return Family(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def _beyond_zero(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    estimate = trimmed_mean(values)
    half = estimate.bound(CONFIDENCE)
    return np.asarray(estimate.mean - half > 0.0), np.asarray(estimate.mean + half < 0.0)
