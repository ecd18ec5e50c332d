"""Shares tasks among several child processes: two cores halve a run of many small trials."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from harness.gates import GATES
from harness.isolate import Worker, run_isolated
from harness.plan import Task
from harness.verdict import Status, Verdict


class _Tasks:
    """What is left to do, largest first, so that no lane ends alone with the longest one.

    Gates that are ``exclusive`` on a GPU (they read what the whole device has free) wait until every other lane is
    done, and then have it to themselves.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._changed = threading.Condition()
        ordered = sorted(tasks, key=_size, reverse=True)
        self._alone = deque(task for task in ordered if _exclusive(task))
        self._shared = deque(task for task in ordered if not _exclusive(task))
        self._busy = 0

    def take(self) -> Task | None:
        """The next task, or None when there is none left for the asking lane."""
        with self._changed:
            while True:
                if self._shared:
                    self._busy += 1
                    return self._shared.popleft()
                if not self._alone:
                    return None
                if self._busy == 0:
                    self._busy += 1
                    return self._alone.popleft()
                self._changed.wait()

    def done(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def drop(self) -> None:
        with self._changed:
            self._shared.clear()
            self._alone.clear()
            self._changed.notify_all()


def _exclusive(task: Task) -> bool:
    return task.world == "cuda" and GATES[task.gate].exclusive


def _size(task: Task) -> int:
    """Product of the case's sizes: a guess at how long it takes."""
    return math.prod(value for _, value in task.case.params if isinstance(value, int))


def run_parallel(tasks: Sequence[Task], jobs: int, fail_fast: bool) -> Iterator[Verdict]:
    """Run the tasks in ``jobs`` child processes; verdicts in the order of completion."""
    left = _Tasks(tasks)
    done: queue.Queue[Verdict | BaseException | None] = queue.Queue()

    def lane() -> None:
        try:
            with Worker(threads=1) as worker:
                while (task := left.take()) is not None:
                    try:
                        done.put(run_isolated(task, worker))
                    finally:
                        left.done()
        except BaseException as error:
            done.put(error)
        finally:
            done.put(None)

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(jobs)]
    for thread in lanes:
        thread.start()
    try:
        running = jobs
        while running:
            result = done.get()
            if result is None:
                running -= 1
            elif isinstance(result, BaseException):
                raise result
            else:
                yield result
                if fail_fast and result.status is Status.FAIL:
                    return
    finally:
        left.drop()
        for thread in lanes:
            thread.join()
