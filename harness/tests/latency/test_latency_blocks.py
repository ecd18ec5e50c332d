"""Blocks: what cancels in A B B A, what does not, and what makes a block void."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.latency.blocks import Blocks, Conditions, collect, cycle_log_ratios, log_ratios, void_reason


def test_a_block_is_the_log_ratio_of_its_arms() -> None:
    assert log_ratios([1.0, 1.03, 1.03, 1.0]) == pytest.approx(math.log(1.03))
    assert log_ratios([[2e-5, 1e-5, 1e-5, 2e-5], [1.0, 1.0, 1.0, 1.0]]) == pytest.approx([math.log(0.5), 0.0])


def test_a_linear_drift_cancels_and_a_bent_one_does_not() -> None:
    drift = np.exp(0.02 * np.arange(4))
    assert log_ratios(drift) == pytest.approx(0.0, abs=1e-15)
    assert log_ratios(np.exp(0.02 * np.arange(4) ** 2)) != pytest.approx(0.0, abs=1e-3)


def test_a_lower_clock_is_a_change_in_time_and_none_in_cycles() -> None:
    clocks = np.array([1980.0, 1900.0, 1900.0, 1980.0])
    medians = 1e-5 * 1980.0 / clocks
    assert log_ratios(medians) == pytest.approx(math.log(1980 / 1900))
    assert cycle_log_ratios(medians, clocks) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("medians", [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0], [1, 1, 1, -1]])
def test_what_is_no_duration_is_refused(medians: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected the medians|positive and finite"):
        log_ratios(medians)


VOID = {
    "no kernel": (Conditions(kernels_matched=0), "no kernel matched"),
    "foreign": (Conditions(foreign_pids=(4711,)), "pid 4711"),
    "throttled": (Conditions(throttle=("sw_power_cap",)), "sw_power_cap"),
    "clocks": (Conditions(1980.0, 1950.0), "1980 and 1950 MHz"),
    "clock unknown": (Conditions(1980.0, math.nan), "differ"),
    "canary": (Conditions(canary_drift=-0.03), "-3.0%"),
    "canary unknown": (Conditions(canary_drift=math.nan), "canary"),
    "two modes": (Conditions(bimodal=True), "two modes"),
}


@pytest.mark.parametrize(("conditions", "says"), VOID.values(), ids=VOID)
def test_void_blocks_say_why(conditions: Conditions, says: str) -> None:
    assert says in (void_reason(conditions) or "")


def test_a_good_block_is_not_void() -> None:
    assert void_reason(Conditions()) is None
    good = Conditions(1980.0, 1965.0, canary_drift=0.01, kernels_matched=3)
    assert void_reason(good) is None


def test_void_blocks_are_kept_out_of_the_numbers() -> None:
    medians = [[1.0, 1.1, 1.1, 1.0], [1.0, 9.0, 9.0, 1.0], [1.0, 1.2, 1.2, 1.0]]
    clocks = np.full((3, 4), 1980.0)
    blocks = collect(medians, (Conditions(), Conditions(throttle=("thermal",)), Conditions()), clocks)
    assert blocks.ratios == pytest.approx((math.log(1.1), math.log(1.2)))
    assert blocks.cycles == pytest.approx(blocks.ratios)
    assert blocks.void == ("clocks were throttled (thermal)",)
    assert blocks.measured == 3
    both = blocks + blocks
    assert (both.measured, len(both.ratios), len(both.cycles or ())) == (6, 4, 4)
    assert (blocks + Blocks((0.0,))).cycles is None


def test_a_void_block_may_hold_no_duration_at_all() -> None:
    blocks = collect([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]], (Conditions(), Conditions(kernels_matched=0)))
    assert blocks.ratios == (0.0,)


def test_mismatched_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks with 1 conditions"):
        collect(np.ones((2, 4)), (Conditions(),))
    with pytest.raises(ValueError, match="in cycles"):
        Blocks((0.0, 0.0), (0.0,))
