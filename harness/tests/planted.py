"""An operation small enough to read at a glance, for planting faults in: ``out = 2 x + y``.

``judge`` runs one gate on one implementation of it, through the same path as every run (``execute``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.case import Case, grid
from harness.execute import execute
from harness.inputs import Draw
from harness.plan import Task
from harness.registry import Registered, _suites
from harness.suite import Contract, Implementation, Suite, Tolerance
from harness.verdict import Status, Verdict

CASE = grid(m=8, k=24, dtype="fp32", regime="normal")[0]

FP32 = Tolerance(rtol=1e-6, atol=1e-6)


def inputs(case: Case, draw: Draw) -> dict[str, Any]:
    return {"x": draw.tensor(case["m"], case["k"]), "y": draw.tensor(case["m"], case["k"])}


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 2.0 * x.double() + y.double()


def correct(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What an honest kernel does: a fresh buffer, every element of it written."""
    out = torch.empty_like(x)
    out.copy_(2 * x + y)
    return out


def make_suite(call: Callable[..., Any], **fields: Any) -> Suite:
    """The suite of the operation with one implementation, ``kernel``; ``fields`` replace fields of the suite."""
    settings: dict[str, Any] = {
        "name": "planted",
        "inputs": inputs,
        "reference": reference,
        "implementations": {"kernel": Implementation(call)},
        "cases": [CASE],
        "tolerance": FP32,
    }
    return Suite(**{**settings, **fields})


def judge(
    gate: str,
    call: Callable[..., Any],
    *,
    case: Case | None = None,
    world: str = "cpu",
    contract: Contract | None = None,
    **fields: Any,
) -> Verdict:
    """The verdict of one gate on ``call``; the registry is left as it was."""
    if contract is not None:
        fields["contract"] = contract
    suite = make_suite(call, **fields)
    before = dict(_suites)
    _suites[suite.name] = Registered(suite, Path(__file__))
    try:
        return execute(Task(Path(__file__), suite.name, "kernel", gate, world, case or suite.cases[0]))
    finally:
        _suites.clear()
        _suites.update(before)


def assert_passes(verdict: Verdict) -> None:
    assert verdict.status is Status.PASS, text_of(verdict)


def assert_fails(verdict: Verdict, *words: str) -> None:
    """FAIL, and the headline or the details say why in these words."""
    assert verdict.status is Status.FAIL, f"{verdict.status} {text_of(verdict)}"
    for word in words:
        assert word in text_of(verdict), f"{word!r} is not said in:\n{text_of(verdict)}"


def text_of(verdict: Verdict) -> str:
    return "\n".join((verdict.reason, verdict.expected, verdict.found, *verdict.details))


SUITE_FILE = """
import torch
from harness import Implementation, Suite, Tolerance, grid, register

def inputs(case, draw):
    return {"x": draw.tensor(case["m"], case["k"]), "y": draw.tensor(case["m"], case["k"])}

def reference(x, y):
    return 2.0 * x.double() + y.double()

def kernel(x, y):
    return 2 * x + y

register(Suite(
    name="axpy",
    inputs=inputs,
    reference=reference,
    implementations={"torch": Implementation(kernel)},
    cases=grid(m=[4, 130], k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
))
"""
"""A whole suite file, for tests that need one on disk; ``broken_suite_file`` is the same with a wrong kernel."""


def broken_suite_file() -> str:
    return SUITE_FILE.replace("return 2 * x + y", "return 2 * x + y + (x.shape[0] > 128)")
