"""All capture cases, and what a real GPU did with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tests.fake_cuda.cases import (  # noqa: F401  (importing registers the cases)
    arithmetic,
    copies,
    held_out_calls,
    held_out_operators,
    host_reads,
    indexing,
    randomness,
    shapes,
    state,
    streams,
    triton_kernels,
)
from harness.tests.fake_cuda.cases.case import CASES, STATE, CaptureCase

TRUTH_FILE = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "capture-truth.json"


def load_truth() -> dict[str, Any]:
    """The measured outcomes: ``{"fingerprint": .., "date": .., "cases": {name: {"label": .., "outcome": ..}}}``.

    ``outcome`` is ``break`` or ``captures``; None means that the case was not measured yet.
    """
    truth: dict[str, Any] = json.loads(TRUTH_FILE.read_text())
    return truth


__all__ = ["CASES", "STATE", "TRUTH_FILE", "CaptureCase", "load_truth"]
