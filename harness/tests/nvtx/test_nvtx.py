"""NVTX ranges are really emitted, nested and closed: NVTX itself hands them to a recorder. No GPU and no nsys."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

SUITE = """
import torch
import harness as kh

def scale(x):
    return x * 2

def broken(x):
    raise ValueError("this kernel always raises")

kh.register(kh.Suite(
    name="scale",
    inputs=lambda case, draw: {"x": draw.tensor(case["m"], 8)},
    reference=lambda x: x.double() * 2,
    implementations={"torch": kh.Implementation(scale), "broken": kh.Implementation(broken)},
    cases=kh.grid(m=[2, 3]),
    tolerance=kh.Tolerance(rtol=2**-8),
))
"""


@dataclass(frozen=True)
class Range:
    """A closed range: its domain and message, those around it (outermost first), and its process."""

    domain: str
    message: str
    around: tuple[str, ...]
    pid: int


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvtx") / "libnvtx_record.so"
    source = Path(__file__).with_name("nvtx_record.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", source, "-o", library], check=True)
    return library


def record(recorder: Path, folder: Path, *command: str) -> list[dict[str, str]]:
    """Events of a command under the recorder. NVTX reads the variable at its first call, so it is a new process."""
    log = folder / "nvtx.jsonl"
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(recorder), "NVTX_RECORD_FILE": str(log)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def ranges(events: list[dict[str, str]]) -> list[Range]:
    """Closed ranges in closing order. Fails on a pop without a push, and on a range that is never closed."""
    open_: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    closed = []
    for event in events:
        stack = open_[event["pid"], event["domain"]]
        if event["event"] == "push":
            stack.append(event["message"])
        elif event["event"] == "pop":
            assert stack, f"pop without push: {event}"
            closed.append(Range(event["domain"], stack.pop(), tuple(stack), int(event["pid"])))
        else:
            assert event["event"] == "category", event
    left = {key: stack for key, stack in open_.items() if stack}
    assert not left, f"never closed: {left}"
    return closed


def python(recorder: Path, folder: Path, code: str) -> list[Range]:
    return ranges(record(recorder, folder, sys.executable, "-c", textwrap.dedent(code)))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite_scale.py"
    path.write_text(SUITE)
    return path


def gate(recorder: Path, suite: Path, *options: str) -> list[Range]:
    command = ["-m", "harness.cli", "gate", "--suite", suite.name, "--world", "cpu", "--gate", "correctness"]
    return ranges(record(recorder, suite.parent, sys.executable, *command, *options))


def test_ranges_nest_as_suite_trial_phase_kernel(recorder: Path, suite: Path) -> None:
    found = gate(recorder, suite, "--implementation", "torch", "--jobs", "1")
    assert {item.domain for item in found} == {"kernel-harness"}
    kernels = [item for item in found if item.message == "scale:torch"]
    assert {item.around for item in kernels} == {
        ("scale", "m2-bf16-normal", "correctness"),
        ("scale", "m3-bf16-normal", "correctness"),
    }
    references = [item for item in found if item.message == "reference"]
    assert {item.around[1] for item in references} == {"m2-bf16-normal", "m3-bf16-normal"}


def test_ranges_are_closed_when_a_kernel_raises(recorder: Path, suite: Path) -> None:
    found = gate(recorder, suite, "--implementation", "broken", "--jobs", "1")
    assert [item.message for item in found if item.message.startswith("scale:")] == ["scale:broken"] * 2


def test_child_processes_are_recorded_too(recorder: Path, suite: Path) -> None:
    found = gate(recorder, suite, "--implementation", "torch", "--isolate", "all", "--jobs", "1")
    assert "scale:torch" in {item.message for item in found}


def test_pytest_emits_the_same_ranges(recorder: Path, suite: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", suite.name, "-k", "correctness and torch"]
    found = ranges(record(recorder, suite.parent, sys.executable, *command))
    assert ("scale", "m2-bf16-normal", "correctness") in {item.around for item in found}


def test_nothing_inside_quiet(recorder: Path, tmp_path: Path) -> None:
    found = python(
        recorder,
        tmp_path,
        """
        from harness.annotate import annotate, quiet
        with annotate("seen", "suite"):
            with quiet(), annotate("hidden", "kernel"):
                pass
        with annotate("seen again", "suite"):
            pass
        """,
    )
    assert [item.message for item in found] == ["seen", "seen again"]


def test_the_checker_sees_a_range_that_is_never_closed(recorder: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never closed"):
        python(
            recorder,
            tmp_path,
            "import nvtx; d = nvtx.get_domain('d'); d.push_range(d.get_event_attributes('leak'))",
        )


def test_without_a_profiler_nothing_is_recorded(tmp_path: Path) -> None:
    code = "from harness.annotate import annotate\nwith annotate('x', 'suite'): pass"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NVTX_")}
    environment["NVTX_RECORD_FILE"] = str(tmp_path / "nvtx.jsonl")
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert not (tmp_path / "nvtx.jsonl").exists()
