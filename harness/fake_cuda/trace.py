"""The operators of one call, and whether two calls did the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from harness.fake_cuda.findings import Finding, Severity


@dataclass(frozen=True)
class Step:
    """One operator or kernel: its name, its tensors' looks, its other arguments, and the line that called it."""

    name: str
    tensors: tuple[Any, ...]
    constants: tuple[str, ...]
    where: str


def step(name: str, leaves: Iterable[Any], where: str) -> Step:
    tensors, constants = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append((tuple(map(_size, leaf.shape)), leaf.dtype, leaf.device.type))
        elif isinstance(leaf, (bool, int, float, complex, str, torch.dtype, torch.device)):
            constants.append(repr(leaf))
        else:
            constants.append(type(leaf).__name__)
    return Step(name, tuple(tensors), tuple(constants), where)


def _size(size: Any) -> Any:
    """A data-dependent size has a new symbol in every call; that it differs says nothing."""
    return size if isinstance(size, int) else "?"


def compare(first: list[Step], second: list[Step], call: int) -> Iterable[Finding]:
    """A graph replays the first; whatever the second did differently is lost."""
    for before, after in zip(first, second, strict=False):
        if before.name != after.name or before.tensors != after.tensors:
            what = f"two captured calls ran different operators: {_brief(before)}, then {_brief(after)}"
            yield Finding("unstable-trace", Severity.HAZARD, what, after.where, call)
            return
        if before.constants != after.constants:
            changed = next(
                (
                    f"{old} became {new}"
                    for old, new in zip(before.constants, after.constants, strict=False)
                    if old != new
                ),
                "their number changed",
            )
            what = f"a host value given to {after.name} changes between calls ({changed}): the graph keeps the first"
            yield Finding("baked-constant", Severity.HAZARD, what, after.where, call)
            return
    if len(first) != len(second):
        what = f"two captured calls ran {len(first)} and {len(second)} operators"
        longer = max(first, second, key=len)[min(len(first), len(second))]
        yield Finding("unstable-trace", Severity.HAZARD, what, longer.where, call)


def _brief(step: Step) -> str:
    shapes = ", ".join(str(tensor[0]) for tensor in step.tensors)
    return f"{step.name}({shapes})"
