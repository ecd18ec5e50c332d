"""The coverage and guard gates against kernels that leave, reach and change memory they should not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.case import Case, grid
from harness.inputs import Draw
from harness.suite import Contract
from harness.tests.planted import assert_fails, assert_passes, correct, judge
from harness.verdict import Status

OUT = Contract(out=True)


def poke(tensor: torch.Tensor, offset: int, value: int = 0x11) -> None:
    """Write one byte at an offset from a tensor's first byte, as a kernel with a wrong bound does."""
    ctypes.memset(tensor.data_ptr() + offset, value, 1)


def peek(tensor: torch.Tensor, offset: int) -> int:
    return ctypes.string_at(tensor.data_ptr() + offset, 1)[0]


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def tail_unwritten(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out.view(-1)[:-3] = (2 * x + y).view(-1)[:-3]
    return out


def one_element_unwritten(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = correct(x, y)
    fresh = torch.empty_like(x)
    fresh[:, :7] = out[:, :7]
    fresh[:, 8:] = out[:, 8:]
    fresh[1:, 7] = out[1:, 7]
    return fresh


def accumulates_into_fresh_memory(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).mul_(0).add_(2 * x + y)  # 0 * NaN


def scratch_read_before_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scratch = torch.empty(4)
    return 2 * x + y + torch.nan_to_num(scratch[3]) * 1e-30


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (tail_unwritten, "elements were never written, 3 of 192, the first at [7, 21]"),
        (one_element_unwritten, "1 of 192, the first at [0, 7]"),
        (lambda x, y: torch.empty_like(x), "192 of 192"),
        (accumulates_into_fresh_memory, "depends on what fresh memory held"),
        (scratch_read_before_written, "depends on what fresh memory held"),
    ],
    ids=["tail", "one element", "nothing written", "accumulated", "scratch"],
)
def test_coverage_catches_what_was_not_written(kernel: Callable[..., Any], words: str) -> None:
    assert_fails(judge("coverage", kernel), words)


def test_coverage_looks_inside_custom_operators_in_python() -> None:
    @torch.library.custom_op("harness_test::tail", mutates_args=())
    def tail(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tail_unwritten(x, y)

    assert_fails(judge("coverage", tail), "3 of 192")


def test_coverage_names_operators_it_cannot_look_into() -> None:
    library = torch.library.Library("harness_test_coverage", "DEF")
    library.define("axpy(Tensor x, Tensor y) -> Tensor")
    library.impl("axpy", correct, "CPU")
    verdict = judge("coverage", torch.ops.harness_test_coverage.axpy)
    assert_passes(verdict)
    assert any("harness_test_coverage.axpy" in line for line in verdict.details)


def test_coverage_finds_an_unwritten_element_also_in_a_nondeterministic_kernel() -> None:
    contract = Contract(deterministic=False)
    assert_fails(judge("coverage", tail_unwritten, contract=contract), "3 of 192")
    assert_passes(judge("coverage", lambda x, y: correct(x, y) + torch.rand(1) * 1e-9, contract=contract))


def with_out(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return correct(x, y)
    return out.copy_(2 * x + y)


def out_ignored(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return correct(x, y)


def out_partly_written(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return correct(x, y)
    out[:-1] = (2 * x + y)[:-1]
    return out


def out_read(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return correct(x, y)
    return out.mul_(0).add_(2 * x + y)


def out_overrun(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return correct(x, y)
    poke(out, size(out))
    return out.copy_(2 * x + y)


def other_bits_with_out(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return correct(x, y) if out is None else out.copy_((2 * x.double() + y.double() * (1 + 1e-6)).float())


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (out_ignored, "out= was given, and another tensor was returned"),
        (out_partly_written, "out= out: elements were never written, 24 of 192"),
        (out_read, "out= out depends on what fresh memory held"),
        (out_overrun, "out out: 1 bytes after it"),
        (other_bits_with_out, "out= out differs from the result without it"),
        (lambda x, y: correct(x, y), "TypeError"),
    ],
    ids=["ignored", "partly written", "read", "overrun", "other bits", "not taken"],
)
def test_coverage_holds_out_to_its_promise(kernel: Callable[..., Any], words: str) -> None:
    assert_fails(judge("coverage", kernel, contract=OUT), words)


@pytest.mark.parametrize("m", [0, 1, 8])
def test_coverage_passes_an_honest_out(m: int) -> None:
    assert_passes(judge("coverage", with_out, contract=OUT, cases=grid(m=m, k=24, dtype="fp32")))


def test_coverage_passes_several_outputs_given_in_their_order() -> None:
    def two(x: torch.Tensor, y: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        total, largest = out or (torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.float64))
        return total.copy_(2 * x + y), largest.copy_(x.double().amax(-1))

    fields = {"outputs": ("total", "largest"), "reference": two}
    assert_passes(judge("coverage", two, contract=OUT, **fields))
    assert_fails(judge("coverage", lambda x, y, out=None: two(x, y, out and out[::-1]), contract=OUT, **fields))


def codes(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
    return {"x": draw.integers(0, 256, case["m"], case["k"], dtype="u8")}


def test_coverage_does_not_mistake_data_for_poison() -> None:
    def reversed_codes(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(255 - x)

    def constant_codes(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        return out.fill_(0xFF)  # the very byte of a poison

    for kernel in (reversed_codes, constant_codes):
        assert_passes(judge("coverage", kernel, inputs=codes, reference=kernel))


# ---- guard


def writes(offset_of: Callable[[torch.Tensor], int], which: str) -> Callable[..., torch.Tensor]:
    """A kernel right in its values that writes one stray byte beside one of its tensors."""

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = correct(x, y)
        target = {"x": x, "y": y, "out": out}[which]
        poke(target, offset_of(target))
        return out

    return kernel


@pytest.mark.parametrize("which", ["x", "y", "out"])
@pytest.mark.parametrize(
    ("offset_of", "side"),
    [
        (lambda t: -1, "before it, the nearest 0 bytes"),
        (lambda t: -4000, "before it, the nearest 3999 bytes"),
        (size, "after it, the nearest 0 bytes"),
        (lambda t: size(t) + 4000, "after it, the nearest 4000 bytes"),
    ],
    ids=["just before", "far before", "just after", "far after"],
)
def test_guard_catches_a_stray_byte(which: str, offset_of: Callable[[torch.Tensor], int], side: str) -> None:
    label = "allocation 0" if which == "out" else f"input {which}"
    assert_fails(judge("guard", writes(offset_of, which)), label, side)


@pytest.mark.parametrize("k", [5, 7])
def test_guard_catches_a_byte_behind_a_tensor_that_is_no_multiple_of_16_bytes(k: int) -> None:
    assert_fails(judge("guard", writes(size, "out"), cases=grid(m=1, k=k, dtype="fp32")), "allocation 0", "after it")


def test_guard_catches_a_stray_byte_beside_a_workspace() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        workspace = torch.empty(3, dtype=torch.int32)
        poke(workspace, size(workspace))
        return correct(x, y)

    assert_fails(judge("guard", kernel), "allocation 0 (3,) int32")


def test_guard_catches_a_write_that_looks_like_a_canary() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = correct(x, y)
        poke(out, size(out), 0xA5)
        return out

    assert_fails(judge("guard", kernel), "after it")


@pytest.mark.parametrize("offset", [-1, 192 * 4, 192 * 4 + 1000])
def test_guard_catches_a_read_beside_an_input(offset: int) -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y + float(peek(x, offset))

    assert_fails(judge("guard", kernel), "an out-of-bounds read")


def test_guard_catches_a_changed_input() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = correct(x, y)
        x[0, 0] += 1
        return out

    assert_fails(judge("guard", kernel), "input x was changed by the call")
    assert_fails(judge("guard", kernel, contract=Contract(mutates=("y",))), "input x was changed by the call")


def test_guard_passes_an_operation_in_place_that_says_so() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).add_(y)

    assert_passes(judge("guard", kernel, contract=Contract(mutates=("x",))))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64", "e4m3"])
@pytest.mark.parametrize("shape", [(0, 24), (1, 1), (8, 24), (3, 7)])
def test_guard_passes_honest_kernels_of_every_shape_and_dtype(dtype: str, shape: tuple[int, int]) -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (2 * x.float() + y.float()).to(x.dtype)

    verdict = judge("guard", kernel, cases=grid(m=shape[0], k=shape[1], dtype=dtype))
    assert_passes(verdict)
    assert int(verdict.figure("guarded_a5") or 0) >= 2


def test_guard_keeps_the_strides_of_the_inputs() -> None:
    seen = []

    def strided(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
        wide = draw.tensor(8, 48)
        return {"x": wide[:, ::2], "y": draw.tensor(24).expand(8, 24)}

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append((x.stride(), y.stride()))
        return 2 * x + y

    assert_passes(judge("guard", kernel, inputs=strided))
    assert set(seen) == {((48, 2), (0, 1))}


def test_guard_lets_values_between_the_rows_of_a_view_be() -> None:
    """The gap of a strided input belongs to somebody else: reading it is a fault only where it shows."""

    def strided(case: Case, draw: Draw) -> dict[str, torch.Tensor]:
        return {"x": draw.tensor(8, 48)[:, :24], "y": draw.tensor(8, 24)}

    def writes_the_gap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = 2 * x + y
        poke(x, 24 * 4)
        return out

    assert_fails(judge("guard", writes_the_gap, inputs=strided), "input x was changed by the call")


def test_no_gate_passes_a_kernel_it_could_not_call() -> None:
    for gate in ("correctness", "coverage", "guard", "arguments", "determinism", "recompile"):
        verdict = judge(gate, lambda x: x)
        assert verdict.status is Status.FAIL, gate
