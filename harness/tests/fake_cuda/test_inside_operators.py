"""The same verdicts when the code is the kernel of a custom operator, where the dispatcher works differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.tests.fake_cuda.capture_cases import CASES, CaptureCase
from harness.tests.fake_cuda.lint_case import lint_case

_current: list[Callable[[torch.Tensor], Any]] = []


@torch.library.custom_op("inside_operators::run", mutates_args=())
def run(x: torch.Tensor) -> torch.Tensor:
    _current[-1](x)
    return x.clone()


run.register_fake(torch.empty_like)

RUNNABLE = [case for case in CASES.values() if case.missing() is None and not case.name.startswith("custom_op")]


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_verdict_inside_an_operator_is_the_same(case: CaptureCase):
    _current.append(case.fn)
    try:
        report = lint_case(CaptureCase(case.name, run, case.label, case.registers_generator))
    finally:
        _current.pop()
    assert report.verdict == case.label, str(report)
