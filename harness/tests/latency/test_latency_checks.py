"""Physical floor, two modes, identical code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.latency.checks import (
    Ceilings,
    Launch,
    bimodality,
    faster_than_physics,
    physical_floor,
    same_code,
    share_of_ceiling,
)
from harness.suite import Cost

H200 = Ceilings(copy_bytes_per_s=4.28e12, flops_per_s=791e12)
COPY = Cost(bytes=2 << 30)
MATMUL = Cost(bytes=3 * 8192 * 8192 * 2, flops=2 * 8192**3)


def test_the_floor_is_the_longer_of_bytes_and_flops() -> None:
    assert physical_floor(COPY, H200) == pytest.approx((2 << 30) / 4.28e12)
    assert physical_floor(MATMUL, H200) == pytest.approx(2 * 8192**3 / 791e12)
    assert share_of_ceiling(2 * physical_floor(COPY, H200), COPY, H200) == pytest.approx(0.5)


@pytest.mark.parametrize("cost", [COPY, MATMUL])
def test_faster_than_physics_is_named(cost: Cost) -> None:
    floor = physical_floor(cost, H200)
    assert faster_than_physics(floor, cost, H200) is None
    # zeros multiply 13 % faster than random data, and a kernel that only reads beats a copy
    assert faster_than_physics(floor / 1.13, cost, H200) is None
    assert "needs at least" in (faster_than_physics(floor / 1.3, cost, H200) or "")
    assert faster_than_physics(8e-9, cost, H200)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_no_duration_is_never_plausible(seconds: float) -> None:
    assert faster_than_physics(seconds, Cost(bytes=0), H200)


def test_ceilings_must_be_measured() -> None:
    with pytest.raises(ValueError, match="positive"):
        Ceilings(0.0, 1.0)


def launches(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Durations of one mode around 50 us, in the shapes that were seen: symmetric, one-sided, tailed, drifting."""
    scatter = {
        "normal": rng.normal(0.0, 0.005, n),
        "uniform": rng.uniform(-0.01, 0.01, n),
        "one-sided": np.abs(rng.normal(0.0, 0.01, n)),
        "tailed": np.abs(rng.normal(0.0, 0.003, n)) + (rng.random(n) < 0.03) * rng.uniform(0.05, 0.5, n),
        "wide": rng.lognormal(0.0, 0.1, n) - 1.0,
        "drifting": np.linspace(0.0, 0.03, n) + rng.normal(0.0, 0.002, n),
    }[kind]
    return 50e-6 * (1.0 + scatter)


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("kind", ["normal", "uniform", "one-sided", "tailed", "wide", "drifting"])
def test_one_mode_is_one_mode(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    found = sum(bimodality(launches(rng, kind, n)) is not None for _ in range(1000))
    assert found <= 5  # 0.5 %


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_two_modes_are_found_and_described(share: float, n: int) -> None:
    rng = np.random.default_rng(int(100 * share) + n)
    missed = 0
    for _ in range(300):
        values = launches(rng, "normal", n)
        slow = rng.permutation(n) < round(share * n)
        found = bimodality(values * np.where(slow, 1.05, 1.0))
        missed += found is None
        if found is not None:
            assert found.slow_share == pytest.approx(share, abs=0.06)
            assert found.slow / found.fast == pytest.approx(1.05, abs=0.01)
    assert missed <= 3


def test_rounding_of_a_clock_is_not_two_modes() -> None:
    rng = np.random.default_rng(0)
    resolution = 0.5e-6
    rounded = np.round(rng.normal(5.25e-6, 0.1e-6, 200) / resolution) * resolution
    assert len(set(rounded)) == 2
    assert bimodality(rounded, resolution) is None
    # with a clock that is fine enough, the same values are two modes
    assert bimodality(rounded, 1e-9) is not None


def test_few_or_equal_launches_have_no_modes() -> None:
    assert bimodality([]) is None
    assert bimodality([1e-5, 2e-5]) is None
    assert bimodality([1e-5] * 50) is None
    assert str(bimodality([1e-5] * 20 + [2e-5] * 20)) == "10.00 us and 20.00 us (50% of the launches)"


LAUNCH = Launch("ab" * 32, (132, 1, 1), (128, 1, 1), 65536)


def test_same_code_is_the_same_machine_code_and_launch() -> None:
    assert same_code((LAUNCH, LAUNCH), (LAUNCH, LAUNCH))
    for change in ({"cubin_sha256": "cd" * 32}, {"grid": (131, 1, 1)}, {"block": (256, 1, 1)}, {"shared_bytes": 0}):
        assert not same_code((LAUNCH,), (replace(LAUNCH, **change),))  # type: ignore[arg-type]
    assert not same_code((LAUNCH,), (LAUNCH, LAUNCH))
    # nothing known is not the same
    assert not same_code((), ())
    unknown = replace(LAUNCH, cubin_sha256="")
    assert not same_code((unknown,), (unknown,))
