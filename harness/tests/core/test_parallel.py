"""Several child processes share a plan: nothing is lost, nothing runs twice, exclusive gates run alone."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from harness import parallel
from harness.case import grid
from harness.isolate import Worker
from harness.plan import Plan, Selection, Task, make_plan
from harness.registry import load, lookup
from harness.runner import run_plan
from harness.verdict import Status, Verdict

SUITE = """
import os, torch
import harness as kh

def double(x):
    if x.shape[0] == 13:
        os.abort()
    return x * 2

kh.register(kh.Suite(
    name="double",
    inputs=lambda case, draw: {"x": draw.tensor(case["m"], 4)},
    reference=lambda x: x.double() * 2,
    implementations={"torch": kh.Implementation(double)},
    cases=kh.grid(m=list(range(1, 25))),
    tolerance=kh.Tolerance(rtol=2**-8),
))
"""


@pytest.fixture
def plan(tmp_path: Path, clean_registry: None) -> Plan:
    path = tmp_path / "suite_double.py"
    path.write_text(SUITE)
    load(path)
    return make_plan([lookup("double")], Selection(worlds=("cpu",), gates=("correctness",)))


def test_every_task_has_one_verdict_and_a_crash_is_one_of_them(plan: Plan) -> None:
    verdicts = list(run_plan(plan, jobs=3))
    assert Counter(v.key for v in verdicts) == Counter(task.key for task in plan.tasks)
    failed = [v for v in verdicts if v.status is Status.FAIL]
    assert [v.case for v in failed] == ["m13-bf16-normal"]
    assert "SIGABRT" in failed[0].reason


def test_fail_fast_ends_the_run(plan: Plan) -> None:
    verdicts = list(run_plan(plan, jobs=2, fail_fast=True))
    assert verdicts[-1].status is Status.FAIL
    assert len(verdicts) < len(plan.tasks)


def test_children_use_one_thread_each(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Worker.__init__

    def watched(self: Worker, threads: int | None = None) -> None:
        seen.append(threads)
        original(self, threads)

    monkeypatch.setattr(Worker, "__init__", watched)
    list(run_plan(plan, jobs=2))
    assert seen == [1, 1]


def test_exclusive_gates_run_last_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory on a GPU reads what the whole device has free, so no other process may use it meanwhile."""
    running: Counter[str] = Counter()
    together: list[Counter[str]] = []

    def run(task: Task, worker: Worker) -> Verdict:
        running[task.gate] += 1
        together.append(running.copy())
        time.sleep(0.01)
        running[task.gate] -= 1
        return Verdict(Status.PASS, gate=task.gate)

    monkeypatch.setattr(parallel, "run_isolated", run)
    cases = grid(m=list(range(1, 9)))
    gates = ("memory", "correctness")
    tasks = [Task(Path("x"), "s", "i", gate, "cuda", case) for gate in gates for case in cases]
    order = [verdict.gate for verdict in parallel.run_parallel(tasks, 4, fail_fast=False)]
    assert sorted(order) == sorted(task.gate for task in tasks)
    assert order[-8:] == ["memory"] * 8
    for moment in together:
        if moment["memory"]:
            assert moment["memory"] == 1
            assert moment["correctness"] == 0


def test_a_broken_lane_is_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(task: Task, worker: Worker) -> Verdict:
        raise OSError("no more processes")

    monkeypatch.setattr(parallel, "run_isolated", run)
    tasks = [Task(Path(os.devnull), "s", "i", "guard", "cpu", case) for case in grid(m=[1, 2, 3])]
    with pytest.raises(OSError, match="no more processes"):
        list(parallel.run_parallel(tasks, 2, fail_fast=False))
