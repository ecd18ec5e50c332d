"""Guard: nothing outside its tensors is written, nothing outside them matters, and inputs stay as they are."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import torch

from harness.buffers import CANARIES, POISONS, GuardedAllocations, guarded
from harness.gates.base import Gate
from harness.surroundings import (
    changed_settings,
    replaced_functions,
    reseeded,
    seeded,
    settings,
    threads,
    wait_for_threads,
)
from harness.trial import Trial, bits, clone, first_difference, same_bits, tensors_of
from harness.verdict import Findings


class Guard(Gate):
    """Canaries around every input, output and workspace survive; inputs and the process around stay as they are."""

    name: ClassVar[str] = "guard"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    may_crash: ClassVar[bool] = True

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        results, states = [], []
        for canary in CANARIES:
            guards = {name: guarded(value, f"input {name}", canary) for name, value in tensors_of(inputs).items()}
            given = {**inputs, **{name: guard.tensor for name, guard in guards.items()}}
            before = {name: bits(guard.buffer) for name, guard in guards.items()}
            around, running = settings(), threads()
            with seeded(canary) as state, GuardedAllocations(poison=POISONS[0], canary=canary) as allocations:
                outputs = trial.call(given)
            states.append(state)
            results.append(clone(tensors_of(outputs)))
            self._around(around, running, outputs, results[-1], findings)
            for guard in [*guards.values(), *allocations.made]:
                damage = guard.damage()
                findings.check(damage is None, damage or "", "writes inside its own tensors only")
            for name, guard in guards.items():
                if name not in trial.contract.mutates:
                    findings.check(
                        bool(torch.equal(bits(guard.buffer), before[name])),
                        f"input {name} was changed by the call",
                        "inputs left alone (or named in Contract.mutates)",
                        "changed bytes",
                    )
            findings.measure(f"guarded_{canary:02x}", len(guards) + len(allocations.made), "", "guarded buffers")
        for name in reseeded(*states):
            findings.check(False, f"the call seeds the global generator of {name}", "random state left to its owner")
        if trial.contract.deterministic:
            for name, value in results[0].items():
                equal = same_bits(value, results[1][name])
                findings.check(
                    equal,
                    f"{name} depends on bytes outside the inputs (an out-of-bounds read)",
                    "the same result whatever lies beside the inputs",
                    "" if equal else first_difference(value, results[1][name]),
                )

    def _around(
        self,
        before: dict[str, Any],
        running: frozenset[threading.Thread],
        outputs: dict[str, Any],
        at_once: dict[str, torch.Tensor],
        findings: Findings,
    ) -> None:
        """The process is as it was, and the results are final when the call returns."""
        replaced = replaced_functions()
        findings.check(
            not replaced,
            f"functions that measurements rely on were replaced: {', '.join(replaced)}",
            "clocks, comparisons and synchronisation left alone",
        )
        changed = changed_settings(before)
        findings.check(
            not changed, f"process-wide settings were changed: {', '.join(changed)}", "settings left as they were"
        )
        if wait_for_threads(running):
            for name, value in tensors_of(outputs).items():
                findings.check(
                    same_bits(value, at_once[name]),
                    f"{name} changed after the call had returned",
                    "a final result",
                    "work left to a thread",
                )
