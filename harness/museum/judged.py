"""Runs a museum through the ordinary gates, and says for each piece whether it went as expected."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.museum.exhibit import Awkward, Exhibit
from harness.museum.practices import ask_practices
from harness.plan import Selection, make_plan
from harness.registry import lookup
from harness.runner import run_plan
from harness.verdict import Status, Verdict

NOTICED = (Status.FAIL, Status.INVALID)
"""What stops a merge. An exhibit must be stopped; anything awkward must not."""


@dataclass(frozen=True)
class Judged:
    """One piece in one world: its verdicts, and the practices' answers (empty where they cannot be asked)."""

    piece: Exhibit | Awkward
    world: str
    verdicts: tuple[Verdict, ...]
    practices: dict[str, str] = field(default_factory=dict)

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Gates that noticed something, in the order they ran."""
        return tuple(dict.fromkeys(v.gate for v in self.verdicts if v.status in NOTICED))

    @property
    def as_expected(self) -> bool:
        """An exhibit noticed by its gate with its status; an awkward piece measured and noticed by none."""
        if isinstance(self.piece, Exhibit):
            return any(v.gate == self.piece.gate and v.status is self.piece.status for v in self.verdicts)
        return bool(self.verdicts) and all(v.status is Status.PASS for v in self.verdicts)

    @property
    def reason(self) -> str:
        """What the expected gate said; for an awkward piece, what was held against it."""
        if isinstance(self.piece, Exhibit):
            wanted = [v for v in self.verdicts if v.gate == self.piece.gate and v.status in NOTICED]
        else:
            wanted = [v for v in self.verdicts if v.status is not Status.PASS]
        return wanted[0].reason if wanted else ""


def judge(piece: Exhibit | Awkward, world: str, *, practices: bool = True) -> Judged:
    """Run all gates of one world on one piece. The piece starts with nothing remembered, and so does whoever is next.

    An exhibit that can compute on this machine is shown to the common practices too.
    """
    entry = lookup(piece.suite)
    only = piece.only if isinstance(piece, Exhibit) else ()
    selection = Selection(worlds=(world,), gates=only, implementations=(piece.implementation,))
    _reset(piece)
    verdicts = tuple(run_plan(make_plan([entry], selection)))
    _reset(piece)
    answers: dict[str, str] = {}
    implementation = entry.suite.implementations[piece.implementation]
    values_in = "cpu" if world == "fake-cuda" else world
    if practices and isinstance(piece, Exhibit) and values_in in implementation.worlds and not implementation.may_crash:
        answers = ask_practices(entry.suite, piece.implementation, values_in)
        _reset(piece)
    return Judged(piece, world, verdicts, answers)


def _reset(piece: Exhibit | Awkward) -> None:
    if piece.reset is not None:
        piece.reset()
