"""Runs a plan: each task here or in a child process, each verdict handed out as soon as it exists."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from harness.execute import execute
from harness.isolate import Worker, run_isolated
from harness.parallel import run_parallel
from harness.plan import Plan, Task
from harness.registry import lookup
from harness.verdict import Status, Verdict

ISOLATION = ("auto", "all", "none")


class Exit(IntEnum):
    """Exit codes of every ``harness`` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INVALID = 3


def isolated(task: Task, mode: str) -> bool:
    """Whether a task runs in a child process: everything on a GPU, and what is declared able to crash."""
    if mode != "auto":
        return mode == "all"
    implementation = lookup(task.suite).suite.implementations[task.implementation]
    return implementation.may_crash or task.world == "cuda"


def run_task(task: Task, worker: Worker, mode: str = "auto") -> Verdict:
    """Run one task as ``mode`` says."""
    if not isolated(task, mode):
        return execute(task)
    return run_isolated(task, worker)


def run_plan(plan: Plan, *, mode: str = "auto", fail_fast: bool = False, jobs: int = 1) -> Iterator[Verdict]:
    """Run the tasks of a plan, yielding each verdict; ``fail_fast`` ends after the first FAIL.

    With ``jobs`` > 1 that many child processes share the tasks, one thread of arithmetic each, and verdicts come in
    the order of completion. Gates that need a GPU to themselves run last, one at a time.
    """
    if jobs > 1 and mode != "none":
        yield from run_parallel(plan.tasks, jobs, fail_fast)
        return
    with Worker() as worker:
        for task in plan.tasks:
            verdict = run_task(task, worker, mode)
            yield verdict
            if fail_fast and verdict.status is Status.FAIL:
                return


def exit_code(verdicts: Iterable[Verdict], plan: Plan, waivers: Sequence[str] = ()) -> tuple[Exit, str]:
    """The exit code of a run, and the sentence that explains it.

    FAIL outranks INVALID outranks PASS. Nothing measured, a world asked for and not there, and INVALID or
    INCONCLUSIVE verdicts are never green, unless waived: a waiver is a pattern over
    ``suite/implementation/gate/world/case``, or ``world:NAME`` for a world that cannot be had.
    """
    verdicts = list(verdicts)
    counts = Counter(verdict.status for verdict in verdicts)
    if counts[Status.FAIL]:
        return Exit.FAILED, f"{counts[Status.FAIL]} of {len(verdicts)} verdicts are FAIL"
    missing = [name for name in plan.unavailable if f"world:{name}" not in waivers]
    if missing:
        reasons = ", ".join(f"{name} ({plan.unavailable[name]})" for name in missing)
        return Exit.INVALID, f"a world was asked for and is not there: {reasons}"
    if not counts[Status.PASS]:
        return Exit.INVALID, "nothing was measured"
    doubtful = [
        verdict
        for verdict in verdicts
        if verdict.status in (Status.INVALID, Status.INCONCLUSIVE)
        and not any(fnmatch.fnmatchcase(verdict.key, pattern) for pattern in waivers)
    ]
    if doubtful:
        return Exit.INVALID, f"{len(doubtful)} verdicts cannot be trusted (INVALID or INCONCLUSIVE)"
    return Exit.OK, f"{counts[Status.PASS]} verdicts passed"
