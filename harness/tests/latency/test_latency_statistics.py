"""The statistics, against scipy where scipy has them, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.latency.statistics import (
    Call,
    classify,
    equivalent,
    family,
    first_pass_p,
    margin,
    noise_spread,
    selected,
    threshold,
    trimmed_mean,
)

TAU = math.log1p(0.015)


def normal(mean: float, sd: float, n: int = 8, seed: int = 0) -> np.ndarray:
    """Blocks with exactly this mean and standard deviation."""
    values = np.random.default_rng(seed).normal(size=n)
    return mean + sd * (values - values.mean()) / values.std(ddof=1)


@pytest.mark.parametrize("n", [5, 8, 9, 16, 31])
def test_the_trimmed_t_is_scipys_yuen_test_against_nothing(n: int) -> None:
    values = np.random.default_rng(n).standard_t(2, size=(50, n)) + 0.3
    # a second sample of constant zeros adds neither variance nor degrees of freedom
    theirs = stats.ttest_ind(values, np.zeros((50, n)), axis=-1, trim=0.2, equal_var=False, alternative="greater")
    ours = trimmed_mean(values)
    assert ours.mean / ours.error == pytest.approx(theirs.statistic, rel=1e-9)
    assert ours.p_slower == pytest.approx(theirs.pvalue, rel=1e-7)
    assert ours.df == n - 2 * int(0.2 * n) - 1
    assert ours.mean == pytest.approx(stats.trim_mean(values, 0.2, axis=-1))


def test_without_trimming_it_is_students_t() -> None:
    values = normal(0.1, 1.0, 12)
    ours = trimmed_mean(values, trim=0.0)
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(0.98)
    assert ours.mean - ours.bound(0.99) == pytest.approx(theirs.low)


def test_the_bound_covers_as_often_as_it_says() -> None:
    values = np.random.default_rng(1).normal(0.0, 0.01, (40_000, 8))
    estimate = trimmed_mean(values)
    below = np.mean(estimate.mean - estimate.bound(0.99) > 0.0)
    # Yuen's error is a little conservative for normal data; three standard errors of the simulation
    assert 0.005 < below < 0.01 + 3 * math.sqrt(0.01 * 0.99 / 40_000)


@given(st.lists(st.floats(-0.5, 0.5), min_size=5, max_size=20))
def test_slower_and_faster_are_mirror_images(values: list[float]) -> None:
    there, back = classify(values, TAU, TAU), classify([-v for v in values], TAU, TAU)
    mirror = {Call.SLOWER: Call.FASTER, Call.FASTER: Call.SLOWER}
    assert Call(int(back)) is mirror.get(Call(int(there)), Call(int(there)))


@given(st.lists(st.floats(-0.1, 0.1), min_size=8, max_size=8), st.floats(0.1, 10.0))
def test_one_wild_block_of_eight_changes_no_more_than_its_rank(values: list[float], wild: float) -> None:
    ordered = sorted(values)
    moderate = trimmed_mean([*ordered[:-1], ordered[-1] + 0.5])
    extreme = trimmed_mean([*ordered[:-1], ordered[-1] + 0.5 + wild])
    assert moderate.mean == pytest.approx(extreme.mean, abs=1e-12)
    assert moderate.error == pytest.approx(extreme.error, abs=1e-12)


def test_calls() -> None:
    assert classify(normal(0.03, 0.003), TAU, TAU) == Call.SLOWER
    assert classify(normal(-0.03, 0.003), TAU, TAU) == Call.FASTER
    assert classify(normal(0.0, 0.003), TAU, TAU) == Call.SAME
    # certain, and too small to matter
    assert classify(normal(0.005, 0.0005), TAU, TAU) == Call.SAME
    assert classify(normal(0.02, 0.05), TAU, TAU) == Call.INCONCLUSIVE
    # a noisy cell: not beyond its own threshold, and not within the margin either
    assert classify(normal(0.03, 0.003), 0.05, TAU) == Call.INCONCLUSIVE
    assert classify([0.03] * 4, TAU, TAU) == Call.INCONCLUSIVE
    assert classify(np.zeros(8), TAU, TAU) == Call.SAME
    assert classify(np.full(8, 0.03), TAU, TAU) == Call.SLOWER


def test_a_change_that_is_none_in_cycles_is_not_called() -> None:
    time = normal(0.03, 0.003)
    assert classify(time, TAU, TAU, time) == Call.SLOWER
    assert classify(time, TAU, TAU, time - 0.03) == Call.INCONCLUSIVE
    assert classify(-time, TAU, TAU, 0.03 - time) == Call.INCONCLUSIVE


def test_equivalence_is_two_one_sided_tests() -> None:
    for mean in (0.0, 0.008, 0.011, 0.014, 0.02):
        values = normal(mean, 0.005, 16, seed=int(1000 * mean))
        estimate = trimmed_mean(values)
        t_low, t_high = (estimate.mean + TAU) / estimate.error, (estimate.mean - TAU) / estimate.error
        both = stats.t.sf(t_low, estimate.df) < 0.025 and stats.t.cdf(t_high, estimate.df) < 0.025
        assert bool(equivalent(values, TAU)) == both


def test_thresholds() -> None:
    blocks = normal(0.0, 0.05, 16)
    quiet, noisy = 0.001, noise_spread(blocks)
    assert noisy == pytest.approx(stats.median_abs_deviation(blocks, scale="normal"))
    assert threshold(quiet, 8, 1e-3) == pytest.approx(math.log1p(0.015))
    # 0.5 us of 5 us
    assert threshold(quiet, 8, 5e-6) == pytest.approx(math.log1p(0.1)) == margin(5e-6)
    assert threshold(noisy, 8, 1e-3) == pytest.approx(3 * noisy / math.sqrt(8))
    assert threshold(noisy, 16, 1e-3) == pytest.approx(3 * noisy / 4)
    # the margin does not grow with noise
    assert margin(1e-3) == pytest.approx(math.log1p(0.015))
    # contended A/A blocks hardly move it
    assert noise_spread([*blocks, 0.15]) == pytest.approx(noisy, rel=0.25)


def test_choosing_among_cells_is_benjamini_and_hochberg() -> None:
    # the textbook procedure: all p up to the largest i with p_(i) <= q i / m
    p = np.array([0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216])
    assert selected(list(p)).tolist() == [True, True] + [False] * 8
    assert selected([]).tolist() == []
    assert selected([0.04]).tolist() == [True]
    assert first_pass_p(normal(0.0, 0.01)) > 0.5
    assert first_pass_p(normal(0.05, 0.001)) < 1e-6


def test_a_family_sees_what_no_cell_can() -> None:
    cells = [normal(math.log(1.01), 0.005, seed=i) for i in range(12)]
    assert all(classify(cell, TAU, TAU) != Call.SLOWER for cell in cells)
    result = family(cells)
    assert result.cells == 12
    assert 1.005 < result.lower < result.ratio < result.upper < 1.015
    assert result.ratio == pytest.approx(math.exp(np.mean([stats.trim_mean(c, 0.2) for c in cells])))
    # one cell alone: the family is that cell
    one, estimate = family(cells[:1]), trimmed_mean(cells[0])
    assert one.lower == pytest.approx(math.exp(estimate.mean - estimate.bound(0.99)))
    assert family([np.zeros(8)]).ratio == 1.0
    with pytest.raises(ValueError, match="at least one"):
        family([])


def test_too_few_blocks_for_an_error_are_refused() -> None:
    with pytest.raises(ValueError, match="leave 1"):
        trimmed_mean([0.0])
