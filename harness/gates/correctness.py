"""Correctness: against the reference in higher precision."""

from __future__ import annotations

from typing import ClassVar

import torch

from harness.gates.base import Gate, stands_for_shape
from harness.gates.null_models import doubt_oracle, null_models
from harness.suite import Inputs
from harness.trial import Trial, clone, overwrite, same_bits, tensors_of
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
        plain = all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in tensors_of(outputs).values())
        findings.check(
            plain, "an output is a subclass of Tensor, which may compute when it is looked at", "torch.Tensor"
        )
        expected = trial.reference(given)
        results = trial.compare(outputs, expected, findings)
        for name, result in results.items():
            prefix = f"{name}." if len(results) > 1 else ""
            for tag, figure in result.figures.items():
                findings.measure(prefix + tag, figure)

        again = trial.inputs(salt=1)
        if _same_shapes(inputs, again):
            overwrite(inputs, again)  # same addresses, new data: a result remembered by address is wrong now
        else:
            inputs = clone(again)
        second = trial.call(inputs)
        expected_again = trial.reference(again)
        trial.compare(second, expected_again, findings, "new data in the same buffers: ")
        if not trial.contract.reuses_output:
            written = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(inputs).values()}
            for name, value in tensors_of(outputs).items():
                if value.untyped_storage().data_ptr() in written:  # an in-place result follows its input
                    continue
                findings.check(
                    same_bits(value, first[name]),
                    f"{name}: a later call overwrote the result of an earlier one",
                    "results that stay as they were returned",
                    "changed bytes",
                )
        if stands_for_shape(trial.suite, trial.case) and _same_shapes(given, again):
            _one_at_a_time(trial, inputs, given, again, findings)
        doubt_oracle(trial, (given, again), (expected, expected_again), findings)
        null_models(trial, again, expected, expected_again, findings)


def _same_shapes(a: Inputs, b: Inputs) -> bool:
    x, y = tensors_of(a), tensors_of(b)
    return all(x[name].shape == y[name].shape and x[name].stride() == y[name].stride() for name in x)


def _one_at_a_time(trial: Trial, inputs: Inputs, first: Inputs, second: Inputs, findings: Findings) -> None:
    """Of several inputs, one is put back to its first values: a result that was kept by the others is wrong now.

    Only floating-point inputs: offsets, indices and lengths belong together.
    """
    tensors = tensors_of(second)
    if len(tensors) < 2:
        return
    for name in (name for name, value in tensors.items() if value.is_floating_point()):
        mixed = {**second, name: first[name]}
        overwrite(inputs, mixed)
        trial.compare(trial.call(inputs), trial.reference(mixed), findings, f"only {name} changed: ")
