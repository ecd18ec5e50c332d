"""Runs one task in this process: from names to a verdict, whatever happens on the way."""

from __future__ import annotations

import time
import traceback

import torch

from harness.annotate import annotate
from harness.gates import GATES
from harness.plan import Task
from harness.registry import load, registered
from harness.trial import Trial
from harness.verdict import Findings, Status, Verdict
from harness.worlds import make_world


def execute(task: Task) -> Verdict:
    """The verdict of one task. An exception of the implementation or the gate is a FAIL that names it."""
    if task.suite not in registered():
        load(task.path)
    suite = registered()[task.suite].suite
    gate, world = GATES[task.gate], make_world(task.world)
    trial = Trial(suite, task.implementation, task.case, world)
    findings = Findings()
    start = time.perf_counter()
    try:
        with (
            torch.no_grad(),
            annotate(suite.name, "suite"),
            annotate(task.case.id, "trial"),
            annotate(gate.name, "phase"),
        ):
            with world.active():
                gate.judge(trial, findings)
        verdict = findings.verdict()
    except Exception as error:
        verdict = Verdict(
            Status.FAIL,
            f"raised {type(error).__name__}: {(str(error).strip().splitlines() or ['(no message)'])[0]}",
            "no exception",
            type(error).__name__,
            details=tuple(traceback.format_exc().rstrip().splitlines()[-12:]),
        )
    return named(verdict, task, time.perf_counter() - start)


def named(verdict: Verdict, task: Task, seconds: float) -> Verdict:
    """The verdict with the task's names, its duration and the command that reproduces it."""
    return verdict.within(
        suite=task.suite,
        implementation=task.implementation,
        case=task.case.id,
        gate=task.gate,
        world=task.world,
        reproduce=task.command,
        seconds=round(seconds, 4),
    )
