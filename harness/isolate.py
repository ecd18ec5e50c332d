"""Runs tasks in a child process that may crash, hang or lose its GPU without taking the run with it.

One child serves many tasks, because starting one (importing torch, opening the GPU) takes seconds. It is replaced
after a crash, a time-out, or a CUDA error, which stays with a process for the rest of its life. What the child was
doing when it died is a FAIL with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time

from harness.execute import named
from harness.gates import GATES
from harness.plan import Task
from harness.registry import lookup
from harness.verdict import Status, Verdict

_STICKY = ("CUDA error", "CUDA driver error", "cudaError", "illegal memory access", "unspecified launch failure")


class Worker:
    """A child process for tasks. Use as a context manager; ``run`` starts the child when there is none."""

    def __init__(self, threads: int | None = None) -> None:
        """``threads`` limits the arithmetic of the child; None leaves it as it is."""
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: int = -1
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def run(self, task: Task, timeout_s: float, *, fresh: bool = False) -> Verdict:
        """The verdict of one task within ``timeout_s`` seconds; ``fresh`` gives it a process of its own."""
        if fresh:
            self.stop()
        start = time.monotonic()
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write((json.dumps(task.as_dict()) + "\n").encode())
            process.stdin.flush()
            line = self._read_line(process, timeout_s)
        except (BrokenPipeError, EOFError):
            return named(self._crashed(), task, time.monotonic() - start)
        except TimeoutError:
            self.stop()
            verdict = Verdict(Status.FAIL, f"hung: no end after {timeout_s:g} s", f"an end within {timeout_s:g} s")
            return named(verdict, task, time.monotonic() - start)
        reply = json.loads(line)
        verdict = Verdict.from_dict(reply["verdict"])
        sticky = verdict.status is Status.FAIL and any(word in _text(verdict) for word in _STICKY)
        if fresh or sticky or reply["retired"]:
            self.stop()
        return verdict

    def stop(self) -> None:
        """End the child, and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the last task may still be in its buffer
                process.stdin.close()
        os.close(self._replies)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        # replies have a pipe of their own: kernels and compilers print to stdout as they please
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.worker", str(write)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            pass_fds=(write,),
            env=self._environment,
            start_new_session=True,
        )
        os.close(write)
        self._replies, self._buffer = read, b""
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                ended = process.poll() is not None  # asked before the pipe, so that a last reply is still read
                if not selector.select(0 if ended else min(left, 0.5)):
                    if ended:  # what it had forked may hold the pipe open
                        raise EOFError
                    continue
                chunk = os.read(self._replies, 1 << 16)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _crashed(self) -> Verdict:
        process = self._process
        assert process is not None
        try:
            code = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None
        self.stop()
        if code is None:
            how = "closed its pipe and did not end"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        return Verdict(Status.FAIL, f"crashed: the process {how}", "a process that survives", how)


def run_isolated(task: Task, worker: Worker) -> Verdict:
    """Run a task in a worker, in a process of its own where both the implementation and the gate may crash."""
    suite = lookup(task.suite).suite
    fresh = suite.implementations[task.implementation].may_crash and GATES[task.gate].may_crash
    return worker.run(task, suite.timeout_s, fresh=fresh)


def _text(verdict: Verdict) -> str:
    return " ".join((verdict.reason, verdict.found, *verdict.details))
