"""Guard: nothing outside its tensors is written, nothing outside them matters, and inputs stay as they are."""

from __future__ import annotations

from typing import ClassVar

import torch

from harness.buffers import CANARIES, POISONS, GuardedAllocations, guarded
from harness.gates.base import Gate
from harness.trial import Trial, bits, clone, first_difference, same_bits, tensors_of
from harness.verdict import Findings


class Guard(Gate):
    """Canaries on both sides of every input, output and workspace survive, and inputs keep their checksums."""

    name: ClassVar[str] = "guard"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    may_crash: ClassVar[bool] = True

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        results = []
        for canary in CANARIES:
            guards = {name: guarded(value, f"input {name}", canary) for name, value in tensors_of(inputs).items()}
            given = {**inputs, **{name: guard.tensor for name, guard in guards.items()}}
            before = {name: bits(guard.buffer) for name, guard in guards.items()}
            with GuardedAllocations(poison=POISONS[0], canary=canary) as allocations:
                outputs = trial.call(given)
            results.append(clone(tensors_of(outputs)))
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
        if trial.contract.deterministic:
            for name, value in results[0].items():
                equal = same_bits(value, results[1][name])
                findings.check(
                    equal,
                    f"{name} depends on bytes outside the inputs (an out-of-bounds read)",
                    "the same result whatever lies beside the inputs",
                    "" if equal else first_difference(value, results[1][name]),
                )
