"""The lint against what a real GPU did with the same functions."""

from __future__ import annotations

from functools import cache

import pytest

from harness.fake_cuda import CaptureReport
from harness.tests.fake_cuda.capture_cases import CASES, CaptureCase, load_truth
from harness.tests.fake_cuda.lint_case import lint_case

TRUTH = load_truth()["cases"]
RUNNABLE = [case for case in CASES.values() if case.missing() is None]


@cache
def report(name: str) -> CaptureReport:
    return lint_case(CASES[name])


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_lint_says_what_the_label_says(case: CaptureCase):
    found = report(case.name)
    assert found.verdict == case.label, f"expected {case.label}, found {found}"


def test_every_case_has_an_entry_and_the_label_of_the_code():
    assert {name: entry["label"] for name, entry in TRUTH.items()} == {
        name: case.label for name, case in CASES.items()
    }, "run measure_capture_truth.py --unmeasured to write the entries of new cases"


def test_every_real_break_is_found_and_at_most_one_safe_case_is_called_one():
    measured = {name: entry["outcome"] for name, entry in TRUTH.items() if entry["outcome"] is not None}
    breaks = {name for name, outcome in measured.items() if outcome == "break" and CASES[name].missing() is None}
    safe = {name for name in measured if measured[name] == "captures" and CASES[name].label == "ok"}
    assert len(breaks) >= 50, "the measured set has shrunk"
    missed = sorted(name for name in breaks if report(name).verdict != "break")
    alarms = sorted(name for name in safe if report(name).verdict != "ok")
    assert not missed
    assert len(alarms) <= 1, alarms


def test_every_hazard_is_named_as_one_and_captures_on_the_gpu():
    hazards = [name for name, case in CASES.items() if case.label == "hazard"]
    measured = [name for name in hazards if TRUTH[name]["outcome"] is not None]
    assert len(measured) >= 9
    assert all(TRUTH[name]["outcome"] == "captures" for name in measured)
    assert [name for name in hazards if report(name).verdict != "hazard"] == []


def test_the_labels_that_the_gpu_refuted_are_corrected():
    refuted = {name for name, entry in TRUTH.items() if entry.get("refuted_label")}
    assert refuted >= {"equal", "empty_cache", "seed_in", "subprocess_"}
    for name in refuted:
        assert CASES[name].label != TRUTH[name]["refuted_label"]


def test_there_are_cases_beyond_the_measured_ones():
    assert len(CASES) >= 99 + 25
