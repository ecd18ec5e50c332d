"""The museum: every planted fault is caught by its gate, nothing correct is, and the docs say what a run says."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.museum.exhibit import Museum, open_museum
from harness.results import read_run

ROOT = Path(__file__).parents[3]
KINDS = {f"K{number:02d}" for number in range(1, 24)}


@pytest.fixture(scope="module")
def museum() -> Museum:
    return open_museum(ROOT / "suites" / "faults")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One run of the whole museum without a GPU, as ``harness faults`` does it."""
    folder = tmp_path_factory.mktemp("museum")
    command = [sys.executable, "-m", "harness.cli", "faults", "--world", "cpu", "--world", "fake-cuda"]
    command += ["--json", str(folder / "faults.jsonl"), "--markdown", str(folder / "faults.md")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600), folder


@pytest.mark.timeout(700)
def test_every_exhibit_is_caught_and_nothing_correct_is(
    run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    process, folder = run
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]
    assert read_run(folder / "faults.jsonl").complete


@pytest.mark.timeout(700)
def test_the_page_is_what_a_run_says(run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """Mend with: harness faults --world cpu --world fake-cuda --markdown docs/faults.md"""
    assert (run[1] / "faults.md").read_text() == (ROOT / "docs" / "faults.md").read_text()


def test_the_collection_is_as_large_as_promised(museum: Museum) -> None:
    assert {exhibit.kind for exhibit in museum.exhibits} == KINDS
    assert len(museum.exhibits) >= 100
    assert sum(exhibit.cheat for exhibit in museum.exhibits) >= 20
    assert len(museum.awkward) >= 60


def test_every_gate_is_expected_to_catch_something(museum: Museum) -> None:
    expected = Counter(exhibit.gate for exhibit in museum.exhibits)
    gates = ("correctness", "coverage", "guard", "arguments", "determinism", "recompile", "capture", "memory", "replay")
    assert not [gate for gate in gates if not expected[gate]]


def test_every_exhibit_says_what_it_mirrors_and_what_is_wrong(museum: Museum) -> None:
    for exhibit in museum.exhibits:
        assert exhibit.fault.strip(), exhibit.name
        assert exhibit.mirrors.strip(), exhibit.name


def test_no_gate_knows_the_museum() -> None:
    for file in (ROOT / "harness" / "gates").glob("*.py"):
        assert "museum" not in file.read_text(), file
