"""What the gate would say about data whose truth is known: its false alarms and its power.

The model of a cell: every process has an offset (normal, standard deviation ``between``), of which A and B of one
block share the part ``shared`` of the variance; each arm's median has an error of its own (``within``); a share
``contended`` of the blocks has one arm slowed by 5 to 15 %. All of it is simulated in log space and judged by the
code that judges real cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.latency.blocks import Blocks
from harness.latency.judge import BLOCKS, Cell, Need, Outcome, judge, judge_family, needs
from harness.latency.statistics import Call, classify, margin, noise_spread, threshold

Floats = NDArray[np.float64]

NOISE_BLOCKS = 16
"""A/A blocks from which the threshold of a cell is taken."""


@dataclass(frozen=True)
class Noise:
    """Noise of one kind of cell; all figures are relative (0.01 is 1 %)."""

    name: str
    between: float
    contended: float = 0.0
    shared: float = 0.9
    within: float = 0.0005
    """Error of an arm's median: 30 launches with 0.2 % of scatter."""
    seconds: float = 50e-6
    """Duration of the kernel."""


QUIET = (
    Noise("quiet, 0.3 %", 0.003),
    Noise("quiet, 0.3 %, 5 % of blocks contended", 0.003, contended=0.05),
    Noise("1 %", 0.01),
    Noise("1 %, 5 % of blocks contended", 0.01, contended=0.05),
)
NOISY = (
    Noise("3 %", 0.03),
    Noise("3 %, 5 % of blocks contended", 0.03, contended=0.05),
    Noise("3 %, pairs share only half", 0.03, shared=0.5),
)


def draw(noise: Noise, change: float, cells: int, blocks: int, rng: np.random.Generator) -> Floats:
    """Log-ratios of A/B blocks, (cells, blocks), of a head that is ``change`` slower than its base."""
    own = noise.between * np.sqrt(2.0 * (1.0 - noise.shared))
    # two medians an arm: the error of their mean, for both arms
    ratios = np.log1p(change) + rng.normal(0.0, np.hypot(own, noise.within), (cells, blocks))
    hit = rng.random((cells, blocks)) < noise.contended
    side = np.where(rng.random((cells, blocks)) < 0.5, 1.0, -1.0)
    return np.asarray(ratios + hit * side * np.log1p(rng.uniform(0.05, 0.15, (cells, blocks))))


@dataclass(frozen=True)
class Rates:
    """Shares of simulated cells by verdict, before and after confirmation."""

    slower: float
    faster: float
    same: float
    inconclusive: float
    first_pass_alarms: float
    """Cells that were called SLOWER or FASTER before the confirmation."""
    blocks: float
    """Blocks measured for a cell, on average."""

    @property
    def alarms(self) -> float:
        return self.slower + self.faster


def gate(noise: Noise, change: float, cells: int, seed: int) -> Rates:
    """The whole procedure on simulated cells: threshold, first pass and confirmation, each extended if undecided."""
    rng = np.random.default_rng(seed)
    spread = noise_spread(draw(noise, 0.0, cells, NOISE_BLOCKS, rng))
    seconds = np.full(cells, noise.seconds)
    limits = margin(seconds), threshold(spread, BLOCKS, seconds), threshold(spread, 2 * BLOCKS, seconds)
    call, extended = _one_pass(draw(noise, change, cells, 2 * BLOCKS, rng), *limits)
    alarm = (call == Call.SLOWER) | (call == Call.FASTER)
    again, extended_again = _one_pass(draw(noise, change, cells, 2 * BLOCKS, rng), *limits)
    final = np.where(alarm, again, call)
    share = {each: float(np.mean(final == each)) for each in Call}
    return Rates(
        share[Call.SLOWER],
        share[Call.FASTER],
        share[Call.SAME],
        share[Call.INCONCLUSIVE],
        float(np.mean(alarm)),
        float(BLOCKS * (1.0 + np.mean(extended) + np.mean(alarm) + np.mean(alarm & extended_again))),
    )


def _one_pass(
    ratios: Floats, within: Floats, short: Floats, long: Floats
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Calls of one pass, and which cells needed the extension."""
    call = classify(ratios[:, :BLOCKS], short, within)
    extended = call == Call.INCONCLUSIVE
    return np.where(extended, classify(ratios, long, within), call), extended


def tree(noise: Noise, changes: Sequence[float], rng: np.random.Generator) -> list[Outcome]:
    """The decision tree on many cells at once, one for each entry of ``changes``: as ``harness ab`` walks it."""

    def blocks(change: float, count: int = BLOCKS) -> Blocks:
        return Blocks(tuple(draw(noise, change, 1, count, rng)[0].tolist()))

    truth = {f"cell{i}": change for i, change in enumerate(changes)}
    cells = {
        name: Cell(name, blocks(change), blocks(0.0, NOISE_BLOCKS).ratios, noise.seconds)
        for name, change in truth.items()
    }
    while wanted := {name: need for name, need in needs(list(cells.values())).items() if need is not Need.NOTHING}:
        cells |= {name: cells[name].add(need, blocks(truth[name])) for name, need in wanted.items()}
    return [judge(cell).outcome for cell in cells.values()]


def families(noise: Noise, change: float, cells: int, runs: int, seed: int) -> tuple[float, float]:
    """Shares of families of ``cells`` cells, all slower by ``change``, that are called SLOWER, and FASTER."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        ratios = draw(noise, change, cells, BLOCKS, rng)
        found.append(judge_family([Cell(str(i), Blocks(tuple(r)), (), noise.seconds) for i, r in enumerate(ratios)])[0])
    return found.count(Outcome.SLOWER) / runs, found.count(Outcome.FASTER) / runs


def plain_t(noise: Noise, change: float, cells: int, seed: int) -> float:
    """Share of cells called slower in one pass of 8 blocks by a plain t bound, with the gate's threshold."""
    rng = np.random.default_rng(seed)
    tau = threshold(noise_spread(draw(noise, 0.0, cells, NOISE_BLOCKS, rng)), BLOCKS, noise.seconds)
    ratios = draw(noise, change, cells, BLOCKS, rng)
    bound = stats.t.ppf(0.99, BLOCKS - 1) * stats.sem(ratios, axis=-1)
    return float(np.mean((ratios.mean(axis=-1) > bound) & (np.median(ratios, axis=-1) > tau)))


def trimmed_t(noise: Noise, change: float, cells: int, seed: int) -> float:
    """The same pass judged by the gate's trimmed bound."""
    rng = np.random.default_rng(seed)
    tau = threshold(noise_spread(draw(noise, 0.0, cells, NOISE_BLOCKS, rng)), BLOCKS, noise.seconds)
    return float(np.mean(classify(draw(noise, change, cells, BLOCKS, rng), tau, margin(noise.seconds)) == Call.SLOWER))


def two_runs(noise: Noise, change: float, cells: int, seed: int, limit: float = 0.05) -> float:
    """Share called slower when one process of each side is compared: median above ``limit``."""
    rng = np.random.default_rng(seed)
    # nothing is shared: the runs are at different times
    ratios = np.log1p(change) + rng.normal(0.0, noise.between * np.sqrt(2.0), cells)
    return float(np.mean(ratios > np.log1p(limit)))


def pooled_launches(
    noise: Noise, change: float, cells: int, seed: int, processes: int = 7, launches: int = 100
) -> float:
    """Share called different by Mann-Whitney (p < 0.002) over all launches of 7 processes a side, pooled."""
    rng = np.random.default_rng(seed)

    def side(shift: float) -> Floats:
        offsets = rng.normal(shift, noise.between, (cells, processes, 1))
        scatter = np.abs(rng.normal(0.0, 0.003, (cells, processes, launches)))
        return np.asarray(offsets + scatter).reshape(cells, -1)

    test = stats.mannwhitneyu(side(0.0), side(np.log1p(change)), axis=-1, method="asymptotic")
    return float(np.mean(test.pvalue < 0.002))


def process_medians(
    noise: Noise, change: float, cells: int, seed: int, processes: int = 8, factor: float = 1.05
) -> float:
    """Share called slower by ``harness.asv``: 8 process medians a side, p < 0.002 and a ratio above 1.05."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0.0, noise.between, (cells, processes))
    head = rng.normal(np.log1p(change), noise.between, (cells, processes))
    p = stats.mannwhitneyu(base, head, axis=-1, method="asymptotic").pvalue
    ratio = np.median(head, axis=-1) - np.median(base, axis=-1)
    return float(np.mean((p < 0.002) & (ratio > np.log(factor))))
