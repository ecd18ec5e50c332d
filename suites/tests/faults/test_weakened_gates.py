"""A gate that is made weaker lets at least one exhibit through: the museum would notice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from weakenings import WEAKENINGS, Weakening

from harness.museum.exhibit import Exhibit, Museum, open_museum
from harness.museum.judged import judge
from harness.registry import lookup

ROOT = Path(__file__).parents[3]
WORLD_OF = {"capture": "fake-cuda", "memory": "fake-cuda"}


@pytest.fixture(scope="module")
def museum() -> Museum:
    return open_museum(ROOT / "suites" / "faults")


def shown(museum: Museum, gate: str) -> list[Exhibit]:
    """Exhibits that the gate must catch in this process (a patch does not reach a child)."""
    world = WORLD_OF.get(gate, "cpu")
    return [
        exhibit
        for exhibit in museum.exhibits
        if exhibit.gate == gate
        and world in exhibit.worlds
        and not lookup(exhibit.suite).suite.implementations[exhibit.implementation].may_crash
    ]


def survivor(museum: Museum, gate: str) -> str | None:
    """The first exhibit that the gate, run alone, no longer catches."""
    for exhibit in shown(museum, gate):
        judged = judge(replace(exhibit, only=(gate,)), WORLD_OF.get(gate, "cpu"), practices=False)
        if not judged.as_expected:
            return exhibit.name
    return None


@pytest.mark.parametrize("weakening", WEAKENINGS, ids=lambda weakening: f"{weakening.gate}-{weakening.name}")
def test_the_museum_notices(weakening: Weakening, museum: Museum, monkeypatch: pytest.MonkeyPatch) -> None:
    weakening.patch(monkeypatch)
    assert survivor(museum, weakening.gate) is not None


@pytest.mark.parametrize("gate", sorted({weakening.gate for weakening in WEAKENINGS}))
def test_without_a_weakening_nothing_gets_through(gate: str, museum: Museum) -> None:
    assert survivor(museum, gate) is None


def test_every_gate_is_weakened_in_five_ways() -> None:
    counts = Counter(weakening.gate for weakening in WEAKENINGS)
    assert min(counts.values()) >= 5, counts
