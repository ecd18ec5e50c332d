"""Runs one task in this process: from names to a verdict, whatever happens on the way."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import torch

from harness.annotate import annotate
from harness.gates import GATES
from harness.plan import Task
from harness.registry import load, registered
from harness.surroundings import settings_kept
from harness.trial import Trial
from harness.verdict import Findings, Status, Verdict
from harness.worlds import make_world


def execute(task: Task) -> Verdict:
    """The verdict of one task. An exception of the implementation or the gate is a FAIL that names it."""
    start = time.perf_counter()
    try:
        verdict = _judge(task)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a kernel that calls sys.exit(0) must not end the run as green
        verdict = Verdict(
            Status.FAIL,
            f"raised {type(error).__name__}: {(str(error).strip().splitlines() or ['(no message)'])[0]}",
            "no exception",
            type(error).__name__,
            details=_traceback(),
        )
    return named(verdict, task, time.perf_counter() - start)


def _judge(task: Task) -> Verdict:
    if task.suite not in registered():
        load(task.path)
    suite = registered()[task.suite].suite
    gate, world = GATES[task.gate], make_world(task.world)
    trial = Trial(suite, task.implementation, task.case, world)
    findings = Findings()
    with (
        settings_kept(),
        torch.no_grad(),
        annotate(suite.name, "suite"),
        annotate(task.case.id, "trial"),
        annotate(gate.name, "phase"),
    ):
        with world.active():
            gate.judge(trial, findings)
    return findings.verdict()


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


def _traceback() -> tuple[str, ...]:
    """Last lines of the exception being handled, paths as seen from here: results are committed and compared."""
    text = traceback.format_exc().replace(f"{Path.cwd()}{os.sep}", "")
    return tuple(text.rstrip().splitlines()[-12:])
