"""Correctness: against the reference in higher precision."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from harness.compare import compare
from harness.gates.base import Gate
from harness.suite import Inputs
from harness.trial import Trial, clone, overwrite, same_bits, tensors_of, value_of
from harness.verdict import Findings


class Correctness(Gate):
    """Outputs match the reference, on two draws of data in the same buffers, and nothing trivial would match too."""

    name: ClassVar[str] = "correctness"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    every_regime: ClassVar[bool] = True

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        given = clone(inputs)
        # the implementation runs first: a reference computed before it would leave its result in freed memory,
        # where a kernel that writes nothing could "find" it
        outputs = trial.call(inputs)
        first = clone(outputs)
        expected = trial.reference(given)
        results = trial.compare(outputs, expected, findings)
        for name, result in results.items():
            prefix = f"{name}." if len(results) > 1 else ""
            for tag, value in result.figures.items():
                findings.measure(prefix + tag, value)

        again = trial.inputs(salt=1)
        if _same_shapes(inputs, again):
            overwrite(inputs, again)  # same addresses, new data: a result remembered by address is wrong now
        else:
            inputs = clone(again)
        second = trial.call(inputs)
        expected_again = trial.reference(again)
        trial.compare(second, expected_again, findings, "new data in the same buffers: ")
        if not trial.contract.reuses_output:
            for name, value in tensors_of(outputs).items():
                findings.check(
                    same_bits(value, first[name]),
                    f"{name}: a later call overwrote the result of an earlier one",
                    "results that stay as they were returned",
                    "changed bytes",
                )
        _null_models(trial, again, expected, expected_again, findings)


def _same_shapes(a: Inputs, b: Inputs) -> bool:
    x, y = tensors_of(a), tensors_of(b)
    return all(x[name].shape == y[name].shape and x[name].stride() == y[name].stride() for name in x)


def _null_models(
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
            if model.shape != value.shape or same_bits(model, value) or bool(torch.equal(model, value)):
                continue
            if compare(model, reference, trial.suite.tolerance_of(name)).ok:
                findings.doubt(f"{name}: {label} would pass too, so this case cannot fail: tighten the tolerance")


def _mean(value: torch.Tensor) -> float:
    finite = value.double()[torch.isfinite(value.double())]
    return float(finite.mean()) if finite.numel() else 0.0
