"""The arguments gate: the right result or a clear error, never a third way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.case import Case, grid
from harness.inputs import Draw
from harness.suite import Contract, Tolerance
from harness.tests.planted import FP32, assert_fails, assert_passes, correct, judge, reference
from harness.verdict import Verdict

STRIDED = Contract(rows=("x", "y"), strided=("x", "y"))


def linear(tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind a tensor read as if it were contiguous, as a kernel does that ignores strides."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if room < tensor.numel():
        return tensor.contiguous()
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride(), tensor.storage_offset())


def ignores_strides(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return correct(linear(x), y)


def wrong_when_misaligned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    skew = x.data_ptr() % 16 // x.element_size()
    return correct(x.roll(skew), y)


TABLE = {torch.float32: 2.0, torch.float64: 2.0}


def table_by_dtype(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return TABLE[x.dtype] * x + y


def reinterprets_integers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.view(torch.float32) if x.dtype is torch.int32 else x
    return (2 * x + y).to(torch.float32)


def divides_by_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    block = 64 // x.shape[0]
    return 2 * x + y + 0 * block


def accumulates_into_x_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Right unless x and y share memory."""
    out = x.clone()
    if x.data_ptr() == y.data_ptr():
        out.zero_()
    return 2 * out + y


def asserts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert x.is_contiguous()
    return 2 * x + y


def empty_message(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_contiguous():
        raise ValueError
    return 2 * x + y


def device_error(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.data_ptr() % 16:
        raise RuntimeError("CUDA error: misaligned address")
    return 2 * x + y


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (ignores_strides, ("x sliced from wider rows",)),
        (wrong_when_misaligned, ("x at a storage offset of one element",)),
        (table_by_dtype, ("x as int32: fails by accident", "KeyError")),
        (reinterprets_integers, ("x as int32",)),
        (divides_by_rows, ("zero rows: fails by accident", "ZeroDivisionError")),
        (accumulates_into_x_first, ("x and y the same tensor",)),
        (asserts, ("fails by accident", "AssertionError")),
        (empty_message, ("fails by accident", "(no message)")),
        (device_error, ("fails by accident", "CUDA error: misaligned address")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fault_is_caught(kernel: Callable[..., Any], words: tuple[str, ...]) -> None:
    assert_fails(judge("arguments", kernel, contract=Contract(rows=("x", "y"))), *words)


LABELS = (
    "sliced from wider rows",
    "at a storage offset of one element",
    "transposed in memory",
    "every second row",
    "expanded along the first axis",
    "every second element",
)


@pytest.mark.parametrize("argument", ["x", "y"])
@pytest.mark.parametrize("label", LABELS)
def test_each_layout_of_each_argument_is_tried(argument: str, label: str) -> None:
    """A kernel wrong in one layout of one argument fails with just that label."""

    def layout(tensor: torch.Tensor) -> str:
        m, k = tensor.shape
        if tensor.stride(0) == 0:
            return LABELS[4]
        known = {(k + 3, 1): LABELS[0], (1, m): LABELS[2], (2 * k, 1): LABELS[3], (2 * k, 2): LABELS[5]}
        found = known.get(tuple(tensor.stride()), "")
        return LABELS[1] if not found and tensor.storage_offset() == 1 else found

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        wrong = layout({"x": x, "y": y}[argument]) == label
        return 2 * x + y + (1.0 if wrong else 0.0)

    verdict = judge("arguments", kernel)
    assert_fails(verdict, f"{argument} {label}")
    assert "more" not in verdict.reason


def honest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for name, value in (("x", x), ("y", y)):
        if value.dtype is not torch.float32:
            raise TypeError(f"{name}: expected float32, got {value.dtype}")
    return torch.empty(x.shape).copy_(2 * x + y)


def picky(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_contiguous() or x.data_ptr() % 16 or not y.is_contiguous() or y.data_ptr() % 16:
        raise ValueError("x and y must be contiguous and 16-byte aligned; call .contiguous() first")
    if x.shape[0] == 0:
        raise NotImplementedError("an empty batch")
    return honest(x, y)


def test_a_kernel_that_takes_every_layout_passes_and_says_what_it_refused() -> None:
    verdict = judge("arguments", honest, contract=STRIDED)
    assert_passes(verdict)
    assert verdict.figure("refused") == 4, "two dtypes of two arguments"
    assert any("x as int32: TypeError: x: expected float32" in line for line in verdict.details)


def test_a_kernel_that_refuses_clearly_passes_unless_the_contract_promises_strides() -> None:
    assert_passes(judge("arguments", picky, contract=Contract(rows=("x", "y"))))
    verdict = judge("arguments", picky, contract=STRIDED)
    assert_fails(verdict, "promised by the contract, and refused", "the right result", "ValueError")


def test_other_bits_in_another_layout_pass_when_they_are_right_by_the_reference() -> None:
    def by_layout(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = 2 * x + y
        return out if x.is_contiguous() else out * (1 + 2.0**-23)

    assert_passes(judge("arguments", by_layout))
    assert_fails(judge("arguments", by_layout, tolerance=Tolerance(rtol=1e-9)), "x sliced from wider rows")


def test_a_kernel_that_accepts_other_dtypes_is_held_to_the_reference() -> None:
    def promoting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    assert_passes(judge("arguments", promoting))

    def truncating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x.to(torch.float32) + y + (0.5 if x.dtype is torch.float64 else 0.0)

    assert_fails(judge("arguments", truncating), "x as float64")


def test_accepting_what_the_reference_cannot_compute_is_a_failure() -> None:
    def strict(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            raise TypeError("floats only")
        return reference(x, y)

    verdict = judge("arguments", lambda x, y: 2 * x + y, reference=strict)
    assert_fails(verdict, "x as int32: accepted what the reference cannot compute", "TypeError: floats only")


def only_x(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
    return {"x": draw.integers(0, 100, case["m"], case["k"], dtype=case.dtype)}


def judge_copy(dtype: str, m: int = 4, k: int = 16, kernel: Callable[..., Any] = torch.clone) -> Verdict:
    """The gate on a copy, so that every layout of every dtype can be passed."""
    return judge(
        "arguments",
        lambda x: kernel(x),
        inputs=only_x,
        reference=lambda x: x.clone(),
        cases=grid(m=m, k=k, dtype=dtype),
        contract=Contract(strided=("x",)),
        tolerance=Tolerance.bitwise(),
    )


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "i64", "i32", "u8"])
def test_layouts_can_be_made_of_every_dtype(dtype: str) -> None:
    assert_passes(judge_copy(dtype))


@pytest.mark.parametrize(("m", "k"), [(0, 16), (1, 1), (1, 16), (16, 1)])
def test_degenerate_shapes_are_judged(m: int, k: int) -> None:
    assert_passes(judge_copy("fp32", m, k))


def test_a_vector_and_a_scalar_argument_are_judged_too() -> None:
    def scaled(case: Case, draw: Draw) -> dict[str, Any]:
        return {"x": draw.tensor(5), "scale": draw.full(2.0), "times": 2}

    verdict = judge(
        "arguments",
        lambda x, scale, times: x * scale * times,
        inputs=scaled,
        reference=lambda x, scale, times: x.double() * scale.double() * times,
        tolerance=FP32,
    )
    assert_passes(verdict)
    assert_fails(
        judge(
            "arguments",
            lambda x, scale, times: x * scale.view(torch.float32) * times,
            inputs=scaled,
            reference=lambda x, scale, times: x.double() * scale.double() * times,
            tolerance=FP32,
        ),
        "scale as int32",
    )


def test_a_plain_call_that_raises_is_a_failure_before_any_variant() -> None:
    def never(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ValueError("x must be on a GPU")

    assert_fails(judge("arguments", never), "raised ValueError: x must be on a GPU")


def test_index_arguments_are_passed_as_the_other_integer_width() -> None:
    def indexed(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
        return {"x": draw.tensor(6, 4), "index": draw.integers(0, 6, 4, dtype="i64")}

    def reads_64_bits(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index.view(torch.int64).clamp(0, 5)]

    fields = {"inputs": indexed, "reference": lambda x, index: x[index.long()], "tolerance": FP32}
    assert_passes(judge("arguments", lambda x, index: x[index], **fields))
    assert_fails(judge("arguments", reads_64_bits, **fields), "index as int32")
