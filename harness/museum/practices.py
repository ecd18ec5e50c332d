"""What three common ways to check a kernel would have said, on the same implementation.

They are here for comparison only: each is the check as its users write it, not as it could be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.case import DEFAULT_REGIME, Case
from harness.suite import Suite
from harness.trial import Trial, clone, tensors_of, value_of
from harness.worlds import make_world

Pairs = list[tuple[torch.Tensor, torch.Tensor]]

KERNELBENCH_SEEDS = 5
"""Random inputs of KernelBench's correctness check."""


def allclose(trial: Trial) -> bool:
    """``torch.allclose`` with its defaults on one normal draw."""
    return all(torch.allclose(found, expected) for found, expected in _pairs(trial, 0))


def cosine(trial: Trial) -> bool:
    """Cosine similarity of at least 0.98 on one normal draw, over the whole output."""
    return all(
        float(torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), 0)) >= 0.98
        for found, expected in _pairs(trial, 0)
        if found.numel()
    )


def kernelbench(trial: Trial) -> bool:
    """Five normal draws, each within atol = rtol = 1e-2 of the reference."""
    return all(
        torch.allclose(found, expected, atol=1e-2, rtol=1e-2)
        for seed in range(KERNELBENCH_SEEDS)
        for found, expected in _pairs(trial, seed)
    )


PRACTICES: dict[str, Callable[[Trial], bool]] = {
    "allclose": allclose,
    "cosine": cosine,
    "KernelBench": kernelbench,
}


def ask_practices(suite: Suite, implementation: str, world: str) -> dict[str, str]:
    """``accepts``, ``rejects`` or ``cannot run`` for each practice, on the suite's first case of normal data."""
    case = _typical(suite, world)
    answers = {}
    for name, practice in PRACTICES.items():
        try:
            with torch.no_grad():
                answers[name] = (
                    "accepts" if practice(Trial(suite, implementation, case, make_world(world))) else "rejects"
                )
        except KeyboardInterrupt:
            raise
        except BaseException:  # a kernel that ends the process by exception is rejected by any practice
            answers[name] = "rejects"
    return answers


def _typical(suite: Suite, world: str) -> Case:
    """The case such a check would be written for: normal data, and the last (largest) shape listed first."""
    usable = [case for case in suite.cases if world in case.worlds]
    normal = [case for case in usable if case.regime == DEFAULT_REGIME]
    return (normal or usable)[0]


def _pairs(trial: Trial, salt: int) -> Pairs:
    """Outputs beside the reference's, in double precision; the reference goes first, as in most test files."""
    inputs = trial.inputs(salt=salt)
    expected = trial.reference(inputs)
    outputs: dict[str, Any] = trial.call(clone(inputs))
    return [(value.double(), value_of(expected[name]).double()) for name, value in tensors_of(outputs).items()]
