"""Fake CUDA tensors: full-size shapes on any machine. Capture and memory are predicted, values do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from harness.worlds.base import Call, CaptureAnswer, MemoryAnswer, World


class FakeCudaWorld(World):
    name: ClassVar[str] = "fake-cuda"
    device: ClassVar[str] = "cuda"
    fake: ClassVar[bool] = True

    @contextmanager
    def active(self) -> Iterator[None]:
        # imported on first use: fake tensors pull in symbolic shapes, which a run on real tensors never needs
        from harness.fake_cuda import fake_cuda

        with fake_cuda():
            yield

    def capture(self, call: Call, inputs: dict[str, Any]) -> CaptureAnswer:
        from harness.fake_cuda import lint_capture

        report = lint_capture(call, (), {}, static=tuple(inputs.values()))
        by_severity: dict[str, list[str]] = {}
        for finding in report.findings:
            by_severity.setdefault(str(finding.severity), []).append(
                f"{finding.what} [{finding.rule}] at {finding.where}"
            )
        if report.verdict == "error":
            by_severity.setdefault("break", []).extend(by_severity.pop("error", ["the call cannot be analysed"]))
        return CaptureAnswer(
            breaks=tuple(by_severity.get("break", ())),
            hazards=tuple(by_severity.get("hazard", ())),
            notes=tuple(by_severity.get("note", ())),
            ran=report.op_trace,
            predicted=True,
        )

    def memory(self, build: Callable[[], Call], *, ledgers: bool = True) -> MemoryAnswer:
        from harness.memory import PeakTracker

        call = build()
        call()  # what a first call caches for good is not part of the peak of a warm one
        with PeakTracker(_held(call)) as tracker:
            result = call()
            report = tracker.report()
            del result
            growth = 0
            if ledgers:
                held = tracker.report().end_bytes
                for _ in range(2):
                    call()
                growth = tracker.report().end_bytes - held
        return MemoryAnswer(
            inputs=report.start_bytes,
            requested=report.requested_peak_bytes,
            allocated=report.peak_bytes,
            growth=growth,
            at=report.at_op,
            alive=tuple(str(item) for item in report.alive_at_peak[:6]),
            lower_bound=report.unmodelled_ops if report.lower_bound else (),
            predicted=True,
        )


def _held(call: Call) -> Any:
    """The inputs a bound call holds on to: what is in memory before it starts."""
    return [cell.cell_contents for cell in call.__closure__ or ()]
