"""What the gate does on data whose truth is known: targets that must hold, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.latency import figures
from harness.latency.judge import Outcome
from harness.latency.simulate import (
    NOISY,
    QUIET,
    Noise,
    draw,
    families,
    gate,
    plain_t,
    pooled_launches,
    tree,
    trimmed_t,
)

CELLS = 5000
EVERY = pytest.mark.parametrize("noise", QUIET + NOISY, ids=lambda noise: noise.name)
CALM = pytest.mark.parametrize("noise", QUIET, ids=lambda noise: noise.name)


def test_the_model_has_the_noise_it_says() -> None:
    noise = Noise("", between=0.01, shared=0.9, within=0.0)
    ratios = draw(noise, 0.03, 2000, 8, np.random.default_rng(0))
    # two arms, each with the tenth of the variance that it does not share
    assert ratios.std() == pytest.approx(0.01 * np.sqrt(2 * 0.1), rel=0.02)
    assert ratios.mean() == pytest.approx(np.log(1.03), abs=2e-4)
    hit = draw(Noise("", 0.0, contended=0.05, within=0.0), 0.0, 2000, 8, np.random.default_rng(0))
    assert np.mean(hit != 0.0) == pytest.approx(0.05, abs=0.01)
    assert np.log(1.05) <= np.abs(hit[hit != 0.0]).min() <= np.abs(hit).max() <= np.log(1.15)


@EVERY
def test_at_most_half_a_percent_of_unchanged_cells_alarm(noise: Noise) -> None:
    assert gate(noise, 0.0, CELLS, seed=1).alarms <= 0.005


@CALM
@pytest.mark.parametrize("change", [0.03, 0.05, 0.10])
def test_three_percent_is_found_in_quiet_cells(noise: Noise, change: float) -> None:
    rates = gate(noise, change, CELLS, seed=2)
    assert rates.slower >= 0.95
    assert rates.faster == 0.0
    # two passes of 8 blocks, and few extensions
    assert rates.blocks < 18


@CALM
def test_two_percent_is_found_in_quiet_cells_and_one_is_within_the_margin(noise: Noise) -> None:
    assert gate(noise, 0.02, CELLS, seed=3).slower >= 0.95
    one = gate(noise, 0.01, CELLS, seed=3)
    assert one.slower <= 0.005
    assert one.same >= 0.9


@EVERY
@pytest.mark.parametrize("change", [0.02, 0.03, 0.05])
def test_a_change_beyond_the_margin_is_hardly_ever_called_same(noise: Noise, change: float) -> None:
    assert gate(noise, change, CELLS, seed=4).same <= 0.025


def test_noise_that_hides_a_change_ends_in_inconclusive_not_in_a_verdict() -> None:
    rates = gate(NOISY[-1], 0.02, CELLS, seed=5)
    assert rates.inconclusive >= 0.8


def test_a_short_kernel_is_held_to_half_a_microsecond() -> None:
    short = Noise("5 us", 0.003, seconds=5e-6)
    assert gate(short, 0.05, CELLS, seed=6).slower == 0.0
    assert gate(short, 0.15, CELLS, seed=6).slower >= 0.95


def test_the_confirmation_is_what_removes_false_alarms() -> None:
    rates = gate(NOISY[-1], 0.0, 20_000, seed=7)
    assert rates.first_pass_alarms > 0.005
    assert rates.alarms < rates.first_pass_alarms / 5


def test_trimming_is_what_finds_changes_among_contended_blocks() -> None:
    for noise in QUIET[1::2]:
        assert trimmed_t(noise, 0.03, CELLS, seed=8) > plain_t(noise, 0.03, CELLS, seed=8) + 0.1


def test_pooled_launches_call_most_unchanged_kernels_changed() -> None:
    assert pooled_launches(QUIET[0], 0.0, 200, seed=9) > 0.5


def test_the_real_tree_on_many_cells() -> None:
    outcomes = tree(QUIET[1], [0.0] * 40 + [0.04] * 5 + [-0.04] * 5, np.random.default_rng(10))
    assert outcomes[40:45] == [Outcome.SLOWER] * 5
    assert outcomes[45:] == [Outcome.FASTER] * 5
    assert not {Outcome.SLOWER, Outcome.FASTER} & set(outcomes[:40])


def test_a_family_finds_one_percent() -> None:
    slower, _ = families(QUIET[0], 0.01, 12, 100, seed=11)
    assert slower >= 0.95
    assert families(QUIET[0], 0.0, 12, 100, seed=12) == (0.0, 0.0)


def test_the_page_is_what_the_simulation_writes() -> None:
    page = Path(__file__).resolve().parents[3] / figures.PAGE
    assert page.read_text() == figures.page(), "run: python -m harness.latency.figures"
