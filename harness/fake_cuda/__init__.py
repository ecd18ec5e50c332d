"""Pretended CUDA on any machine, and a lint for what breaks or poisons a CUDA-graph capture.

    with fake_cuda():
        x = torch.randn(8192, 7168, device="cuda", dtype=torch.bfloat16)
        report = lint_capture(quantize, (x,))
    assert report.verdict == "ok", str(report)

No GPU, no CUDA build and no memory is needed. docs/capture.md says what this proves and what it cannot see.
"""

from harness.fake_cuda.device import DeviceProperties, FakeDevice
from harness.fake_cuda.enter import fake_cuda
from harness.fake_cuda.findings import CaptureReport, Finding, Severity, TensorMeta
from harness.fake_cuda.guard import FakeCudaUnavailable, GuardKind
from harness.fake_cuda.lint import lint_capture
from harness.fake_cuda.to_fake import to_fake

__all__ = [
    "CaptureReport",
    "DeviceProperties",
    "FakeCudaUnavailable",
    "FakeDevice",
    "Finding",
    "GuardKind",
    "Severity",
    "TensorMeta",
    "fake_cuda",
    "lint_capture",
    "to_fake",
]
