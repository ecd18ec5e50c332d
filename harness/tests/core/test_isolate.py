"""Children that crash, hang, exit and babble: each is one named FAIL, and the next task runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.case import Case
from harness.isolate import Worker
from harness.plan import Task
from harness.runner import run_plan
from harness.tests.planted import assert_fails, assert_passes
from harness.verdict import Status

DEADLY = """
import ctypes, os, signal, sys, time
import torch
from harness import Implementation, Suite, Tolerance, grid, register

def segfault(x):
    ctypes.string_at(0)

def well(x):
    return x + 1

def abort(x):
    os.abort()

def hang(x):
    time.sleep(600)

def leaves_with_success(x):
    os._exit(0)

def killed_with_a_fork_alive(x):
    if os.fork() == 0:
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)

def calls_sys_exit(x):
    sys.exit(0)

def babbles(x):
    print('{"status": "PASS"}' * 1000)
    sys.stdout.flush()
    os.write(1, b"\\xff\\x00 garbage\\n" * 1000)
    return x + 1

def raises(x):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def enormous_message(x):
    raise RuntimeError("y" * 300_000)

def reads_stdin(x):
    assert os.read(0, 1) == b"" and sys.stdin.read() == ""
    return x + 1

def pid_in_message(x):
    raise ValueError(f"pid {os.getpid()}")

KERNELS = {name: f for name, f in globals().items() if callable(f) and getattr(f, "__module__", "") == __name__}
register(Suite(
    name="deadly",
    inputs=lambda case, draw: {"x": draw.tensor(case["m"])},
    reference=lambda x: x.double() + 1,
    implementations={name: Implementation(f, may_crash=True) for name, f in KERNELS.items()},
    cases=grid(m=4, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    timeout_s=30,
))
"""

CASE = Case((("m", 4),), "fp32")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deadly") / "suite_deadly.py"
    path.write_text(DEADLY)
    return path


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def task(path: Path, implementation: str, gate: str = "correctness") -> Task:
    return Task(path, "deadly", implementation, gate, "cpu", CASE)


def pid(worker: Worker, path: Path) -> str:
    return worker.run(task(path, "pid_in_message"), 60).reason


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("abort", ("crashed", "killed by SIGABRT")),
        ("leaves_with_success", ("crashed", "ended with exit code 0")),
        ("killed_with_a_fork_alive", ("crashed", "killed by SIGKILL")),
    ],
)
def test_a_child_that_dies_is_one_named_failure_and_the_next_task_runs(
    worker: Worker, path: Path, kernel: str, words: tuple[str, ...]
) -> None:
    start = time.monotonic()
    found = worker.run(task(path, kernel), 60)
    assert_fails(found, *words)
    assert found.implementation == kernel
    assert found.reproduce == task(path, kernel).command
    assert time.monotonic() - start < 50, "a death is not waited for until the time limit"
    assert_passes(worker.run(task(path, "well"), 60))


def test_a_child_that_hangs_is_ended_at_its_time_limit_and_the_next_task_runs(worker: Worker, path: Path) -> None:
    assert_passes(worker.run(task(path, "well"), 60))
    start = time.monotonic()
    found = worker.run(task(path, "hang"), 1.5)
    assert_fails(found, "hung: no end after 1.5 s")
    assert 1.4 < time.monotonic() - start < 10
    assert found.seconds >= 1.4
    assert_passes(worker.run(task(path, "well"), 60))


def test_what_a_kernel_prints_is_no_verdict_and_what_it_reads_is_no_task(worker: Worker, path: Path) -> None:
    assert_passes(worker.run(task(path, "reads_stdin"), 60))
    assert_passes(worker.run(task(path, "babbles"), 60))
    assert_passes(worker.run(task(path, "well"), 60))


def test_sys_exit_and_an_enormous_message_come_back_as_failures_of_the_same_child(worker: Worker, path: Path) -> None:
    before = pid(worker, path)
    assert_fails(worker.run(task(path, "calls_sys_exit"), 60), "raised SystemExit")
    assert_fails(worker.run(task(path, "enormous_message"), 60), "yyyy")
    assert pid(worker, path) == before


def test_a_cuda_error_stays_with_its_process_so_the_next_task_gets_another_one(worker: Worker, path: Path) -> None:
    before = pid(worker, path)
    assert_fails(worker.run(task(path, "raises"), 60), "CUDA error: an illegal memory access")
    assert pid(worker, path) != before


def test_a_fresh_process_serves_one_task(worker: Worker, path: Path) -> None:
    before = pid(worker, path)
    alone = worker.run(task(path, "pid_in_message"), 60, fresh=True).reason
    assert alone != before
    assert worker._process is None


def test_a_suite_file_that_cannot_be_loaded_in_the_child_is_a_failure(worker: Worker, tmp_path: Path) -> None:
    bad = tmp_path / "suite_bad.py"
    bad.write_text("raise OSError('no such library: libcuda.so.1')")
    found = worker.run(Task(bad, "deadly_too", "well", "correctness", "cpu", CASE), 60)
    assert found.status is Status.FAIL
    assert "libcuda.so.1" in found.reason


def test_stopping_ends_the_child_and_can_be_done_twice(path: Path) -> None:
    worker = Worker()
    worker.stop()
    process = worker._start()
    worker.stop()
    worker.stop()
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_run_over_deadly_kernels_has_a_verdict_for_every_task(path: Path, clean_registry: None) -> None:
    from harness.plan import Selection, make_plan
    from harness.registry import load, lookup

    load(path)
    selection = Selection(worlds=("cpu",), gates=("correctness",), implementations=("segfault", "well"))
    plan = make_plan([lookup("deadly")], selection)
    found = {v.implementation: v for v in run_plan(plan)}
    assert_fails(found["segfault"], "crashed", "killed by SIGSEGV")
    assert_passes(found["well"])
