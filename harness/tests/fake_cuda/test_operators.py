"""Custom operators: looked into where they are Python, refused without a fake where they are not."""

from __future__ import annotations

import ctypes

import pytest
import torch

from harness.fake_cuda import GuardKind, Severity, fake_cuda, lint_capture
from harness.fake_cuda.pretend_pointer import NoMemoryError
from harness.memory import PeakTracker

_library = torch.library.Library("lint_tests", "DEF")
_library.define("no_fake(Tensor x) -> Tensor")
_library.define("with_fake(Tensor x) -> Tensor")
_library.define("unsafe(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
for _name in ("with_fake", "unsafe"):
    torch.library.register_fake(f"lint_tests::{_name}", torch.empty_like)


@torch.library.custom_op("lint_tests::copies_inside", mutates_args=())
def copies_inside(x: torch.Tensor) -> torch.Tensor:
    return x * torch.ones(8).to(x.device)  # composite: `.to` reaches a mode whole when called from inside one


@torch.library.custom_op("lint_tests::for_cuda", mutates_args=(), device_types="cuda")
def for_cuda(x: torch.Tensor) -> torch.Tensor:
    return x * x.amax().item()


for_cuda.register_fake(torch.empty_like)


@torch.library.custom_op("lint_tests::adds_into", mutates_args=("y",))
def adds_into(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x)


@torch.library.custom_op("lint_tests::launches", mutates_args=("out",))
def launches(x: torch.Tensor, out: torch.Tensor) -> None:
    if out.shape != x.shape:
        raise ValueError("out has the wrong shape")
    scratch = x.float()
    ctypes.c_void_p(int(scratch.data_ptr()))  # what a launch needs


@torch.library.custom_op("lint_tests::prints", mutates_args=())
def prints(x: torch.Tensor) -> torch.Tensor:
    str(x)
    return x * 2


@pytest.fixture
def x():
    with fake_cuda():
        yield torch.randn(8, 8, device="cuda")


def test_compiled_operator_without_a_fake_is_an_error_that_says_what_to_do(x):
    report = lint_capture(torch.ops.lint_tests.no_fake, (x,))
    assert report.verdict == "error"
    assert {finding.rule for finding in report.of(Severity.ERROR)} == {"no-fake"}
    assert "register_fake" in str(report)


def test_swallowing_the_refusal_does_not_hide_it(x):
    def swallows(x):
        try:
            return torch.ops.lint_tests.no_fake(x)
        except Exception:
            return x * 2

    assert lint_capture(swallows, (x,)).verdict == "error"


def test_compiled_operator_with_a_fake_passes_with_a_note(x):
    report = lint_capture(torch.ops.lint_tests.with_fake, (x,))
    assert report.verdict == "ok"
    assert {finding.rule for finding in report.of(Severity.NOTE)} == {"opaque"}


def test_operator_tagged_unsafe_is_a_break(x):
    report = lint_capture(torch.ops.lint_tests.unsafe, (x,))
    assert {finding.rule for finding in report.of(Severity.BREAK)} == {"declared-unsafe"}


def test_python_operator_is_looked_into_composites_included(x):
    report = lint_capture(copies_inside, (x,))
    assert {finding.rule for finding in report.of(Severity.BREAK)} == {"host-to-device"}
    assert "aten._to_copy.default" in report.op_trace


def test_python_operator_that_mutates_is_followed(x):
    report = lint_capture(adds_into, (x, torch.zeros(8, 8, device="cuda")))
    assert report.verdict == "ok"
    assert report.op_trace == ("aten.add_.Tensor",)


def test_kernel_for_cuda_alone_is_looked_into_without_a_gpu_and_never_with_one(x, monkeypatch):
    from harness.fake_cuda.device import active_device

    assert lint_capture(for_cuda, (x,)).verdict == "break"
    monkeypatch.setattr(active_device(), "guard", GuardKind.REAL)
    report = lint_capture(for_cuda, (x,))
    assert report.verdict == "ok"
    assert {finding.rule for finding in report.findings} == {"opaque"}


def test_tracker_sees_temporaries_of_python_operators_and_marks_compiled_ones(x):
    with PeakTracker((x,)) as tracker:
        torch.ops.lint_tests.with_fake(x)
    assert tracker.report().lower_bound
    with PeakTracker((x,)) as tracker:
        adds_into(x, torch.zeros(8, 8, device="cuda"))
    assert not tracker.report().lower_bound


def test_operator_that_launches_is_followed_up_to_the_launch(x):
    report = lint_capture(launches, (x, torch.empty_like(x)))
    assert report.verdict == "ok"
    assert {finding.rule for finding in report.of(Severity.NOTE)} == {"opaque"}
    assert report.op_trace == ("lint_tests.launches.default",)
    with PeakTracker((x,)) as tracker:
        launches(x, torch.empty_like(x))
    assert tracker.report().unmodelled_ops == ("lint_tests.launches.default (compiled code)",)


def test_python_calls_inside_operators_are_seen(x):
    report = lint_capture(prints, (x,))
    assert {finding.rule for finding in report.of(Severity.BREAK)} == {"host-sync"}


def test_errors_of_the_operator_itself_are_not_taken_for_a_launch(x):
    report = lint_capture(launches, (x, torch.empty(3, device="cuda")))
    assert report.verdict == "error"
    assert "wrong shape" in str(report)


def test_a_launch_outside_an_operator_is_an_error_with_advice(x):
    report = lint_capture(lambda x: ctypes.c_void_p(int(x.data_ptr())), (x,))
    assert {finding.rule for finding in report.of(Severity.ERROR)} == {"launch-not-followed"}
    assert "register_fake" in str(report)


def test_pretended_memory_reaches_no_kernel(x):
    with pytest.raises(NoMemoryError):
        x.__dlpack__()
    with pytest.raises(NoMemoryError):
        int(torch.cuda.current_stream().cuda_stream)
    tvm_ffi = pytest.importorskip("tvm_ffi")
    with pytest.raises((ValueError, BufferError)):
        tvm_ffi.from_dlpack(x)


def test_cuda_core_is_refused_inside_and_back_outside():
    core = pytest.importorskip("cuda.core")
    program = core.Program
    with fake_cuda(), pytest.raises(NoMemoryError):
        core.Program("code", "c++")
    assert core.Program is program


def test_pointers_answer_alignment_and_aliasing(x):
    y = torch.empty_like(x)
    assert x.data_ptr() % 256 == 0
    assert x.data_ptr() == x.view(-1).data_ptr()
    assert x.data_ptr() != y.data_ptr()
    assert x[0, 1:].data_ptr() % 16 == 4
    assert x[1].data_ptr() - x.data_ptr() == 32
    assert x[0, 1:].data_ptr() & 15
