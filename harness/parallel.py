"""Shares tasks among several child processes: two cores halve a run of many small trials."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from harness.isolate import Worker, run_isolated
from harness.plan import Task
from harness.verdict import Status, Verdict


class _Tasks:
    """What is left to do. Tasks on a GPU go to the first lane alone: two would share its memory and its clocks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._lock = threading.Lock()
        self._gpu = deque(task for task in tasks if task.world == "cuda")
        self._other = deque(task for task in tasks if task.world != "cuda")

    def take(self, lane: int) -> Task | None:
        with self._lock:
            if lane == 0 and self._gpu:
                return self._gpu.popleft()
            return self._other.popleft() if self._other else None

    def drop(self) -> None:
        with self._lock:
            self._gpu.clear()
            self._other.clear()


def run_parallel(tasks: Sequence[Task], jobs: int, fail_fast: bool) -> Iterator[Verdict]:
    """Run the tasks in ``jobs`` child processes; verdicts in the order of completion."""
    left = _Tasks(tasks)
    done: queue.Queue[Verdict | BaseException | None] = queue.Queue()

    def lane(number: int) -> None:
        try:
            with Worker(threads=1) as worker:
                while (task := left.take(number)) is not None:
                    done.put(run_isolated(task, worker))
        except BaseException as error:
            done.put(error)
        finally:
            done.put(None)

    lanes = [threading.Thread(target=lane, args=(number,), daemon=True) for number in range(jobs)]
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
