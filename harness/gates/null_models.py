"""Whether a comparison could have failed at all: answers without work, and references that say nothing.

Every doubt makes the verdict INVALID: the implementation may be right, and this case cannot show it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.case import DEFAULT_REGIME
from harness.compare import would_pass
from harness.gates.base import stands_for_shape
from harness.suite import Inputs
from harness.trial import Trial, same_bits, tensors_of, value_of
from harness.verdict import Findings

_LOOKED_AT = 8
"""Other cases of a suite that may still show what one case cannot."""

_SMALL = 1 << 20
"""Elements of inputs up to which another case is made just to look at it."""


def null_models(
    trial: Trial, inputs: Inputs, stale: dict[str, Any], expected: dict[str, Any], findings: Findings
) -> None:
    """Answers without work (zeros, a constant, an input, the previous result) must not pass under the tolerance.

    One that happens to be exactly the reference is no evidence (an all-zero input has an all-zero result); one
    that passes without being it means that this case with this tolerance could not have failed.
    """
    for name, reference in expected.items():
        value = value_of(reference)
        if value.numel() < 2:
            continue
        models = {
            "zeros": torch.zeros_like(value),
            "a constant": torch.full_like(value.double(), _mean(value)).to(value.dtype),
            "the previous result": value_of(stale[name]),
        }
        for argument, tensor in tensors_of(inputs).items():
            if tensor.shape == value.shape and tensor.is_floating_point():
                models[f"the input {argument}"] = tensor.to(value.dtype)
        for label, model in models.items():
            if model.shape != value.shape or same_bits(model, value) or torch.equal(model, value):
                continue
            if would_pass(model, reference, trial.suite.tolerance_of(name)):
                findings.doubt(f"{name}: {label} would pass too, so this case cannot fail: tighten the tolerance")


def _mean(value: torch.Tensor) -> float:
    finite = value.double()[torch.isfinite(value.double())]
    return float(finite.mean()) if finite.numel() else 0.0


def doubt_oracle(
    trial: Trial, inputs: tuple[Inputs, Inputs], expected: tuple[dict[str, Any], dict[str, Any]], findings: Findings
) -> None:
    """Doubt a reference that is the kernel itself, is NaN throughout, or cannot depend on what is computed."""
    if _function(trial.suite.reference) is _function(trial.impl.call):
        findings.doubt("the reference is the implementation: what they share cannot be seen")
    finite = all(
        bool(torch.isfinite(value.double()).all()) for value in tensors_of(inputs[0]).values() if _is_real(value)
    )
    for name, reference in expected[0].items():
        value = value_of(reference)
        if finite and value.numel() and _is_real(value) and bool(torch.isnan(value.double()).all()):
            findings.doubt(f"{name}: the reference is NaN in every element although every input is finite")
    if not (stands_for_shape(trial.suite, trial.case) and trial.case.regime == DEFAULT_REGIME):
        return
    for blind, what in (
        (_constant, "the reference is one constant in every case, so a kernel that computes nothing is right"),
        (_equal_rows, "inputs and reference have equal rows in every case, so exchanged rows cannot be seen"),
    ):
        pairs = zip(inputs, expected, strict=True)
        if all(blind(given, want) for given, want in pairs) and _all_cases(trial, blind):
            findings.doubt(what)


def _all_cases(trial: Trial, blind: Callable[[Inputs, dict[str, Any]], bool]) -> bool:
    """Whether the suite's other (small) cases are as blind as this one."""
    others = [c for c in trial.suite.cases if c != trial.case and trial.world.name in c.worlds and c.tier == "quick"]
    for case in others[:_LOOKED_AT]:
        inputs = trial.inputs(case=case)
        if sum(value.numel() for value in tensors_of(inputs).values()) > _SMALL:
            continue
        if not blind(inputs, trial.reference(inputs)):
            return False
    return True


def _constant(inputs: Inputs, expected: dict[str, Any]) -> bool:
    """Every output of some size holds one value only."""
    large = [value for value in _values(expected) if value.numel() >= 8]
    return bool(large) and all(bool((value == value.reshape(-1)[0]).all()) for value in large)


def _equal_rows(inputs: Inputs, expected: dict[str, Any]) -> bool:
    """Some floating-point input has several rows, all equal, and so has every output of as many rows."""
    rows = {
        value.shape[0]
        for value in tensors_of(inputs).values()
        if _is_real(value) and value.dim() >= 2 and value.shape[0] > 1 and value[0].numel() > 1 and _same_rows(value)
    }
    follow = [value for value in _values(expected) if value.dim() >= 2 and value.shape[0] in rows]
    return bool(follow) and all(_same_rows(value) for value in follow)


def _same_rows(value: torch.Tensor) -> bool:
    return bool((value.double() == value[:1].double()).all())


def _values(expected: dict[str, Any]) -> Iterable[torch.Tensor]:
    return (value_of(reference).double() for reference in expected.values())


def _is_real(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.numel() > 0


def _function(call: Any) -> Any:
    """The function under partial application and wrappers."""
    while True:
        inner = call.func if isinstance(call, functools.partial) else getattr(call, "__wrapped__", None)
        if inner is None:
            return call
        call = inner
