"""The correctness gate against planted faults: each must be caught, and honest but awkward kernels must pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.case import Case, grid
from harness.inputs import Draw
from harness.suite import Bounded, Contract, Implementation, Tolerance
from harness.tests.planted import CASE, assert_fails, assert_passes, correct, inputs, judge, reference
from harness.verdict import Status


class RememberedByAddress:
    """Cheat: the result of a first call is kept under the address of its input."""

    def __init__(self) -> None:
        self.known: dict[int, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.known.setdefault(x.data_ptr(), correct(x, y)).clone()


class FirstResultForever:
    """Cheat: the work is done once."""

    def __init__(self) -> None:
        self.result: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.result = correct(x, y) if self.result is None else self.result
        return self.result.clone()


class OneWorkspace:
    """Every call answers in the same memory."""

    def __init__(self) -> None:
        self.out = torch.empty(CASE["m"], CASE["k"])

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.out.copy_(2 * x + y)


class FirstCallOnly:
    """Cheat: right while it is looked at, wrong afterwards."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return correct(x, y) if self.calls == 1 else correct(x, y) * 1.001


def last_row_skipped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    out[:-1] = 2 * x[:-1] + y[:-1]
    return out


def one_nan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = correct(x, y)
    out[3, 5] = float("nan")
    return out


def lower_precision(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return correct(x.bfloat16(), y.bfloat16()).float()


FAULTS: dict[str, tuple[Callable[[], Callable[..., torch.Tensor]], str]] = {
    "remembered by address": (RememberedByAddress, "new data in the same buffers"),
    "first result forever": (FirstResultForever, "new data in the same buffers"),
    "one workspace for all results": (OneWorkspace, "a later call overwrote the result of an earlier one"),
    "right in the first call only": (FirstCallOnly, "new data in the same buffers"),
    "zeros": (lambda: lambda x, y: torch.zeros_like(x), "outside the bound"),
    "a constant": (lambda: lambda x, y: torch.full_like(x, (2 * x + y).mean().item()), "outside the bound"),
    "an input passed through": (lambda: lambda x, y: x.clone(), "outside the bound"),
    "last row skipped": (lambda: last_row_skipped, "row"),
    "one NaN": (lambda: one_nan, "NaN in 1 places where the reference has none"),
    "lower precision": (lambda: lower_precision, "outside the bound"),
    "wrong shape": (lambda: lambda x, y: correct(x, y).flatten(), "wrong shape"),
    "one output too many": (lambda: lambda x, y: (x, y), "expected 1 outputs"),
    "an exception": (lambda: lambda x, y: 1 / 0, "raised ZeroDivisionError"),
    "None": (lambda: lambda x, y: None, "raised AttributeError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str) -> None:
    make, words = FAULTS[name]
    assert_fails(judge("correctness", make()), words)


def test_one_wrong_tile_is_named() -> None:
    def wrong_tile(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = correct(x, y)
        out[128:, 128:256] += 1
        return out

    case = grid(m=200, k=300, dtype="fp32")[0]
    assert_fails(judge("correctness", wrong_tile, cases=[case]), "(tile 1, 1)", "1 x 1 tiles")


def lost_nan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(2 * x + y)


@pytest.mark.parametrize("regime", ["nan", "inf"])
def test_a_nan_or_inf_swallowed_by_the_kernel_is_caught_and_one_kept_passes(regime: str) -> None:
    case = grid(m=8, k=24, dtype="fp32", regime=regime)[0]
    assert_fails(judge("correctness", lost_nan, cases=[case]))
    assert_passes(judge("correctness", correct, cases=[case]))


def test_a_kernel_that_changes_its_inputs_to_match_is_caught() -> None:
    def into_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.zero_()
        y.zero_()
        return torch.zeros_like(x)

    assert_fails(judge("correctness", into_inputs), "outside the bound")


def test_a_reference_that_changes_its_inputs_cannot_spoil_the_verdict() -> None:
    def spoiling(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        expected = reference(x, y)
        x.fill_(7)
        return expected

    assert_passes(judge("correctness", correct, reference=spoiling))


def test_the_kernel_runs_before_its_reference_could_leave_a_result_in_freed_memory() -> None:
    order = []

    def noting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        order.append("reference")
        return reference(x, y)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        order.append("kernel")
        return correct(x, y)

    assert_passes(judge("correctness", kernel, reference=noting))
    assert order == ["kernel", "reference"] * (len(order) // 2)


@pytest.mark.parametrize(
    ("tolerance", "regime", "model"),
    [
        (Tolerance(atol=1e9), "normal", "zeros"),
        (Tolerance(atol=1e-2), "normal-small", "zeros"),
        (Tolerance(rtol=0.7), "constant", "the input x"),
    ],
)
def test_a_tolerance_under_which_no_work_would_pass_is_invalid(tolerance: Tolerance, regime: str, model: str) -> None:
    case = grid(m=8, k=24, dtype="fp32", regime=regime)[0]
    verdict = judge("correctness", correct, cases=[case], tolerance=tolerance)
    assert verdict.status is Status.INVALID
    assert f"{model} would pass too" in verdict.reason


@pytest.mark.parametrize("regime", ["zeros", "constant"])
def test_a_case_whose_right_answer_is_zero_or_a_constant_is_no_reason_for_doubt(regime: str) -> None:
    case = grid(m=8, k=24, dtype="fp32", regime=regime)[0]
    assert_passes(judge("correctness", correct, cases=[case]))


def transposed_result(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (2 * x.t().contiguous() + y.t()).t()


def view_of_a_larger_buffer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    wide = torch.full((x.shape[0], x.shape[1] + 9), float("nan"))
    wide[:, 4 : 4 + x.shape[1]] = 2 * x + y
    return wide[:, 4 : 4 + x.shape[1]]


@pytest.mark.parametrize("kernel", [correct, transposed_result, view_of_a_larger_buffer])
@pytest.mark.parametrize("m", [0, 1, 8])
def test_an_honest_kernel_passes_whatever_the_layout_of_its_result(kernel: Callable[..., object], m: int) -> None:
    assert_passes(judge("correctness", kernel, cases=grid(m=m, k=24, dtype="fp32")))


def test_results_in_one_workspace_pass_where_the_contract_says_so() -> None:
    assert_passes(judge("correctness", OneWorkspace(), contract=Contract(reuses_output=True)))


def test_an_operation_in_place_passes() -> None:
    def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).add_(y)

    assert_passes(judge("correctness", in_place, contract=Contract(mutates=("x",))))


def test_several_outputs_each_under_its_own_tolerance() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return correct(x, y), x.amax(-1)

    def wanted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference(x, y), x.amax(-1)

    tolerance = {"sum": Tolerance(rtol=1e-6, atol=1e-6), "amax": Tolerance.bitwise()}
    fields = {"reference": wanted, "outputs": ("sum", "amax"), "tolerance": tolerance}
    verdict = judge("correctness", both, **fields)
    assert_passes(verdict)
    assert verdict.figure("sum.abs_max") is not None
    assert_fails(judge("correctness", lambda x, y: (correct(x, y), x.amax(-1) + 1e-7), **fields), "amax: ")


def test_a_reference_with_a_bound_for_every_element_is_used() -> None:
    def bounded(x: torch.Tensor, y: torch.Tensor) -> Bounded:
        value = reference(x, y)
        return Bounded(value, 2.0**-22 * (2 * x.abs() + y.abs()).double())

    assert_passes(judge("correctness", correct, reference=bounded))
    assert_fails(judge("correctness", lower_precision, reference=bounded), "outside the bound")


def test_inputs_whose_shape_depends_on_the_draw_are_compared_afresh() -> None:
    def ragged(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
        rows = 4 + draw.salt
        return {"x": draw.tensor(rows, 8), "y": draw.tensor(rows, 8)}

    assert_passes(judge("correctness", correct, inputs=ragged))


def test_plain_values_among_the_inputs_reach_kernel_and_reference() -> None:
    def scaled(case: Case, draw: Draw) -> dict[str, object]:
        return {**inputs(case, draw), "scale": 3.0}

    verdict = judge(
        "correctness",
        lambda x, y, scale: correct(x, y) * scale,
        inputs=scaled,
        reference=lambda x, y, scale: reference(x, y) * scale,
    )
    assert_passes(verdict)


def test_a_scalar_result_passes_and_a_wrong_one_fails() -> None:
    fields = {"reference": lambda x, y: x.amax()}
    assert_passes(judge("correctness", lambda x, y: x.amax(), **fields))
    assert_fails(judge("correctness", lambda x, y: x.amin(), **fields))


def test_figures_tell_how_much_of_the_bound_was_used() -> None:
    verdict = judge("correctness", correct)
    assert 0 <= float(verdict.figure("bound_used_max") or 0) <= 1
    assert verdict.figure("mismatches") == 0


def test_a_call_of_sys_exit_in_a_kernel_is_a_failure_not_the_end_of_the_run() -> None:
    assert_fails(judge("correctness", lambda x, y: exit(0)), "raised SystemExit")


def test_implementations_of_one_suite_are_judged_apart() -> None:
    both = {"kernel": Implementation(correct), "other": Implementation(one_nan)}
    assert_passes(judge("correctness", correct, implementations=both))
