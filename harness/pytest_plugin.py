"""pytest plugin: ``pytest suites`` runs one test per suite, implementation, gate, world and case.

Mechanism: files named ``suite_*.py`` are collected; each trial is an item whose name is the trial's id, so that
``-k "quantize and capture and m128"`` selects and pytest-xdist distributes. A failing item shows expected, found,
the worst element and the command that reproduces it, not a traceback.

Cost when idle: the module is imported, nothing else; without suite files nothing is collected.

Options: ``--harness-tier full``, ``--harness-world cpu`` (repeatable), ``--harness-gate memory`` (repeatable),
``--harness-checkpoint FILE`` (repeatable) and ``--harness-json FILE`` for a result file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_VERDICT = "harness-verdict"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernel-harness")
    group.addoption("--harness-tier", default="quick", help="quick, or full for every case")
    group.addoption("--harness-world", action="append", default=[], help="cpu, fake-cuda or cuda (repeatable)")
    group.addoption("--harness-gate", action="append", default=[], help="only this gate (repeatable)")
    group.addoption("--harness-checkpoint", action="append", default=[], help="real weights, .safetensors (repeatable)")
    group.addoption("--harness-json", default=None, help="write a result file (JSON lines)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".py" and file_path.name.startswith("suite_"):
        return SuiteFile.from_parent(parent, path=file_path)
    return None


class SuiteFile(pytest.File):
    """A file that registers suites; its items are their trials."""

    def collect(self) -> Iterator[pytest.Item]:
        from harness.plan import Selection, make_plan
        from harness.registry import load, lookup

        option = self.config.getoption
        try:
            selection = Selection(
                worlds=tuple(option("--harness-world")),
                gates=tuple(option("--harness-gate")),
                tier=option("--harness-tier"),
                checkpoints=tuple(map(Path, option("--harness-checkpoint"))),
            )
            plan = make_plan([lookup(name) for name in load(self.path)], selection)
        except (ValueError, OSError) as error:
            raise self.CollectError(str(error)) from None
        if plan.unavailable:
            reasons = ", ".join(f"{name} ({reason})" for name, reason in plan.unavailable.items())
            raise self.CollectError(f"a world was asked for and is not there: {reasons}")
        for task in plan.tasks:
            yield TrialItem.from_parent(self, name=task.id, task=task)


class TrialItem(pytest.Item):
    """One trial."""

    def __init__(self, *, task: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task

    def runtest(self) -> None:
        from harness.runner import run_task
        from harness.verdict import Status

        verdict = run_task(self.task, _worker(self.config))
        self.user_properties.append((_VERDICT, verdict.as_dict()))
        if verdict.status is Status.SKIPPED:
            pytest.skip(verdict.reason)
        if verdict.status is not Status.PASS:
            raise GateFailure(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, GateFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class GateFailure(Exception):
    """A verdict that is not PASS, as pytest shows it."""

    def __init__(self, verdict: Any) -> None:
        lines = [
            f"{verdict.status}: {verdict.reason}",
            f"  expected  {verdict.expected}" if verdict.expected else "",
            f"  found     {verdict.found}" if verdict.found else "",
            *(f"  {line}" for line in verdict.details),
            f"  again     {verdict.reproduce}",
        ]
        super().__init__("\n".join(line for line in lines if line))


_WORKER: pytest.StashKey[Any] = pytest.StashKey()


class Recorder:
    """Writes the verdicts of all items to one result file; under xdist only the controller has one."""

    def __init__(self, path: str) -> None:
        from harness.results import ResultFile

        self.results = ResultFile(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from harness.verdict import Verdict

        if report.when == "call":
            for name, value in report.user_properties:
                if name == _VERDICT:
                    self.results.write(Verdict.from_dict(value))  # type: ignore[arg-type]

    def pytest_unconfigure(self) -> None:
        self.results.close()


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--harness-json")
    if path and not hasattr(config, "workerinput"):
        try:
            recorder = Recorder(path)
        except OSError as error:
            raise pytest.UsageError(f"--harness-json: {error}") from None
        config.pluginmanager.register(recorder, "kernel-harness-recorder")


def pytest_unconfigure(config: pytest.Config) -> None:
    worker = config.stash.get(_WORKER, None)
    if worker is not None:
        worker.stop()


def _worker(config: pytest.Config) -> Any:
    """The child process of this session, made when the first trial wants one."""
    from harness.isolate import Worker

    if _WORKER not in config.stash:
        config.stash[_WORKER] = Worker()
    return config.stash[_WORKER]
