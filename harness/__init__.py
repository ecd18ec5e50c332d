"""Kernel Harness: one declaration per GPU operation, and gates that answer whether a change of it may be merged."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.case import Case, grid
    from harness.inputs import Draw, regime
    from harness.registry import register
    from harness.results import read_results
    from harness.suite import Bounded, Contract, Cost, Implementation, Inputs, Suite, Tolerance
    from harness.verdict import Figure, Status, Verdict

_HOME = {
    "Bounded": "harness.suite",
    "Case": "harness.case",
    "Contract": "harness.suite",
    "Cost": "harness.suite",
    "Draw": "harness.inputs",
    "Figure": "harness.verdict",
    "Implementation": "harness.suite",
    "Inputs": "harness.suite",
    "Status": "harness.verdict",
    "Suite": "harness.suite",
    "Tolerance": "harness.suite",
    "Verdict": "harness.verdict",
    "grid": "harness.case",
    "read_results": "harness.results",
    "regime": "harness.inputs",
    "register": "harness.registry",
}

__all__ = [
    "Bounded",
    "Case",
    "Contract",
    "Cost",
    "Draw",
    "Figure",
    "Implementation",
    "Inputs",
    "Status",
    "Suite",
    "Tolerance",
    "Verdict",
    "grid",
    "read_results",
    "regime",
    "register",
]


def __getattr__(name: str) -> Any:
    """Load on first use: the pytest plugin lives in this package, and must cost nothing where it is idle."""
    if name not in _HOME:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
