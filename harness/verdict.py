"""What a gate says about one trial: a status, figures that stand by it, and how to see it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """PASS and FAIL are results. The other three are not, and none of them is ever counted as green."""

    PASS = "PASS"
    """Measured, and within the contract."""
    FAIL = "FAIL"
    """Measured, and outside the contract; or the trial crashed, hung or raised."""
    INVALID = "INVALID"
    """The measurement cannot be trusted (contention, a check that could not have failed, nothing matched)."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Measured properly, and the data do not decide."""
    SKIPPED = "SKIPPED"
    """Not run; the reason says why."""


@dataclass(frozen=True)
class Figure:
    """One number: a tag for programs, a unit and a description for people, so printers know no metric by name."""

    tag: str
    value: float | int | str
    unit: str = ""
    description: str = ""


@dataclass(frozen=True)
class Verdict:
    """A gate's judgement of one trial.

    ``expected`` and ``found`` are short texts for a failing line; ``reproduce`` is the one command that
    shows the same verdict again. ``details`` are further lines for whoever looks into it.
    """

    status: Status
    reason: str = ""
    expected: str = ""
    found: str = ""
    figures: tuple[Figure, ...] = ()
    details: tuple[str, ...] = ()
    suite: str = ""
    implementation: str = ""
    case: str = ""
    gate: str = ""
    world: str = ""
    reproduce: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """``suite/implementation/gate/world/case``: what a waiver or a filter is matched against."""
        return "/".join((self.suite, self.implementation, self.gate, self.world, self.case))

    def within(self, **fields: Any) -> Verdict:
        """The same verdict with the trial's names filled in."""
        return replace(self, **fields)

    def figure(self, tag: str) -> float | int | str | None:
        """Value of the figure with this tag, or None."""
        return next((figure.value for figure in self.figures if figure.tag == tag), None)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able form; ``Verdict.from_dict`` is its inverse."""
        data = asdict(self)
        data["status"] = str(self.status)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        fields = dict(data)
        fields["status"] = Status(fields["status"])
        fields["figures"] = tuple(Figure(**figure) for figure in fields.get("figures", ()))
        fields["details"] = tuple(fields.get("details", ()))
        return cls(**fields)


@dataclass
class Findings:
    """Collects what a gate sees while it looks, and ends in a verdict. The first failure is the headline."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    checks: int = 0

    def check(self, ok: bool, reason: str, expected: str = "", found: str = "") -> bool:
        """Count one check; a false one is kept as a failure. Returns ``ok``."""
        self.checks += 1
        if not ok:
            self.failures.append((reason, expected, found))
        return ok

    def note(self, line: str) -> None:
        self.details.append(line)

    def doubt(self, reason: str) -> None:
        """The check itself cannot be trusted: INVALID, unless something also failed."""
        self.doubts.append(reason)

    def measure(self, tag: str, value: float | int | str, unit: str = "", description: str = "") -> None:
        self.figures.append(Figure(tag, value, unit, description))

    def verdict(self) -> Verdict:
        """FAIL with the first failure (the others as details); INVALID on a doubt or without a check; else PASS."""
        self.measure("checks", self.checks, "", "checks made")
        figures, details = tuple(self.figures), list(self.details)
        if self.failures:
            reason, expected, found = self.failures[0]
            details += [_line(*failure) for failure in self.failures[1:]]
            if len(self.failures) > 1:
                reason += f" (and {len(self.failures) - 1} more)"
            return Verdict(Status.FAIL, reason, expected, found, figures, tuple(details))
        if self.doubts:
            details += self.doubts[1:]
            return Verdict(Status.INVALID, self.doubts[0], figures=figures, details=tuple(details))
        if not self.checks:
            return Verdict(Status.INVALID, "the gate checked nothing", figures=figures, details=tuple(details))
        return Verdict(Status.PASS, figures=figures, details=tuple(details))


def _line(reason: str, expected: str, found: str) -> str:
    tail = "; ".join(part for part in (expected and f"expected {expected}", found and f"found {found}") if part)
    return f"{reason}: {tail}" if tail else reason
