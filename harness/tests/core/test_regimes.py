from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from harness.case import Case
from harness.inputs import REGIMES, Draw, find_regime, regime

SHAPE = (64, 256)


def made(name: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> torch.Tensor:
    return find_regime(name)(shape, torch.Generator().manual_seed(seed))


BUILT_IN = sorted(
    {
        "normal",
        "normal-small",
        "normal-large",
        "heavy-tails",
        "outlier-channels",
        "six-decades",
        "zeros",
        "zero-block",
        "signed-zeros",
        "subnormals",
        "huge",
        "constant",
        "inf",
        "nan",
    }
)


def test_the_regimes_tested_here_are_those_that_the_harness_defines() -> None:
    assert sorted(name for name, make in REGIMES.items() if make.__module__ == "harness.inputs.regimes") == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_values_depend_on_the_seed_alone(name: str) -> None:
    first, again = made(name), made(name)
    assert torch.equal(first.view(torch.int32), again.view(torch.int32))
    if name not in {"zeros", "constant"}:
        assert not torch.equal(first.view(torch.int32), made(name, seed=1).view(torch.int32))


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("shape", [(0, 16), (4, 0), (1, 1), (3,), (2, 3, 5), (1, 16)])
def test_any_shape_gives_float32_on_the_cpu(name: str, shape: tuple[int, ...]) -> None:
    values = made(name, shape)
    assert (tuple(values.shape), values.dtype, values.device.type) == (shape, torch.float32, "cpu")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_scalar_can_be_drawn(name: str) -> None:
    assert Draw(Case((("m", 1),), "fp32", name), "cpu").tensor().shape == ()


@pytest.mark.parametrize(("name", "scale"), [("normal", 1.0), ("normal-small", 2.0**-10), ("normal-large", 2.0**10)])
def test_normal_regimes_have_mean_zero_and_their_scale(name: str, scale: float) -> None:
    values = made(name)
    assert abs(float(values.mean())) < 0.05 * scale
    assert float(values.std()) == pytest.approx(scale, rel=0.05)


def test_heavy_tails_reach_far_beyond_a_normal_distribution() -> None:
    values = made("heavy-tails")
    # Student t with 2 degrees of freedom: quartile 0.816, and 1 in 200 beyond 14.1
    assert float(values.abs().median()) == pytest.approx(0.816, rel=0.05)
    assert 0.002 < float((values.abs() > 14.1).float().mean()) < 0.01
    assert bool(values.isfinite().all())


def test_outlier_channels_are_one_in_64_and_a_hundred_times_larger() -> None:
    scale = made("outlier-channels").square().mean(0).sqrt()
    assert int((scale > 30).sum()) == 256 // 64
    assert float(scale.median()) == pytest.approx(1.0, rel=0.1)
    assert int((made("outlier-channels", (64, 8)).abs().amax(0) > 30).sum()) == 1


def test_six_decades_spread_the_rows_from_a_thousandth_to_a_thousand() -> None:
    scale = made("six-decades").square().mean(1).sqrt()
    assert float(scale[0]) == pytest.approx(1e-3, rel=0.2)
    assert float(scale[-1]) == pytest.approx(1e3, rel=0.2)
    steps = scale.log10().diff()
    assert float(steps.mean()) == pytest.approx(6 / 63, rel=0.05)


def test_zeros_are_all_positive_zero() -> None:
    assert not made("zeros").view(torch.int32).any()


def test_zero_block_zeroes_the_first_block_of_each_row_and_a_quarter_of_the_others() -> None:
    blocks = made("zero-block").unflatten(-1, (-1, 16))
    zero = (blocks == 0).all(-1)
    assert bool(zero[:, 0].all())
    assert 0.18 < float(zero[:, 1:].float().mean()) < 0.32
    assert bool(((blocks == 0).any(-1) == zero).all()), "a block is zero as a whole or not at all"


def test_signed_zeros_hold_both_zeros_and_values_in_equal_parts() -> None:
    values = made("signed-zeros")
    negative = (values == 0) & torch.signbit(values)
    positive = (values == 0) & ~torch.signbit(values)
    for share in (negative, positive, values != 0):
        assert 0.30 < float(share.float().mean()) < 0.37


def test_subnormals_are_subnormal_and_survive_the_cast_to_bfloat16() -> None:
    values = made("subnormals")
    assert 0 < float(values.abs().max()) < 2.0**-126
    assert float(values.to(torch.bfloat16).float().abs().max()) > 0
    assert float((values != 0).float().mean()) > 0.99


def test_huge_is_finite_and_a_product_of_two_is_not() -> None:
    values = made("huge")
    assert bool(values.isfinite().all())
    assert float(values.abs().max()) > 2e38
    assert bool((values * values).isinf().float().mean() > 0.99)


def test_constant_is_one_value_that_is_no_power_of_two() -> None:
    values = made("constant")
    assert values.unique().numel() == 1
    assert float(values[0, 0]) not in (0.0, 0.5, 1.0)


def test_inf_plants_one_infinity_of_each_sign_in_the_first_row_only() -> None:
    values = made("inf")
    assert int(torch.isposinf(values).sum()) == int(torch.isneginf(values).sum()) == 1
    assert bool(values[1:].isfinite().all())


def test_nan_plants_two_in_the_first_row_only() -> None:
    values = made("nan")
    assert int(values.isnan().sum()) == 2
    assert bool(values[1:].isfinite().all())


def test_an_unknown_regime_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown data regime 'gauss'; known: constant, heavy-tails"):
        find_regime("gauss")


def test_a_regime_of_the_suites_own_is_added_and_a_second_one_of_that_name_refused(clean_registry: None) -> None:
    @regime("ones")
    def ones(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        return torch.ones(shape)

    regime("ones")(ones)  # the same function again: a module loaded twice
    assert Draw(Case((("m", 1),), "fp32", "ones"), "cpu").tensor(2).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="'ones' is already defined"):

        @regime("ones")
        def twos(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
            return torch.full(shape, 2.0)


_DIGEST = """
import hashlib, torch
from harness.case import Case
from harness.inputs import Draw
draw = Draw(Case((("m", 4),), "bf16", "heavy-tails"), "cpu")
print(hashlib.sha256(draw.tensor(64, 64).view(torch.uint8).numpy().tobytes()).hexdigest())
"""


def test_another_process_draws_the_same_bytes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in (1, 2)
    }
    assert len(digests) == 1
