"""The gates, each in a file of its own. ``GATES`` is the order in which they run and are shown."""

from __future__ import annotations

from harness.gates.arguments import Arguments
from harness.gates.base import Gate
from harness.gates.capture import Capture
from harness.gates.correctness import Correctness
from harness.gates.coverage import Coverage
from harness.gates.determinism import Determinism
from harness.gates.guard import Guard
from harness.gates.memory import Memory
from harness.gates.recompile import Recompile
from harness.gates.replay import Replay

__all__ = ["GATES", "Gate"]

GATES: dict[str, Gate] = {
    gate.name: gate
    for gate in (
        Correctness(),
        Coverage(),
        Guard(),
        Arguments(),
        Determinism(),
        Recompile(),
        Capture(),
        Replay(),
        Memory(),
    )
}
