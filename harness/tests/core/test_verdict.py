from __future__ import annotations

import json

import pytest

from harness.verdict import Figure, Findings, Status, Verdict


def test_findings_without_a_check_are_invalid_never_green() -> None:
    verdict = Findings().verdict()
    assert verdict.status is Status.INVALID
    assert "checked nothing" in verdict.reason


def test_one_good_check_passes_and_is_counted() -> None:
    findings = Findings()
    assert findings.check(True, "never shown")
    verdict = findings.verdict()
    assert (verdict.status, verdict.reason, verdict.figure("checks")) == (Status.PASS, "", 1)


def test_first_failure_is_the_headline_and_the_others_are_details() -> None:
    findings = Findings()
    findings.note("a note")
    findings.check(True, "fine")
    assert not findings.check(False, "first", "1", "2")
    findings.check(False, "second", "3", "4")
    verdict = findings.verdict()
    assert verdict.status is Status.FAIL
    assert (verdict.reason, verdict.expected, verdict.found) == ("first (and 1 more)", "1", "2")
    assert verdict.details == ("a note", "second: expected 3; found 4")


def test_a_doubt_is_invalid_and_a_failure_outranks_it() -> None:
    findings = Findings()
    findings.check(True, "fine")
    findings.doubt("the check could not have failed")
    findings.doubt("another doubt")
    verdict = findings.verdict()
    assert (verdict.status, verdict.reason) == (Status.INVALID, "the check could not have failed")
    assert "another doubt" in verdict.details
    findings.check(False, "and it failed")
    assert findings.verdict().status is Status.FAIL


@pytest.mark.parametrize("status", list(Status))
def test_verdict_survives_a_round_through_json(status: Status) -> None:
    verdict = Verdict(
        status,
        "reason",
        "1",
        "2",
        (Figure("peak", 3, "B", "bytes"), Figure("ratio", 0.5)),
        ("line",),
        "suite",
        "torch",
        "m1-bf16-normal",
        "memory",
        "cpu",
        "harness gate",
        0.25,
    )
    assert Verdict.from_dict(json.loads(json.dumps(verdict.as_dict()))) == verdict
    assert type(verdict.as_dict()["status"]) is str


def test_key_names_suite_implementation_gate_world_and_case() -> None:
    verdict = Verdict(Status.PASS).within(suite="s", implementation="i", gate="g", world="w", case="c")
    assert verdict.key == "s/i/g/w/c"
    assert verdict.figure("nothing") is None
