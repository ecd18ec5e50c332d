"""Runs one capture case through the lint."""

from __future__ import annotations

import torch

from harness.fake_cuda import CaptureReport, fake_cuda, lint_capture
from harness.tests.fake_cuda.capture_cases import STATE, CaptureCase


def lint_case(case: CaptureCase) -> CaptureReport:
    """In a fresh ``fake_cuda`` and with the cases' state reset, as the GPU runner does in a fresh process."""
    STATE.reset()
    with fake_cuda():
        generators = ()
        if case.registers_generator:
            STATE.generator = torch.Generator(device="cuda")
            generators = (STATE.generator,)
        x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
        report = lint_capture(case.fn, (x,), generators=generators)
    STATE.reset()
    return report
