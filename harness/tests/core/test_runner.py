from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.case import grid
from harness.execute import execute
from harness.isolate import Worker
from harness.plan import Plan, Selection, Task, make_plan
from harness.registry import Registered, load, lookup, register
from harness.runner import Exit, exit_code, isolated, run_plan
from harness.suite import Implementation
from harness.tests.planted import SUITE_FILE, correct, make_suite
from harness.verdict import Status, Verdict

EMPTY = Plan()


def verdict(status: Status, case: str = "m1") -> Verdict:
    return Verdict(status, suite="s", implementation="i", gate="guard", world="cpu", case=case)


PASS, FAIL, INVALID, INCONCLUSIVE, SKIPPED = (
    verdict(status) for status in (Status.PASS, Status.FAIL, Status.INVALID, Status.INCONCLUSIVE, Status.SKIPPED)
)


@pytest.mark.parametrize(
    ("verdicts", "code", "words"),
    [
        ([PASS, PASS], Exit.OK, "2 verdicts passed"),
        ([PASS, SKIPPED], Exit.OK, "1 verdicts passed"),
        ([PASS, FAIL, INVALID], Exit.FAILED, "1 of 3 verdicts are FAIL"),
        ([], Exit.INVALID, "nothing was measured"),
        ([SKIPPED, SKIPPED], Exit.INVALID, "nothing was measured"),
        ([INVALID], Exit.INVALID, "nothing was measured"),
        ([PASS, INVALID], Exit.INVALID, "1 verdicts cannot be trusted"),
        ([PASS, INCONCLUSIVE], Exit.INVALID, "1 verdicts cannot be trusted"),
    ],
)
def test_exit_code_is_green_only_if_something_was_measured_and_all_of_it_passed(
    verdicts: list[Verdict], code: Exit, words: str
) -> None:
    found, conclusion = exit_code(verdicts, EMPTY)
    assert (found, words in conclusion) == (code, True), conclusion


def test_a_waiver_names_what_it_accepts_and_never_a_failure() -> None:
    pattern = "s/i/guard/cpu/m1"
    assert exit_code([PASS, INVALID], EMPTY, [pattern])[0] is Exit.OK
    assert exit_code([PASS, INVALID], EMPTY, ["s/*"])[0] is Exit.OK
    assert exit_code([PASS, INVALID, verdict(Status.INVALID, "m2")], EMPTY, [pattern])[0] is Exit.INVALID
    assert exit_code([PASS, FAIL], EMPTY, ["*"])[0] is Exit.FAILED
    assert exit_code([INVALID], EMPTY, ["*"])[0] is Exit.INVALID, "nothing measured cannot be waived away"


def test_a_world_that_is_not_there_is_red_unless_waived_by_name() -> None:
    plan = Plan(unavailable={"cuda": "no CUDA device"})
    code, words = exit_code([PASS], plan)
    assert (code, "cuda (no CUDA device)" in words) == (Exit.INVALID, True)
    assert exit_code([PASS], plan, ["world:cuda"])[0] is Exit.OK
    assert exit_code([PASS], plan, ["*"])[0] is Exit.INVALID
    assert exit_code([FAIL], plan)[0] is Exit.FAILED


def fails(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no")


def test_fail_fast_ends_after_the_first_failure_and_without_it_everything_runs(clean_registry: None) -> None:
    register(make_suite(fails))
    plan = make_plan([lookup("planted")], Selection(worlds=("cpu",)))
    assert len(plan.tasks) > 2
    assert [v.status for v in run_plan(plan, fail_fast=True)] == [Status.FAIL]
    assert len(list(run_plan(plan))) == len(plan.tasks)


def test_verdicts_come_one_by_one_as_they_are_made(clean_registry: None) -> None:
    calls = []

    def counting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return correct(x, y)

    register(make_suite(counting))
    plan = make_plan([lookup("planted")], Selection(worlds=("cpu",)))
    run = run_plan(plan)
    next(run)
    after_first = len(calls)
    next(run)
    assert 0 < after_first < len(calls)
    run.close()


def test_what_may_crash_and_everything_on_a_gpu_runs_in_a_child(clean_registry: None) -> None:
    implementations = {"kernel": Implementation(correct), "wild": Implementation(correct, may_crash=True)}
    suite = register(make_suite(correct, implementations=implementations))
    task = Task(Path(__file__), suite.name, "kernel", "guard", "cpu", suite.cases[0])
    wild = Task(Path(__file__), suite.name, "wild", "guard", "cpu", suite.cases[0])
    on_gpu = Task(Path(__file__), suite.name, "kernel", "guard", "cuda", suite.cases[0])
    assert [isolated(t, "auto") for t in (task, wild, on_gpu)] == [False, True, True]
    assert [isolated(t, "all") for t in (task, wild, on_gpu)] == [True] * 3
    assert [isolated(t, "none") for t in (task, wild, on_gpu)] == [False] * 3


def test_a_verdict_carries_names_duration_and_command_also_when_the_kernel_raises(clean_registry: None) -> None:
    suite = register(make_suite(fails))
    task = Task(Path(__file__), suite.name, "kernel", "guard", "cpu", suite.cases[0])
    found = execute(task)
    assert (found.status, found.reason) == (Status.FAIL, "raised RuntimeError: no")
    assert found.key == f"planted/kernel/guard/cpu/{suite.cases[0].id}"
    assert found.reproduce == task.command
    assert found.seconds > 0
    assert any("raise RuntimeError" in line for line in found.details), "the line that raised"


def test_an_exception_without_a_message_is_told_too(clean_registry: None) -> None:
    def silent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise RuntimeError

    suite = register(make_suite(silent))
    found = execute(Task(Path(__file__), suite.name, "kernel", "guard", "cpu", suite.cases[0]))
    assert found.reason == "raised RuntimeError: (no message)"


def test_ctrl_c_ends_the_run_instead_of_failing_a_trial(clean_registry: None) -> None:
    def interrupted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    suite = register(make_suite(interrupted))
    with pytest.raises(KeyboardInterrupt):
        execute(Task(Path(__file__), suite.name, "kernel", "guard", "cpu", suite.cases[0]))


def test_no_gradients_are_recorded_in_a_trial(clean_registry: None) -> None:
    recording = []

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        recording.append(torch.is_grad_enabled())
        return correct(x, y)

    suite = register(make_suite(kernel))
    execute(Task(Path(__file__), suite.name, "kernel", "correctness", "cpu", suite.cases[0]))
    assert recording
    assert not any(recording)


def test_a_task_loads_its_own_suite_file(suite_file: Callable[..., Path]) -> None:
    path = suite_file(SUITE_FILE)
    case = grid(m=4, k=16, dtype="fp32")[0]
    assert execute(Task(path, "axpy", "torch", "correctness", "cpu", case)).status is Status.PASS


def test_isolated_and_in_process_verdicts_agree(suite_file: Callable[..., Path]) -> None:
    path = suite_file(SUITE_FILE)
    names = load(path)
    plan = make_plan([lookup(name) for name in names], Selection(worlds=("cpu",), cases=("m4-*",)))
    here = list(run_plan(plan, mode="none"))
    with Worker() as worker:
        there = [worker.run(task, 60) for task in plan.tasks]
    assert [(v.key, v.status, v.reproduce) for v in here] == [(v.key, v.status, v.reproduce) for v in there]
    assert {v.status for v in here} == {Status.PASS}
    assert Registered(lookup("axpy").suite, path) == lookup("axpy")
