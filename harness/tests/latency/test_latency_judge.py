"""The decision tree, branch by branch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.latency.blocks import Blocks
from harness.latency.judge import Cell, Need, Outcome, judge, judge_family, needs

NOISE = tuple(np.random.default_rng(9).normal(0.0, 0.003, 16))


def blocks(mean: float, sd: float = 0.003, n: int = 8, void: int = 0, seed: int = 0) -> Blocks:
    values = np.random.default_rng(seed).normal(size=n)
    values = mean + sd * (values - values.mean()) / values.std(ddof=1)
    return Blocks(tuple(values), None, ("clocks were throttled (thermal)",) * void)


def cell(first: Blocks, name: str = "cell", **more: object) -> Cell:
    return Cell(name, first, NOISE, 50e-6, **more)  # type: ignore[arg-type]


SLOW, SAME, UNSURE = blocks(0.03), blocks(0.0), blocks(0.02, 0.05)
WIDE = UNSURE + blocks(0.02, 0.05, seed=1)


def test_same_needs_nothing() -> None:
    assert needs([cell(SAME)]) == {"cell": Need.NOTHING}
    verdict = judge(cell(SAME))
    assert verdict.outcome is Outcome.SAME
    assert verdict.lower < verdict.ratio < verdict.upper < verdict.threshold == pytest.approx(1.015)


def test_slower_is_final_only_when_confirmed() -> None:
    suspect = cell(SLOW)
    assert needs([suspect]) == {"cell": Need.CONFIRM}
    assert judge(suspect).outcome is Outcome.INCONCLUSIVE
    assert "not confirmed" in judge(suspect).reason

    confirmed = suspect.add(Need.CONFIRM, blocks(0.03, seed=1))
    assert needs([confirmed]) == {"cell": Need.NOTHING}
    assert judge(confirmed).outcome is Outcome.SLOWER
    assert judge(confirmed).ratio == pytest.approx(math.exp(0.03), rel=0.01)

    refuted = suspect.add(Need.CONFIRM, SAME)
    assert judge(refuted).outcome is Outcome.SAME
    assert judge(refuted).reason == "SLOWER in the first pass, SAME in the confirmation"

    reversed_ = suspect.add(Need.CONFIRM, blocks(-0.03))
    assert judge(reversed_).outcome is Outcome.FASTER


def test_an_undecided_confirmation_is_extended_once() -> None:
    unsure = cell(SLOW).add(Need.CONFIRM, UNSURE)
    assert needs([unsure]) == {"cell": Need.CONFIRM}
    still = unsure.add(Need.CONFIRM, blocks(0.02, 0.05, seed=1))
    assert needs([still]) == {"cell": Need.NOTHING}
    assert judge(still).outcome is Outcome.INCONCLUSIVE


def test_undecided_cells_are_extended_once() -> None:
    unsure = cell(UNSURE)
    assert needs([unsure]) == {"cell": Need.EXTEND}
    assert judge(unsure).reason == "the first blocks do not decide"
    still = unsure.add(Need.EXTEND, blocks(0.02, 0.05, seed=1))
    assert still.first.measured == 16
    assert needs([still]) == {"cell": Need.NOTHING}
    assert judge(still).outcome is Outcome.INCONCLUSIVE
    assert judge(still).reason == "the blocks scatter too much to tell"


def test_faster_is_the_mirror_image() -> None:
    fast = cell(blocks(-0.03)).add(Need.CONFIRM, blocks(-0.03, seed=1))
    assert judge(fast).outcome is Outcome.FASTER


@pytest.mark.parametrize("which", ["first", "confirmation"])
def test_many_void_blocks_are_invalid(which: str) -> None:
    bad = blocks(0.03, n=8, void=3)
    suspect = cell(bad) if which == "first" else cell(SLOW).add(Need.CONFIRM, bad)
    assert needs([suspect]) == {"cell": Need.NOTHING}
    verdict = judge(suspect)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == "3 of 11 blocks are void: clocks were throttled (thermal)"
    # a few are not
    assert judge(cell(blocks(0.0, n=6, void=2))).outcome is Outcome.SAME


def test_nothing_measured_is_invalid() -> None:
    assert judge(cell(Blocks(()))).outcome is Outcome.INVALID
    few = cell(blocks(0.03, n=4))
    assert judge(few).outcome is Outcome.INCONCLUSIVE
    assert judge(few).reason == "only 4 blocks"
    assert needs([few]) == {"cell": Need.EXTEND}


def test_without_known_noise_nothing_counts_as_a_change() -> None:
    unknown = replace(cell(SLOW), noise=())
    assert judge(unknown).outcome is Outcome.INCONCLUSIVE
    assert judge(unknown.add(Need.CONFIRM, SLOW)).outcome is Outcome.INCONCLUSIVE
    assert judge(replace(cell(SAME), noise=())).outcome is Outcome.SAME
    few = replace(cell(SLOW), noise=NOISE[:7]).add(Need.CONFIRM, SLOW)
    assert judge(few).outcome is Outcome.INCONCLUSIVE
    assert judge(replace(few, noise=NOISE[:8])).outcome is Outcome.SLOWER


def test_identical_code_is_same_and_a_timing_that_insists_makes_the_machine_invalid() -> None:
    assert judge(cell(SAME, same_code=True)).outcome is Outcome.SAME
    assert judge(cell(WIDE, same_code=True)).outcome is Outcome.SAME
    # one pass alone is no proof against the axiom
    assert judge(cell(SLOW, same_code=True)).outcome is Outcome.SAME
    insisting = judge(cell(SLOW, same_code=True).add(Need.CONFIRM, SLOW))
    assert insisting.outcome is Outcome.INVALID
    assert "the machine, not the kernel" in insisting.reason
    assert judge(cell(blocks(0.0, void=8), same_code=True)).outcome is Outcome.INVALID


def test_a_lower_clock_is_no_slower_kernel() -> None:
    in_cycles = replace(SLOW, cycles=tuple(value - 0.03 for value in SLOW.ratios))
    throttled = cell(in_cycles)
    assert needs([throttled]) == {"cell": Need.EXTEND}
    assert judge(throttled).outcome is Outcome.INCONCLUSIVE
    assert judge(throttled).reason == "a change in time that is none in clock cycles"


def test_among_many_cells_only_those_that_stand_out_are_confirmed() -> None:
    # p of about 0.004: beyond the 1 % bound by itself, nothing among 60 cells
    lucky = cell(blocks(0.0165, 0.0108, seed=4), "lucky")
    assert needs([lucky]) == {"lucky": Need.CONFIRM}
    others = [cell(blocks(0.0, seed=i), f"other{i}") for i in range(60)]
    assert needs([lucky, *others])["lucky"] is Need.EXTEND
    certain = cell(SLOW, "certain")
    assert needs([certain, *others])["certain"] is Need.CONFIRM


def test_families() -> None:
    slower = [cell(blocks(0.01, seed=i), str(i)) for i in range(12)]
    assert judge_family(slower)[0] is Outcome.SLOWER
    assert judge_family([cell(blocks(-0.01, seed=i)) for i in range(12)])[0] is Outcome.FASTER
    assert judge_family([cell(blocks(0.0, seed=i)) for i in range(12)])[0] is Outcome.SAME
    assert judge_family([cell(blocks(0.0, 0.05, seed=i)) for i in range(3)])[0] is Outcome.INCONCLUSIVE
    # a cell that cannot be trusted is not left out in silence
    assert judge_family([*slower, cell(blocks(0.0, void=8))])[0] is Outcome.INVALID
    assert judge_family([])[0] is Outcome.INVALID
