from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from harness.report import failure_panel, markdown, summarize, table, write_junit
from harness.report.agreement import agreement_markdown, pairs
from harness.report.markdown import machine_line
from harness.verdict import Figure, Status, Verdict


def verdict(status: Status = Status.PASS, **fields: object) -> Verdict:
    named = {"suite": "axpy", "implementation": "cute[fp8]", "gate": "guard", "world": "cpu", "case": "m1-fp32-normal"}
    return Verdict(status, **{**named, **fields})  # type: ignore[arg-type]


FAILED = verdict(
    Status.FAIL,
    reason="input x was changed [/b] by the call",
    expected="inputs left alone",
    found="changed bytes",
    details=("one line", "another"),
    reproduce="harness gate --suite suite_axpy.py::axpy",
)


def shown(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=160, markup=False)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_cell_counts_and_its_worst_status_decides() -> None:
    summary = summarize([verdict(), verdict(Status.FAIL), verdict(Status.INVALID), verdict(gate="coverage")])
    row = summary.cells["axpy", "cute[fp8]"]
    assert (row["cpu", "guard"].total, row["cpu", "guard"].worst, str(row["cpu", "guard"])) == (3, Status.FAIL, "1/3")
    assert str(row["cpu", "coverage"]) == "1"
    assert summary.columns == [("cpu", "coverage"), ("cpu", "guard")], "in the order in which gates run"


def test_worlds_are_shown_in_one_order_whatever_came_first() -> None:
    worlds = [world for world, _ in summarize([verdict(world="cuda"), verdict(world="cpu")]).columns]
    assert worlds == ["cpu", "cuda"]


def test_the_table_shows_names_as_they_are_and_marks_what_did_not_pass() -> None:
    text = shown(table([verdict(), FAILED]))
    assert "cute[fp8]" in text
    assert "✗ 1/2" in text
    assert "1 FAIL, 1 PASS" in text
    assert "no verdicts" in shown(table([]))


def test_a_failure_shows_expected_found_details_and_the_command() -> None:
    text = shown(failure_panel(FAILED))
    for words in (FAILED.reason, "expected  inputs left alone", "found     changed bytes", "another"):
        assert words in text
    assert "again     harness gate --suite suite_axpy.py::axpy" in text
    assert "FAIL axpy · cute[fp8] · guard · cpu · m1-fp32-normal" in text


def test_markdown_holds_the_table_and_everything_that_did_not_pass() -> None:
    text = markdown([verdict(), FAILED, verdict(Status.SKIPPED, reason="no data")], {"torch": "2.13"}, "1 FAIL")
    assert "| `axpy` | cute[fp8] | ✗ 1/3 |" in text
    assert "- **FAIL** `axpy` cute[fp8], guard in cpu, `m1-fp32-normal`: input x was changed" in text
    assert "expected inputs left alone; found changed bytes" in text
    assert "- **SKIPPED**" in text
    assert "## Not passed" not in markdown([verdict()], {}, "all passed")


def test_the_machine_is_one_line_and_nothing_unknown_is_made_up() -> None:
    machine = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "python": "3.12", "commit": "0123456789abc"}
    assert machine_line(machine) == "NVIDIA H200, driver 580, torch 2.11, Python 3.12, commit 0123456789"
    assert machine_line({**machine, "dirty": True}).endswith("0123456789 (dirty)")
    assert machine_line({}).startswith("unknown machine")


def test_junit_maps_each_status_to_the_element_that_ci_systems_know(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "run.xml"
    statuses = (Status.PASS, Status.FAIL, Status.INVALID, Status.INCONCLUSIVE, Status.SKIPPED)
    write_junit([verdict(status, reason="why", seconds=0.5) for status in statuses], path)
    root = ET.parse(path).getroot()
    (suite,) = root.findall("testsuite")
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "2", "skipped": "1"}
    assert [child.tag for case in suite for child in case] == ["failure", "error", "error", "skipped"]
    assert suite[0].get("name") == "guard-cpu-m1-fp32-normal"
    assert suite[0].get("time") == "0.5000"


@given(st.text(max_size=30))
def test_junit_is_valid_xml_whatever_a_message_holds(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.xml"
    write_junit([verdict(Status.FAIL, reason=text, found=text, details=(text,))], path)
    assert ET.parse(path).getroot().find("testsuite/testcase/failure") is not None


def test_predictions_are_paired_with_measurements_of_the_same_trial() -> None:
    def peak(world: str, value: int, **fields: object) -> Verdict:
        return verdict(world=world, gate="memory", figures=(Figure("peak", value, "B"),), **fields)

    verdicts = [
        peak("fake-cuda", 5000),
        peak("cuda", 4000),
        peak("fake-cuda", 9000, case="m2"),
        peak("cuda", 5000, case="m2"),
        peak("fake-cuda", 1, case="only predicted"),
        verdict(Status.FAIL, world="fake-cuda", gate="capture", reason="item()"),
        verdict(world="cuda", gate="capture"),
    ]
    found = pairs(verdicts)
    assert [(p.agree, p.peak_difference) for p in found] == [(True, 1000), (False, 4000), (False, None)]
    text = agreement_markdown(found, "NVIDIA H200")
    assert "1 of 3 trials agree" in text
    assert "| 9,000 | 5,000 | 4,000 |" in text
    assert "**FAIL** (item())" in text
    assert text.index("| PASS | PASS | 9,000") < text.index("| PASS | PASS | 5,000"), "disagreements first"
    assert agreement_markdown([], "x").startswith("No trial")
