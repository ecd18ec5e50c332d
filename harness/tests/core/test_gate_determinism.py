"""The determinism gate: the same bits again, no trace of calls before, rows that do not notice each other."""

from __future__ import annotations

import pytest
import torch

from harness.case import grid
from harness.suite import Contract
from harness.tests.planted import FP32, assert_fails, assert_passes, correct, judge

ROWS = Contract(rows=("x", "y"))


class CountsCalls:
    """Another last bit at each call, well inside any tolerance."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return correct(x, y) * (1 + self.calls * 2.0**-23)


class RemembersTheLastInput:
    """A scale that lags one call behind: repeats agree, A-B-A does not."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max() if self.last is None else self.last
        self.last = x.abs().max()
        return correct(x, y) * (1 + scale * 2.0**-23)


def test_a_call_counter_is_caught() -> None:
    assert_fails(judge("determinism", CountsCalls()), "repeat 1: out has other bits")


def test_a_random_result_is_caught() -> None:
    assert_fails(judge("determinism", lambda x, y: correct(x, y) + torch.rand(1) * 1e-5), "repeat")


def test_a_trace_of_the_call_before_is_caught_by_a_b_a() -> None:
    verdict = judge("determinism", RemembersTheLastInput())
    assert_fails(verdict, "A-B-A: out has other bits")
    assert "repeat" not in verdict.reason


def scaled_by_the_batch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax() if x.numel() else torch.ones(())
    return (2 * (x / scale) * scale) + y


def other_tile_for_small_batches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = correct(x, y)
    return out * (1 + 2.0**-22) if x.shape[0] == 1 else out


def position_dependent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = correct(x, y)
    out[::2] *= 1 + 2.0**-22
    return out


def neighbour_dependent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = correct(x, y)
    out[1:] += x[:-1] * 1e-7
    return out


@pytest.mark.parametrize(
    ("kernel", "label"),
    [
        (scaled_by_the_batch, "alone"),
        (other_tile_for_small_batches, "the first row alone"),
        (position_dependent, "all but the first"),
        (neighbour_dependent, "a permutation"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rows_that_notice_each_other_are_caught(kernel: object, label: str) -> None:
    assert_fails(judge("determinism", kernel, contract=ROWS), label)  # type: ignore[arg-type]
    assert_passes(judge("determinism", kernel))  # type: ignore[arg-type] # nothing was promised of rows


@pytest.mark.parametrize("m", [0, 1, 2, 3, 8])
def test_an_honest_kernel_passes_with_any_number_of_rows(m: int) -> None:
    assert_passes(judge("determinism", correct, contract=ROWS, cases=grid(m=m, k=24, dtype="fp32")))


def test_outputs_that_do_not_follow_the_rows_are_left_alone_where_they_have_another_length() -> None:
    def with_norms(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return correct(x, y), torch.tensor([1.0, 2.0])

    assert_passes(judge("determinism", with_norms, outputs=("out", "constants"), reference=with_norms, contract=ROWS))


def test_declared_not_deterministic_is_held_to_the_tolerance() -> None:
    contract = Contract(deterministic=False)
    assert_passes(judge("determinism", CountsCalls(), contract=contract, tolerance=FP32))
    assert_fails(
        judge("determinism", lambda x, y: correct(x, y) + torch.rand(x.shape), contract=contract),
        "repeat: out",
        "outside the bound",
    )


def test_nan_of_equal_bits_are_equal() -> None:
    case = grid(m=8, k=24, dtype="fp32", regime="nan")
    assert_passes(judge("determinism", correct, cases=case, contract=ROWS))
