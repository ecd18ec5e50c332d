"""Which trials a selection stands for: suite x implementation x gate x world x case, filtered by name."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.case import TIERS, Case
from harness.gates import GATES
from harness.inputs.checkpoint import list_tensors
from harness.registry import Registered
from harness.suite import Suite
from harness.worlds import WORLD_CLASSES


@dataclass(frozen=True)
class Task:
    """One trial to run: names and a case, so that it can be sent to another process."""

    path: Path
    suite: str
    implementation: str
    gate: str
    world: str
    case: Case

    @property
    def id(self) -> str:
        """``suite[implementation-gate-world-case]``, the name of the pytest node."""
        return f"{self.suite}[{self.implementation}-{self.gate}-{self.world}-{self.case.id}]"

    @property
    def key(self) -> str:
        """As ``Verdict.key``: ``suite/implementation/gate/world/case``."""
        return "/".join((self.suite, self.implementation, self.gate, self.world, self.case.id))

    @property
    def command(self) -> str:
        """The command line that runs this one trial."""
        words = ["harness", "gate", "--suite", f"{_shown(self.path)}::{self.suite}"]
        words += ["--implementation", self.implementation]
        words += ["--gate", self.gate, "--world", self.world, "--case", self.case.id]
        if self.case.source is not None:
            words += ["--checkpoint", self.case.source.rpartition("#")[0]]
        if self.case.tier == "full":
            words += ["--tier", "full"]
        return shlex.join(words)

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "suite": self.suite,
            "implementation": self.implementation,
            "gate": self.gate,
            "world": self.world,
            "case": self.case.as_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Task:
        return cls(**{**data, "path": Path(data["path"]), "case": Case.from_dict(data["case"])})


@dataclass(frozen=True)
class Selection:
    """What to run. Empty tuples mean everything; names and case ids may hold ``*``."""

    worlds: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    tier: str = "quick"
    checkpoints: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        _known("world", self.worlds, WORLD_CLASSES)
        _known("gate", self.gates, GATES)
        _known("tier", (self.tier,), TIERS)


@dataclass
class Plan:
    """The tasks of a selection, and the worlds that were asked for and cannot be had (with the reason)."""

    tasks: list[Task] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    not_here: dict[str, str] = field(default_factory=dict)


def make_plan(suites: Iterable[Registered], selection: Selection) -> Plan:
    """Enumerate the tasks. Worlds that nobody named are left out when unavailable; named ones are reported."""
    plan = Plan()
    reasons = {name: world().unavailable() for name, world in WORLD_CLASSES.items()}
    worlds = [name for name in WORLD_CLASSES if not selection.worlds or name in selection.worlds]
    plan.unavailable = {name: reason for name in worlds if (reason := reasons[name]) and selection.worlds}
    worlds = [name for name in worlds if reasons[name] is None]
    tensors = {key: value for path in selection.checkpoints for key, value in list_tensors(path).items()}
    for entry in suites:
        suite = entry.suite
        cases = list(suite.cases)
        if tensors and suite.checkpoint_cases is not None:
            cases += suite.checkpoint_cases(tensors)
        cases = [case for case in cases if _in_tier(case, selection.tier) and _matches(case.id, selection.cases)]
        for name, implementation in suite.implementations.items():
            if not _matches(name, selection.implementations):
                continue
            missing = implementation.requires() if implementation.requires is not None else None
            if missing:
                plan.not_here[f"{suite.name}/{name}"] = missing
                continue
            usable = [world for world in worlds if world in implementation.worlds]
            plan.tasks += _tasks(entry, suite, name, usable, cases, selection)
    return plan


def _tasks(
    entry: Registered, suite: Suite, name: str, worlds: Sequence[str], cases: Sequence[Case], selection: Selection
) -> list[Task]:
    return [
        Task(entry.path, suite.name, name, gate.name, world, case)
        for world in worlds
        for gate in GATES.values()
        if world in gate.worlds and (not selection.gates or gate.name in selection.gates)
        for case in cases
        if world in case.worlds and gate.applies(suite, name, case) is None
    ]


def _in_tier(case: Case, tier: str) -> bool:
    return tier == "full" or case.tier == "quick"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown {what} {', '.join(map(repr, unknown))}; expected some of {', '.join(known)}")


def _shown(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
