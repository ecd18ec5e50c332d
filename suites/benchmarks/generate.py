"""asv benchmark classes made from the registered suites: the asv parameter is the case id."""

from __future__ import annotations

import re
from typing import Any

from harness.case import DEFAULT_REGIME, Case
from harness.registry import load, lookup
from harness.suite import Suite
from harness.trial import Trial
from harness.worlds import make_world

from . import ROOT
from .measure import CONTRACTS, measure
from .virtual_clock import VirtualClock

ROUNDS = 8
"""Fresh processes of one benchmark, one sample each. asv's test can never fire on 6 against 6 and falls back to
interval overlap on 5 against 5; 8 against 8 reach p = 0.00016."""


def benchmark_classes(world: str, method: str) -> dict[str, type]:
    """A class for each suite that has something to time in this world, by class name."""
    classes: dict[str, type] = {}
    for name in load(ROOT / "suites"):
        made = benchmark_class(lookup(name).suite, world, method)
        if made is None:
            continue
        if made.__name__ in classes:
            raise ValueError(f"suite {name!r} needs another name: asv would call two of them {made.__name__!r}")
        classes[made.__name__] = made
    return classes


def benchmark_class(suite: Suite, world: str, method: str) -> type | None:
    """The suite as an asv class whose ``method`` takes an implementation and a case id; None if nothing is timed."""
    implementations = [name for name, impl in suite.implementations.items() if world in impl.worlds]
    cases = {case.id: case for case in timed_cases(suite, world)}
    if not implementations or not cases:
        return None
    clock = VirtualClock()

    def setup(self: Any, implementation: str, case: str) -> None:
        missing = make_world(world).unavailable()
        requires = suite.implementations[implementation].requires
        missing = missing or (requires() if requires is not None else None)
        if missing:
            raise NotImplementedError(missing)  # asv's word for "skip this, and say why"

    def timed(self: Any, implementation: str, case: str) -> None:
        clock.advance(measure(Trial(suite, implementation, cases[case], make_world(world))))

    # asv keys history by this name and splits it at "-"
    name = re.sub(r"\W", "_", suite.name)
    attributes = {
        "__doc__": suite.doc,
        "__module__": __name__,
        "params": [implementations, list(cases)],
        "param_names": ["implementation", "case"],
        "version": CONTRACTS[world].version,
        "timer": clock.now,
        "rounds": ROUNDS,
        # one sample a process, and it has its own warm-up: asv's calibration would read a clock that stands still
        "repeat": 1,
        "number": 1,
        "warmup_time": 0.0,
        "min_run_count": 1,
        "timeout": suite.timeout_s,
        "setup": setup,
        method: timed,
    }
    return type(name, (), attributes)


def timed_cases(suite: Suite, world: str) -> list[Case]:
    """Quick cases of this world worth timing: each shape once, and only where a perfect kernel has work to do.

    A shape is timed in the ordinary data regime where it has one, else in the first it is declared in. The other
    regimes are there for values (every midpoint, all NaN), and one sample of each costs a process of its own.
    """
    chosen: dict[Any, Case] = {}
    for case in suite.cases:
        empty = suite.cost is not None and not suite.cost(case).bytes
        if case.tier != "quick" or world not in case.worlds or empty:
            continue
        shape = (case.params, case.dtype, case.routing, case.source)
        if shape not in chosen or (case.regime == DEFAULT_REGIME and chosen[shape].regime != DEFAULT_REGIME):
            chosen[shape] = case
    return list(chosen.values())
