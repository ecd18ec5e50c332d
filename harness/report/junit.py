"""A run as JUnit XML, for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from harness.files import write_atomically
from harness.verdict import Status, Verdict


def write_junit(verdicts: Iterable[Verdict], path: Path | str) -> None:
    """One test case a verdict: FAIL is a failure, INVALID and INCONCLUSIVE are errors, SKIPPED is skipped."""
    suites: dict[str, ET.Element] = {}
    root = ET.Element("testsuites", name="kernel-harness")
    for verdict in verdicts:
        suite = suites.get(verdict.suite)
        if suite is None:
            suite = suites[verdict.suite] = ET.SubElement(root, "testsuite", name=verdict.suite)
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"{verdict.suite}.{verdict.implementation}",
            name=f"{verdict.gate}-{verdict.world}-{verdict.case}",
            time=f"{verdict.seconds:.4f}",
        )
        _outcome(case, verdict)
    for suite in suites.values():
        suite.set("tests", str(len(suite)))
        for tag in ("failure", "error", "skipped"):
            suite.set({"failure": "failures", "error": "errors"}.get(tag, tag), str(len(suite.findall(f"*/{tag}"))))
    write_atomically(path, b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root))


def _outcome(case: ET.Element, verdict: Verdict) -> None:
    tag = {
        Status.FAIL: "failure",
        Status.INVALID: "error",
        Status.INCONCLUSIVE: "error",
        Status.SKIPPED: "skipped",
    }.get(verdict.status)
    if tag is None:
        return
    element = ET.SubElement(case, tag, message=_printable(verdict.reason))
    text = [f"expected {verdict.expected}", f"found {verdict.found}", *verdict.details, verdict.reproduce]
    element.text = "\n".join(map(_printable, text))


def _printable(line: str) -> str:
    """XML 1.0 has no way to write control characters."""
    return "".join(c if c.isprintable() else " " for c in line)
