"""Predicted peaks against a GPU's, and against the CPU's own allocator."""

from __future__ import annotations

import gc

import pytest
import torch

from harness.fake_cuda import fake_cuda
from harness.memory import PeakTracker
from harness.tests.memory.measure_peak_truth import predict
from harness.tests.memory.peak_cases import CASES, load_truth

TRUTH = load_truth()["cases"]
MEASURED = [name for name, entry in TRUTH.items() if entry["allocated"] is not None]
MiB = 1 << 20


@pytest.mark.parametrize("name", MEASURED)
def test_predicted_peak_is_the_measured_one(name):
    with fake_cuda():
        report = predict(CASES[name])
    measured = TRUTH[name]["allocated"]
    if CASES[name].exact:
        assert abs(report.peak_bytes - measured) <= 2048
    else:
        assert report.peak_bytes <= measured
        assert report.lower_bound


def test_all_six_required_figures_are_there():
    assert len(MEASURED) >= 6
    assert set(TRUTH) == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.exact])
def test_operators_with_hidden_temporaries_are_marked(name):
    with fake_cuda():
        report = predict(CASES[name])
    assert report.lower_bound
    assert report.unmodelled_ops
    assert "at least" in str(report)


def test_plain_operators_are_not_marked():
    with fake_cuda():
        assert not predict(CASES["swiglu 8192x4096"]).lower_bound
        assert not predict(CASES["matmul 8192x7168x2048"]).lower_bound


def test_split_reductions_take_what_was_measured_on_an_h200():
    """amax of bf16: 528 blocks of 2 B and a counter; sum: 4 B each. 2,048 and 3,072 B over operands and result."""
    with fake_cuda():
        amax, total = predict(CASES["full amax 8192x7168"]), predict(CASES["full sum 8192x7168"])
    operands = 8192 * 7168 * 2 + 512
    assert amax.peak_bytes - operands == 2048
    assert total.peak_bytes - operands == 3072
    with fake_cuda(sm_count=1):
        assert predict(CASES["full amax 8192x7168"]).peak_bytes < amax.peak_bytes + 1


def test_a_short_reduction_is_not_split():
    def peak(elements):
        x = torch.empty(elements, device="cuda")
        with PeakTracker((x,)) as tracker:
            x.sum()
        return tracker.report().peak_bytes - elements * 4

    with fake_cuda():
        assert peak(512 * 255) == 512  # the result
        assert peak(512 * 256) == 512 + 512 + 512  # 16 blocks of 4 B, and a counter


@pytest.mark.parametrize(
    ("shape", "dim", "marked"),
    [((4096, 7168), -1, False), ((64, 1 << 18), -1, True), ((7168, 64), 0, True), ((128, 7168), 0, False)],
)
def test_reductions_that_may_be_split_are_marked(shape, dim, marked):
    with fake_cuda():
        x = torch.empty(shape, device="cuda")
        with PeakTracker((x,)) as tracker:
            x.amax(dim)
        assert tracker.report().lower_bound is marked


def test_the_cublas_workspace_is_in_reserved_only():
    with fake_cuda():
        report = predict(CASES["matmul 8192x7168x2048"])
    assert report.reserved_peak_bytes - report.peak_bytes >= 32 * MiB
    assert report.peak_bytes == (8192 * 7168 + 7168 * 2048 + 8192 * 2048) * 2


def test_report_says_what_was_alive_and_where():
    with fake_cuda():
        report = predict(CASES["quantise by distance 8192x7168"])
    assert report.at_op == "aten.abs.default"
    largest = report.alive_at_peak[:2]
    assert {alive.op for alive in largest} == {"aten.sub.Tensor", "aten.abs.default"}
    assert all(alive.bytes == 1792 * MiB for alive in largest)
    assert report.start_bytes == 112 * MiB + 2 * 512


def test_lifetimes_end_when_the_last_view_dies():
    with fake_cuda():
        x = torch.empty(MiB, device="cuda", dtype=torch.uint8)
        with PeakTracker((x,)) as tracker:
            y = x + 1
            view = y[:10]
            del y
            assert tracker.report().end_bytes == 2 * MiB
            del view
            assert tracker.report().end_bytes == MiB
            z = x + 1
        report = tracker.report()
        assert report.peak_bytes == 2 * MiB
        assert report.end_bytes == 2 * MiB
        del z
        assert tracker.report().end_bytes == MiB


def test_a_reference_cycle_keeps_memory_alive():
    def cyclic(x):
        holder = {"y": x + 1}
        holder["self"] = holder

    gc.collect()
    gc.disable()
    try:
        with fake_cuda():
            x = torch.empty(MiB, device="cuda", dtype=torch.uint8)
            with PeakTracker((x,)) as tracker:
                cyclic(x)
                cyclic(x)
            assert tracker.report().end_bytes == 3 * MiB
    finally:
        gc.enable()


def test_growth_over_repeats_shows_in_end_bytes():
    kept = []
    with fake_cuda():
        x = torch.empty(1000, device="cuda")
        with PeakTracker((x,)) as tracker:
            for _ in range(4):
                kept.append(x * 2)
        assert tracker.report().end_bytes - tracker.report().start_bytes == 4 * 4096
        kept.clear()
        assert tracker.report().end_bytes == tracker.report().start_bytes


@torch.library.custom_op("peak_tests::through_float", mutates_args=())
def through_float(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * 2).to(x.dtype)


through_float.register_fake(torch.empty_like)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_temporaries_inside_python_operators_count(device):
    def run(device):
        x = torch.zeros(1 << 20, dtype=torch.bfloat16, device=device)
        with PeakTracker((x,)) as tracker:
            through_float(x)
        return tracker.report()

    if device == "cpu":
        report = run(device)
    else:
        with fake_cuda():
            report = run(device)
    assert report.requested_peak_bytes == (2 + 4 + 4) * MiB
    assert not report.lower_bound


def test_on_real_cpu_tensors_plain_bytes_are_counted_and_results_are_right():
    x = torch.randn(64, 64)
    with PeakTracker((x,)) as tracker:
        y = (x + 1) * 2
    report = tracker.report()
    torch.testing.assert_close(y, (x + 1) * 2)
    assert report.start_bytes == 64 * 64 * 4
    assert report.peak_bytes == report.requested_peak_bytes == report.reserved_peak_bytes == 3 * 64 * 64 * 4


def test_cpu_figure_is_what_the_cpu_allocator_reports():
    """torch's profiler sees every allocation of the CPU allocator; their running sum must peak where ours does."""

    def work(x):
        y = x.float() * 2
        z = y.softmax(-1)
        del y
        return (z + z.amax(-1, keepdim=True)).to(x.dtype)

    x = torch.randn(128, 256).to(torch.bfloat16)
    with PeakTracker((x,)) as tracker:
        work(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work(x)
    running = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            running += event.nbytes()
            peak = max(peak, running)
    report = tracker.report()
    assert report.requested_peak_bytes - report.start_bytes == peak


def test_inside_fake_cuda_host_tensors_do_not_count():
    with fake_cuda():
        x = torch.empty(1024, device="cuda")
        with PeakTracker((x,)) as tracker:
            torch.empty(1 << 20)
            torch.ones(1 << 20).to("cuda")
        assert tracker.report().peak_bytes == 4096 + 4 * MiB
