"""What one sample is: generated classes, the virtual clock, the wall clock, and events behind a backlog."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asv_runner.benchmarks.time import TimeBenchmark

from harness import Case, Cost, Implementation, Suite, grid
from harness.trial import Trial
from harness.worlds import make_world
from suites.benchmarks import measure
from suites.benchmarks.generate import benchmark_class, timed_cases
from suites.benchmarks.virtual_clock import VirtualClock


def suite(call: Any = torch.neg, cases: tuple[Case, ...] = grid(m=[0, 2], k=8), **more: Any) -> Suite:
    return Suite(
        name="neg",
        inputs=lambda case, draw: {"input": draw.tensor(case["m"], case["k"])},
        reference=torch.neg,
        implementations={"torch": Implementation(call), "gpu-only": Implementation(call, worlds=("cuda",))},
        cases=cases,
        cost=lambda case: Cost(bytes=4 * case["m"] * case["k"]),
        **more,
    )


def test_cases_worth_timing() -> None:
    cases = (
        *grid(m=[0, 2], k=8, regime=["zeros", "normal", "nan"]),
        *grid(m=3, k=8, regime=["nan", "zeros"]),
        *grid(m=4, k=8, tier="full"),
        *grid(m=5, k=8, worlds=("cuda",)),
    )
    assert [case.id for case in timed_cases(suite(cases=cases), "cpu")] == ["m2-k8-bf16-normal", "m3-k8-bf16-nan"]
    assert [case["m"] for case in timed_cases(suite(cases=cases), "cuda")] == [2, 3, 5]


def test_a_suite_becomes_an_asv_benchmark_whose_parameter_is_the_case_id() -> None:
    made: Any = benchmark_class(suite(), "cpu", "time_wall")
    assert made.__name__ == "neg"
    assert made.params == [["torch"], ["m2-k8-bf16-normal"]]
    assert benchmark_class(suite(), "cuda", "time_gpu").params[0] == ["torch", "gpu-only"]  # type: ignore[union-attr]
    assert benchmark_class(suite(cases=()), "cpu", "time_wall") is None
    # another way of timing is another version, so asv keeps the histories apart
    assert made.version == measure.CONTRACTS["cpu"].version != measure.CONTRACTS["cuda"].version


def test_asv_reads_the_measured_time_and_not_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.benchmarks.generate.measure", lambda trial: time.sleep(0.02) or 12.5e-6)
    instance: Any = benchmark_class(suite(), "cpu", "time_wall")()  # type: ignore[misc]
    benchmark = TimeBenchmark("cpu.neg.time_wall", instance.time_wall, [instance.time_wall, instance])
    benchmark.set_param_idx(0)
    assert not benchmark.do_setup()
    assert benchmark.do_run() == {"samples": [pytest.approx(12.5e-6)], "number": 1}
    assert benchmark.rounds == 8


def test_a_clock_only_takes_durations() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    assert clock.now() == 2.0
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive and finite"):
            clock.advance(wrong)


def test_the_wall_clock_measures_a_call() -> None:
    def slow(input: torch.Tensor) -> torch.Tensor:
        time.sleep(0.003)
        return input

    trial = Trial(suite(slow), "torch", Case((("m", 2), ("k", 8))), make_world("cpu"))
    assert 0.003 <= measure.measure(trial) < 0.03


class Device:
    """A GPU in virtual time: launches take the host ``launch`` seconds and the device ``kernel`` seconds."""

    def __init__(self, kernel: float, launch: float) -> None:
        self.kernel, self.launch, self.host, self.busy_until = kernel, launch, 0.0, 0.0
        self.batches = 0

    def call(self) -> None:
        self.host += self.launch
        self.busy_until = max(self.busy_until, self.host) + self.kernel

    def synchronize(self) -> None:
        self.host = max(self.host, self.busy_until)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self, stream: Any) -> None:
                # a device that ran dry stamps an event as late as the host sends it
                self.at = max(device.busy_until, device.host)

            def query(self) -> bool:
                return device.host >= self.at

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1e3

        def sleep(cycles: int) -> None:
            device.batches += 1
            device.busy_until = max(device.busy_until, device.host) + cycles / measure.SLEEP_HZ

        stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=self.synchronize)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", sleep)


CUDA = measure.CONTRACTS["cuda"]


@pytest.mark.parametrize(("launch", "batches"), [(5e-6, 1), (0.5e-3, 1), (1e-3, 3), (15e-3, 34)])
def test_a_short_kernel_is_timed_whatever_its_launch_costs(
    monkeypatch: pytest.MonkeyPatch, launch: float, batches: int
) -> None:
    device = Device(kernel=3e-6, launch=launch)
    device.install(monkeypatch)
    assert measure._events(device.call, CUDA) == pytest.approx(3e-6)
    assert device.batches == batches


def test_a_call_that_no_backlog_can_hide_is_an_error_and_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(kernel=3e-6, launch=25e-3)
    device.install(monkeypatch)
    with pytest.raises(RuntimeError, match="or it waits for the device"):
        measure._events(device.call, CUDA)
